"""What `exposure` costs on a synthetic run: time, memory, and how it compares with a script in pandas.

    python -m tests.bench.exposure [--intervals 10000000] [--folder DIR] [--sample 200000]

    request i    |queue|lookup|disk->host|host->gpu|  step step step ... (85 of them)  |store|
    engine       step step wait(load) step ...       a request every 1.3 steps: 64 at a time

The run is on disk and the partition is computed in a child process from nothing, its reading, joining and
writing included. The script is what a practitioner writes first: read the files, explode the members of
the steps, group by request, merge transfers and steps, subtract. It runs on a smaller run of the same shape,
answers one of three windows and one of fourteen classes, and is measured with and without its reading.
Numbers are printed, never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from kvtrace import schema
from kvtrace.run import open_run
from kvtrace.sinks.parquet.arrow import MEMBER_TYPE, arrow_schema
from kvtrace.sinks.parquet.writer import write_table

ENGINES = 4
STEP_NS = 25_000_000
STEPS_A_REQUEST = 85
STEPS_BEFORE = 12
AT_ONCE = 64
WAIT_EVERY = 16
INTERVALS_A_REQUEST = 100
"""85 memberships, ~6 waits of the engine, 2 copies with 2 load waits, 2 queues, a lookup, a store."""
EPOCH_NS = 1_764_400_000_000_000_000
_FILE_ROWS = 250_000

Ints = npt.NDArray[np.int64]


def _write(folder: Path, rows: dict[str, Any], size: int, part: str) -> None:
    """Write rows of `span`, missing columns null, in files of a size that a writer would leave."""
    fields = arrow_schema("span")
    columns = []
    for field in fields:
        value = rows.get(field.name)
        if value is None or isinstance(value, str | int):
            columns.append(pa.repeat(pa.scalar(value, field.type), size))
        else:
            columns.append(value if isinstance(value, pa.Array) else pa.array(value, field.type))
    table = pa.Table.from_arrays(columns, schema=fields)
    for number, at in enumerate(range(0, size, _FILE_ROWS)):
        write_table(folder / "span" / f"{part}-{number}.parquet", "span", table.slice(at, _FILE_ROWS))


def _own(folder: Path, engine: str, arrival: Ints, random: np.random.Generator, first_span: int) -> None:
    """Rows of every request: itself, two queues, a lookup, two hops, a store."""
    size = arrival.size
    ids = pa.array([f"cmpl-{engine}-{number:07d}-0-92cea7c0" for number in range(size)])
    begin = (arrival // STEP_NS + STEPS_BEFORE) * STEP_NS
    finish = begin + STEPS_A_REQUEST * STEP_NS
    lookup = arrival + random.integers(1_000_000, 3_000_000, size)
    found = lookup + random.integers(2_000_000, 60_000_000, size)
    disk = found + random.integers(10_000_000, 90_000_000, size)
    host = disk + random.integers(1_000_000, 40_000_000, size)
    base: dict[str, Any] = {"run_id": "bench", "request_id": ids, "engine": engine, "evidence": "shim"}
    api = {**base, "process": f"{engine}/api", "observer": "api"}
    scheduler = {**base, "process": f"{engine}/scheduler", "observer": "scheduler"}
    worker = {**base, "process": f"{engine}/worker", "observer": "worker"}
    rows: list[dict[str, Any]] = [
        {**api, "op": "request", "start_ns": arrival, "end_ns": finish, "first_token_ns": begin + STEP_NS},
        {**scheduler, "op": "queue", "reason": "capacity", "start_ns": arrival, "end_ns": lookup},
        {**scheduler, "op": "queue", "reason": "remote_kv", "start_ns": lookup, "end_ns": begin},
        {**scheduler, "op": "lookup", "start_ns": lookup, "end_ns": found},
        {**worker, "op": "load", "tier_from": "disk", "tier_to": "host", "submit_ns": lookup}
        | {"start_ns": found, "end_ns": disk, "usable_ns": disk + 500_000},
        {**worker, "op": "load", "tier_from": "host", "tier_to": "gpu", "submit_ns": found}
        | {"start_ns": disk - 5_000_000, "end_ns": host, "usable_ns": begin - 1_000_000},
        {**worker, "op": "store", "start_ns": finish - 30_000_000, "end_ns": finish + 5_000_000},
    ]
    for number, row in enumerate(rows):
        row["span_id"] = first_span + number * size + np.arange(size)
        row["outcome"] = "ok"
        _write(folder, row, size, f"{engine}-{row['op']}{number}")


def _steps(folder: Path, engine: str, arrival: Ints, first_span: int) -> None:
    """Steps back to back with everybody whose time it is, and a wait every so often."""
    origin = int(arrival[0]) // STEP_NS
    first = arrival // STEP_NS + STEPS_BEFORE - origin
    request = np.repeat(np.arange(arrival.size), STEPS_A_REQUEST)
    step = np.repeat(first, STEPS_A_REQUEST) + np.tile(np.arange(STEPS_A_REQUEST), arrival.size)
    order = np.argsort(step, kind="stable")
    request, step = request[order], step[order]
    size = int(step[-1]) + 1
    ends = np.searchsorted(step, np.arange(size + 1))
    ids = pa.array([f"cmpl-{engine}-{number:07d}-0-92cea7c0" for number in range(arrival.size)])
    fields = {
        "request_id": ids.take(pa.array(request)),
        "phase": pa.repeat(pa.scalar("decode"), request.size),
        "scheduled_tokens": pa.repeat(pa.scalar(1, pa.int64()), request.size),
        "output_tokens": pa.repeat(pa.scalar(1, pa.int64()), request.size),
        "computed_before": pa.array(np.arange(request.size) % 8192),
    }
    members = pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)),
        pa.StructArray.from_arrays(list(fields.values()), fields=list(MEMBER_TYPE)),
    )
    start = (np.arange(size) + origin) * STEP_NS
    base: dict[str, Any] = {"run_id": "bench", "engine": engine, "evidence": "shim", "outcome": "ok"}
    row = {**base, "op": "step", "process": f"{engine}/scheduler", "observer": "scheduler"}
    row |= {"start_ns": start, "end_ns": start + STEP_NS - 300_000, "members": members}
    _write(folder, {**row, "span_id": first_span + np.arange(size)}, size, f"{engine}-step")
    wait = start[::WAIT_EVERY]
    row = {**base, "op": "wait", "reason": "load", "process": f"{engine}/worker", "observer": "worker"}
    row |= {"start_ns": wait, "end_ns": wait + 4_000_000}
    _write(folder, {**row, "span_id": first_span + size + np.arange(wait.size)}, wait.size, f"{engine}-wait")


def write_synthetic(folder: Path, intervals: int, seed: int = 7) -> int:
    """A run of about so many intervals; how many requests it has."""
    random = np.random.default_rng(seed)
    requests = max(intervals // INTERVALS_A_REQUEST // ENGINES, 1)
    folder.mkdir(parents=True)
    meta = {"schema_version": schema.VERSION, "run_id": "bench", "synthetic": True}
    (folder / "run.json").write_text(json.dumps(meta))
    for number in range(ENGINES):
        gap = STEP_NS * STEPS_A_REQUEST // AT_ONCE
        arrival = EPOCH_NS + np.arange(requests) * gap + random.integers(0, gap, requests)
        _own(folder, f"e{number}", arrival, random, number << 40)
        _steps(folder, f"e{number}", arrival, (number << 40) + 10 * requests)
    return requests * ENGINES


def count_intervals(folder: Path) -> int:
    """How many (request, layer, interval) the sweep gets, waits included."""
    from kvtrace.analyses.exposure.cache import blocks, prepare

    return sum(found.s.size for _, found in blocks(prepare(open_run(folder)), owners=False))


# --- The script in pandas ---------------------------------------------------------------------------------


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _exposed(group: pd.DataFrame) -> int:
    """Union of the transfers of one request minus its steps, ns."""
    transfers = group[group["op"] != "step"]
    steps = group[group["op"] == "step"]
    union = _merged(list(zip(transfers["start_ns"], transfers["end_ns"], strict=True)))
    compute = _merged(list(zip(steps["start_ns"], steps["end_ns"], strict=True)))
    exposed = sum(end - start for start, end in union)
    for start, end in union:
        for busy_start, busy_end in compute:
            exposed -= max(0, min(end, busy_end) - max(start, busy_start))
    return exposed


def pandas_cost(folder: Path) -> tuple[float, float, int]:
    """CPU seconds of the script on a small run, of its groupby alone, and how many intervals those have."""
    began = time.process_time()
    columns = ["op", "request_id", "start_ns", "end_ns", "members"]
    rows = pd.read_parquet(folder / "span", columns=columns)
    steps = rows[rows["op"] == "step"].explode("members").dropna(subset=["members"])
    steps["request_id"] = [member["request_id"] for member in steps["members"]]
    every = pd.concat([steps, rows[rows["op"].isin(["load", "store", "lookup"])]])
    ready = time.process_time()
    every.groupby("request_id")[["op", "start_ns", "end_ns"]].apply(_exposed)
    ended = time.process_time()
    return ended - began, ended - ready, len(every)


# --- The two sides ----------------------------------------------------------------------------------------


def _child(folder: str) -> None:
    """Compute the partition once and say what it cost."""
    from kvtrace.analyses.exposure import partition

    began, cpu = time.perf_counter(), time.process_time()
    path = partition(open_run(folder))
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**spent, "peak_bytes": peak, "answer_bytes": path.stat().st_size}))


def measured(folder: Path) -> dict[str, float]:
    """The cost of `exposure` on a run, in a process of its own."""
    shutil.rmtree(folder / ".derived", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.exposure", "--child", str(folder)],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--intervals", type=int, default=10_000_000)
    parser.add_argument("--sample", type=int, default=200_000, help="intervals of the pandas script")
    parser.add_argument("--folder", type=Path, help="keep the run here, or use the one that is there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "run"
        if not folder.exists():
            print(f"requests           {write_synthetic(folder, options.intervals):,}")
        found = measured(folder)
        intervals = count_intervals(folder)
        small = Path(scratch) / "small"
        write_synthetic(small, options.sample)
        whole, grouped, rows = pandas_cost(small)
    ours = found["cpu_s"] / intervals
    print(f"intervals          {intervals:,}")
    spent = f"{found['wall_s']:.1f} s wall, {found['cpu_s']:.1f} s CPU"
    print(f"exposure           {spent}, {ours * 1e6:.2f} us CPU an interval")
    print(f"peak memory        {found['peak_bytes'] / 2**30:.2f} GiB")
    for name, cpu in (("pandas, from files", whole), ("its groupby alone", grouped)):
        print(f"{name:18} {cpu / rows * 1e6:.2f} us CPU an interval: {cpu / rows / ours:.1f}x ours")


if __name__ == "__main__":
    main()
