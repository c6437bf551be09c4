"""The environment of the command: where to record, which clock, and how to find kvtrace."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLUGIN = "kvtrace"
_READINGS = 5


def anchor() -> tuple[int, int]:
    """One instant on both clocks, (monotonic ns, unix ns): of some readings the one that took least time."""
    readings = []
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        unix_ns = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, before + (after - before) // 2, unix_ns))
    _, monotonic_ns, unix_ns = min(readings)
    return monotonic_ns, unix_ns


def environment(
    inherited: Mapping[str, str], *, run: Path, run_id: str, clocks: tuple[int, int], bootstrap: Path
) -> dict[str, str]:
    """The inherited environment, with ours added."""
    made = reaching(inherited, bootstrap)
    made["KVTRACE_OUT"] = str(run.absolute())
    made["KVTRACE_ANCHOR"] = f"{clocks[0]}:{clocks[1]}"
    made["KVTRACE_RUN_ID"] = run_id
    return made


def reaching(inherited: Mapping[str, str], bootstrap: Path) -> dict[str, str]:
    """The part by which a Python finds us: PYTHONPATH, and vLLM's list of allowed plugins where it is set.

    An unset VLLM_PLUGINS allows every plugin, so it stays unset.
    """
    made = dict(inherited)
    paths = [str(bootstrap), *filter(None, [inherited.get("PYTHONPATH")])]
    made["PYTHONPATH"] = os.pathsep.join(paths)
    allowed = inherited.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        made["VLLM_PLUGINS"] = f"{allowed},{PLUGIN}" if allowed else PLUGIN
    return made
