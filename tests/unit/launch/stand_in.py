"""Stands in for an engine: records requests through kvtrace's recorder, as a plugin would, and ends as told.

python stand_in.py REQUESTS [--seconds S] [--die] [--wait-for FILE] [--spawn]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from kvtrace import recorder

REQUEST = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "output_tokens", "status"),
    op="request", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
QUEUE = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "reason", "blocks"),
    op="queue", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("requests", type=int)
    parser.add_argument("--prefix", default="r")
    parser.add_argument("--seconds", type=float, default=0.0, help="spread the requests over so long")
    parser.add_argument("--die", action="store_true", help="os._exit, which runs no exit handler")
    parser.add_argument("--wait-for", type=Path, help="then wait until this file exists")
    parser.add_argument("--spawn", action="store_true", help="a child of ours records as many")
    told = parser.parse_args()
    recorder.describe(engine="stand-in-0", role="scheduler", product="stand-in", version="1.0")
    again = [sys.executable, __file__, str(told.requests), "--prefix", "c"]
    child = subprocess.Popen(again) if told.spawn else None
    for number in range(told.requests):
        started = recorder.now()
        recorder.record((QUEUE, f"{told.prefix}-{number}", started, recorder.now(), "capacity", number))
        recorder.record((REQUEST, f"{told.prefix}-{number}", started, recorder.now(), 7, "ok"))
        if told.seconds:
            time.sleep(told.seconds / told.requests)
    recorder.flush()
    print("recorded", flush=True)
    deadline = time.monotonic() + 60
    while told.wait_for is not None and not told.wait_for.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if child is not None:
        child.wait(timeout=60)
    if told.die:
        os._exit(3)


if __name__ == "__main__":
    main()
