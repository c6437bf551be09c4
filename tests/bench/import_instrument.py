"""What does an engine's process pay for importing us?

`python tests/bench/import_instrument.py [--format json]`: each in a fresh interpreter with compiled files,
best and the median of several rounds that take turns, beside `import json`. `register` is the plugin's entry
point in a process without a run. The last two are a process with a run, where what an engine imports of the
standard library is there already: `waiting` is the entry point, `wrapping` all that a front end or EngineCore
has imported of us in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUNDS = 15
CASES = {
    "json": "import json",
    "instrument": "import kvtrace.instrument",
    "register": "from kvtrace.instrument.vllm import register; register()",
    "waiting": "os.environ['KVTRACE_OUT'] = OUT; from kvtrace.instrument.vllm import register; register()",
    "wrapping": "from kvtrace.instrument.vllm import api, connectors, kv_events, plugin, scheduler",
}
THERE = "import atexit, collections, importlib.util, json, logging, multiprocessing, re, struct, typing, zlib"
CODE = """
import os, sys, time
{there}
OUT = sys.argv[1]
began = time.perf_counter_ns()
{code}
print(time.perf_counter_ns() - began)
"""


def main() -> None:
    """Prints milliseconds of each case, and their ratio to `import json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as out:
        taken = {name: [] for name in CASES}  # type: dict[str, list[int]]
        for _ in range(ROUNDS + 1):
            for name, code in CASES.items():
                taken[name].append(_once(code, out, THERE if name in ("waiting", "wrapping") else ""))
    # The first round compiled.
    best = {name: min(each[1:]) / 1e6 for name, each in taken.items()}
    found = {
        "best_ms": best,
        "median_ms": {name: statistics.median(each[1:]) / 1e6 for name, each in taken.items()},
        "times_json": {name: each / best["json"] for name, each in best.items()},
    }
    if options.format == "json":
        print(json.dumps(found))
    else:
        for name, ms in best.items():
            print(f"{name:12}{ms:8.2f} ms{found['times_json'][name]:8.2f} x json")


def _once(code: str, out: str, there: str) -> int:
    command = [sys.executable, "-S", "-c", CODE.format(code=code, there=there), out]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": out}
    for name in ("KVTRACE_OUT", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60).stdout)


if __name__ == "__main__":
    main()
