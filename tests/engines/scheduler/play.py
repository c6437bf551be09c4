"""Plays the cases and prints, for each, a digest of what the scheduler decided, or the error it raised.

    python play.py [CASE ...]        in a folder with the model, KVTRACE_OUT naming the run

What the scheduler decides must not depend on kvtrace: `KVTRACE_PLAIN=1` plays without instruments and prints
the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback

import bare
import cases
import counted
import failures
from kvtrace import recorder
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm import carrier, connector_hooks, scheduler


def main(names: list[str]) -> int:
    """The number of cases that raised."""
    if not os.environ.get("KVTRACE_PLAIN"):
        _instrument()
    failed = 0
    for case in (*cases.ALL, *failures.ALL):
        if names and case.__name__ not in names:
            continue
        try:
            case()
        except Exception:  # noqa: BLE001 - the next case has a scheduler of its own
            failed += 1
            print(case.__name__, traceback.format_exc(), flush=True)
        else:
            print(case.__name__, hashlib.sha256(repr(bare.DECIDED).encode()).hexdigest()[:12], flush=True)
        bare.DECIDED.clear()
    counted.keep(counted.AFTER)
    recorder.describe(instruments={**wrapping.status()})
    recorder.flush()
    return failed


def _instrument() -> None:
    from fake_connector import FakeConnector, SecondConnector
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    recorder.describe(engine="bare", role="scheduler", product="vllm")
    scheduler.install()
    for cls in (FakeConnector, SecondConnector, MultiConnector):
        connector_hooks.instrument(cls)
        carrier.instrument(cls)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
