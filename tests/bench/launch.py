"""What does `kvtrace run` cost beside the engine: `python -m tests.bench.launch [--seconds 30]`.

start_ms           until the command runs, above starting it from a bare Python (median of 9)
start_cpu_ms       the same in CPU time, which other work on the machine disturbs less
parent_cpu_share   CPU seconds of the parent a second of recording at 10,000 rows/s, start and end left out
parent_cpu_s       all CPU seconds of the parent, from its start to its end
parent_end_s       CPU seconds of the end: the last rows, few sorted files, the summary
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.unit.launch.launched import KVTRACE, environment

RATE = 10_000
_TICKS = os.sysconf("SC_CLK_TCK")
WRITER = """
import sys, time
from kvtrace import recorder
ROW = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "reason", "blocks", "free_blocks"),
    op="queue", observer="scheduler", evidence="shim", attribution="request",
)
seconds, rate = float(sys.argv[1]), int(sys.argv[2])
recorder.describe(engine="bench-0", role="scheduler")
began, done = time.monotonic(), 0
while (now := time.monotonic()) - began < seconds:
    while done < (now - began) * rate:
        start, request_id = recorder.now(), f"cmpl-{done // 20}-0-92cea7c0"
        recorder.record((ROW, request_id, start, start + 1000, "capacity", done % 64, 40))
        done += 1
    time.sleep(0.002)
"""


def start_ms() -> tuple[float, float]:
    """Milliseconds until the command runs, of the clock and of CPU time, above those of a bare Python."""
    asked = ["sh", "-c", "date +%s%N; cat /proc/$PPID/schedstat"]
    bare = f"import os; os.waitpid(os.posix_spawnp('sh', {asked!r}, os.environ), 0)"
    ours, others = [], []
    for _ in range(9):
        with tempfile.TemporaryDirectory() as folder:
            ours.append(_until([*KVTRACE, "--out", f"{folder}/run", "--", *asked]))
        others.append(_until([sys.executable, "-c", bare]))
    wall, cpu = (
        statistics.median(one[n] for one in ours) - statistics.median(one[n] for one in others)
        for n in (0, 1)
    )
    return wall, cpu


def _until(command: list[str]) -> tuple[float, float]:
    before = time.time_ns()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    date, schedule = done.stdout.splitlines()
    return (int(date) - before) / 1e6, int(schedule.split()[0]) / 1e6


def cpu_seconds(pid: int) -> float:
    """CPU seconds of one process, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [*KVTRACE, "--out", str(out), "--", sys.executable, "-c", WRITER, str(seconds), str(RATE)]
        parent = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
        time.sleep(8.0)  # its libraries are loaded, whatever else the machine does
        first, began = cpu_seconds(parent.pid), time.monotonic()
        time.sleep(seconds - 10.0)
        second, ended = cpu_seconds(parent.pid), time.monotonic()
        last = second
        while parent.poll() is None:
            last = cpu_seconds(parent.pid)
            time.sleep(0.02)
        assert parent.stderr is not None
        said = parent.stderr.read()
    share = (second - first) / (ended - began)
    wall, cpu = start_ms()
    answer = {
        "start_ms": round(wall, 1), "start_cpu_ms": round(cpu, 1), "rate": RATE,
        "parent_cpu_share": round(share, 3), "parent_cpu_s": last,
        "parent_end_s": round(last - second - 2.0 * share, 2),
        "said": said.splitlines(),
    }  # fmt: skip
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
