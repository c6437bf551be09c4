"""A chrome trace of PyTorch's profiler, parsed here and by HolisticTraceAnalysis, one process each.

    python -m tests.bench.kineto [--events 500000] [--peer PATH/TO/python] [--rounds 3] [--format json]

`--peer` is the Python of an environment of its own that has `traceinsight` (HolisticTraceAnalysis), else
only we are measured. The trace is drawn in Kineto's own layout: of every eight events two operators, a call
that launches and its kernel with a demangled name, one of Python, one flow, and a call that copies with its
copy; every fiftieth group lies in a range of kvtrace's own, which names a request.

    wall_s, cpu_s   of reading the file: the decoder's parts here, TraceCollection.parse_traces there
    peak_mib        the most memory that the process ever held, its imports included
    rows            what came out: copies and ranges here, events there

Numbers are printed, never asserted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.unit.sources.profilers import HEADER, PID, annotation, call, copy, event

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
FLOW = '{{"ph": "s", "id": {}, "pid": {}, "tid": 7, "ts": {}.100, "cat": "ac2g", "name": "ac2g"}}'
OURS = """
import json, resource, sys, time
from pathlib import Path
from kvtrace.sources import kineto
from kvtrace.sources.decoded import Options
from kvtrace.sources.stream import open_input
began, cpu = time.perf_counter(), time.process_time()
with open_input(Path(sys.argv[1])) as stream:
    rows = sum(frame.height for part in kineto.read(stream, "t", Options()) for frame in part.tables.values())
"""
THEIRS = """
import json, logging, resource, sys, time
from pathlib import Path
logging.disable(logging.CRITICAL)
try:
    from hta.common.trace import Trace
except ImportError:
    from hta.common.trace_collection import TraceCollection as Trace
began, cpu = time.perf_counter(), time.process_time()
found = Trace(trace_files={0: sys.argv[1]}, trace_dir=str(Path(sys.argv[1]).parent))
found.parse_traces(use_multiprocessing=False)
rows = len(found.get_trace(0) if hasattr(found, "get_trace") else found.get_trace_df(0))
"""
SAID = """
print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": rows,
                  "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def group(number: int) -> list[str]:
    """Eight events of one moment; a range more in every fiftieth group."""
    at, size = number * 10_000, 4096 * (1 + number % 7)
    launch, move = 2 * number + 1, 2 * number + 2
    dims = {
        "External id": number,
        "Sequence number": number,
        "Input Dims": [[64, 4096], [4096]],
        "Ev Idx": number,
    }
    kernel = {"device": 0, "context": 1, "stream": 7, "correlation": launch, "grid": [128, 1, 1],
              "block": [128, 1, 1], "registers per thread": 32, "est. achieved occupancy %": 50}  # fmt: skip
    found = [
        event("cpu_op", "aten::add", at, 3000, **dims),
        event("cpu_op", "aten::copy_", at + 3000, 3000, **dims),
        call(at + 100, launch, "cudaLaunchKernel"),
        event("kernel", KERNEL, at + 1000, 2000, pid=0, tid=7, **kernel),
        event("python_function", "model.py(71): forward", at, 9000, **{"Python id": number}),
        FLOW.format(launch, PID, at // 1000),
        call(at + 3100, move),
        copy(at + 4000, at + 8000, move, "DtoH" if number % 3 else "HtoD", bytes=size),
    ]  # fmt: skip
    return found if number % 50 else [*found, annotation(f"kvtrace:req-{number}:load", at, at + 9000)]


def write(path: Path, events: int) -> None:
    """A trace of about so many events."""
    with path.open("w") as file:
        about = json.dumps(HEADER | {"distributedInfo": {"rank": 0}}, indent=2)[:-2]
        file.write(about + ',\n  "traceEvents": [\n  ')
        for number in range(events // 8):
            file.write(("," if number else "") + ",".join(group(number)))
        file.write('\n  ],\n  "traceName": "t.json"\n}')


def measured(python: str, code: str, path: Path, rounds: int) -> dict[str, Any]:
    """The round with the least CPU, each a process of its own."""
    found = []
    for _ in range(rounds):
        done = subprocess.run(
            [python, "-c", code + SAID, str(path)], capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return dict(min(found, key=lambda each: float(each["cpu_s"])))


def main() -> None:
    """Our line, theirs, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, given.events)
        found = {"kvtrace": measured(sys.executable, OURS, path, given.rounds)}
        if given.peer:
            found["holistic_trace_analysis"] = measured(given.peer, THEIRS, path, given.rounds)
        size = path.stat().st_size
    if given.format == "json":
        print(json.dumps({"events": given.events, "bytes": size} | found))
        return
    print(f"{given.events:,} events, {size / 1e6:,.0f} MB")
    for name, line in found.items():
        seconds = f"{line['wall_s']:8.2f} s wall{line['cpu_s']:8.2f} s CPU"
        print(f"{name:26}{seconds}{line['peak_mib']:8,.0f} MiB peak{line['rows']:10,} rows")
    if given.peer:
        ours, theirs = found.values()
        times = {key: theirs[key] / ours[key] for key in ("wall_s", "cpu_s", "peak_mib")}
        print("theirs / ours: " + ", ".join(f"{key} {times[key]:.1f}" for key in times))


if __name__ == "__main__":
    main()
