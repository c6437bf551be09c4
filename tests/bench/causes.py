"""What `blockers`, `fallbacks`, `held_share` and `explain` cost on a drawn run of a million requests.

    python -m tests.bench.causes [--requests 1000000] [--layers 17] [--steps 20] [--folder DIR]

    request i    |queue(capacity)|queue(lookup) lookup|load|step x 8          |hold, store|
    engine       a request every 2 ms, 64 at a time; every 16th step waits for somebody's load

Ten rows a request: the request (front end and scheduler), queues with the blocks they lack, a lookup, a load,
a store, a hold, its share of the steps, and two keys. With `--layers` a worker copied every load so many
times on each of two hops, a group of layers each, under one transfer's id: 17 are thirty rows a request. Each
question runs in a process of its own, `exposure` first: its partition is what `explain` reads. Numbers are
printed, never asserted.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kvtrace import schema
from kvtrace.run import open_run
from kvtrace.sinks.parquet.arrow import MEMBER_TYPE, arrow_schema
from kvtrace.sinks.parquet.writer import write_table

ENGINES = 4
GAP_NS = 2_000_000
STEP_NS = 8_000_000
WAIT_EVERY = 16
EPOCH_NS = 1_764_400_000_000_000_000
MS = 1_000_000
_FILE_ROWS = 250_000
QUESTIONS = ("exposure", "blockers", "fallbacks", "hold", "held_share", "explain")


@dataclass(frozen=True)
class Shape:
    """How many rows a request has beyond the ten: copies a hop of its load, and steps that serve it."""

    layers: int = 0
    steps: int = 8


def _write(folder: Path, table: str, rows: dict[str, Any], size: int, part: str) -> int:
    """Write rows, missing columns null, in files of a size that a writer would leave."""
    columns = []
    fields = arrow_schema(table)
    for field in fields:
        value = rows.get(field.name)
        if value is None or isinstance(value, str | int):
            columns.append(pa.repeat(pa.scalar(value, field.type), size))
        else:
            columns.append(value if isinstance(value, pa.Array) else pa.array(value, field.type))
    whole = pa.Table.from_arrays(columns, schema=fields)
    for number, at in enumerate(range(0, size, _FILE_ROWS)):
        write_table(folder / table / f"{part}-{number}.parquet", table, whole.slice(at, _FILE_ROWS))
    return size


def _requests(
    folder: Path, engine: str, size: int, random: np.random.Generator, first: int, shape: Shape
) -> int:
    """Rows of every request of an engine."""
    arrival = EPOCH_NS + np.arange(size) * GAP_NS + random.integers(0, GAP_NS, size)
    ids = pa.array([f"cmpl-{engine}-{number:07d}-0-92cea7c0" for number in range(size)])
    crowded = random.random(size) < 0.25
    left = arrival + np.where(crowded, random.integers(5 * MS, 60 * MS, size), random.integers(1, MS, size))
    found = left + random.integers(1 * MS, 4 * MS, size)
    begin = (found // STEP_NS + 2) * STEP_NS
    finish = begin + shape.steps * STEP_NS
    ok = random.random(size) < 0.6
    tokens = np.where(ok, 1024, 0)
    base: dict[str, Any] = {"run_id": "bench", "request_id": ids, "engine": engine, "evidence": "shim"}
    base["attempt"] = 1
    api = {**base, "process": f"{engine}/api", "observer": "api"}
    scheduler = {**base, "process": f"{engine}/scheduler", "observer": "scheduler"}
    outcome = pa.array(np.where(ok, "ok", "miss"))
    loading = np.where(ok, found + 3 * MS, found)
    rows: list[dict[str, Any]] = [
        {**api, "op": "request", "start_ns": arrival, "end_ns": finish, "first_token_ns": begin + STEP_NS}
        | {"prompt_tokens": 1500, "output_tokens": shape.steps - 1, "status": "ok"},
        {**scheduler, "op": "request", "start_ns": arrival, "end_ns": finish, "gpu_hit_tokens": 0}
        | {"selected_tokens": tokens},
        {**scheduler, "op": "queue", "reason": "capacity", "start_ns": arrival, "end_ns": left}
        | {"blocks": random.integers(12, 40, size), "free_blocks": random.integers(0, 12, size)},
        {**scheduler, "op": "queue", "reason": "lookup", "start_ns": left, "end_ns": found},
        {**scheduler, "op": "lookup", "start_ns": left, "end_ns": found, "requested_tokens": 1500}
        | {"found_tokens": tokens, "outcome": outcome},
        {**scheduler, "op": "load", "tier_from": "host", "tier_to": "gpu", "tokens": tokens}
        | {"submit_ns": found, "start_ns": found, "end_ns": loading, "usable_ns": loading}
        | {"outcome": pa.array(np.where(ok, "ok", "skipped"))},
        {**scheduler, "op": "store", "tier_from": "gpu", "tier_to": "host", "outcome": "ok"}
        | {"start_ns": finish, "end_ns": finish + random.integers(5 * MS, 40 * MS, size)},
        {**scheduler, "op": "hold", "reason": "store", "blocks": 12, "start_ns": finish}
        | {"end_ns": finish + random.integers(5 * MS, 40 * MS, size)},
    ]
    written = 0
    for number, row in enumerate(rows):
        spans = first + number * size + np.arange(size)
        written += _write(folder, "span", {**row, "span_id": spans}, size, f"{engine}-{number}")
    first += len(rows) * size
    if shape.layers:
        for number, row in enumerate(
            _copies(base, engine, ids.filter(pa.array(ok)), found[ok], loading[ok], shape.layers)
        ):
            spans = first + number * ok.sum() + np.arange(ok.sum())
            written += _write(
                folder, "span", {**row, "span_id": spans}, int(ok.sum()), f"{engine}-copy{number}"
            )
        first += (number + 1) * ok.sum()
    keys = {"run_id": "bench", "request_id": ids, "attempt": 1, "key_space": "k", "tokens": 256}
    keys |= {"time_ns": left, "position": 0}
    keys["key"] = pa.array([f"{value:016x}" for value in random.integers(0, size // 2, size)])
    _write(folder, "request_key", keys, size, engine)
    return written + _steps(folder, engine, ids, begin, first, shape.steps)


def _copies(
    base: dict[str, Any], engine: str, ids: pa.Array, start: Any, end: Any, layers: int
) -> list[dict[str, Any]]:
    """What a worker saw of these loads: a copy a layer group on either hop, one behind the other."""
    worker = {**base, "op": "load", "process": f"{engine}/worker", "observer": "worker", "outcome": "ok"}
    worker |= {"request_id": ids, "transfer_id": pa.array([f"{name}#load" for name in ids.to_pylist()])}
    worker |= {"bytes": 1 << 20, "tokens": 1024}
    share = (end - start) // (2 * layers)
    return [
        {**worker, "tier_from": tiers[0], "tier_to": tiers[1], "submit_ns": start}
        | {"start_ns": start + at * share, "end_ns": start + (at + 1) * share}
        for hop, tiers in enumerate((("disk", "host"), ("host", "gpu")))
        for at in range(hop * layers, (hop + 1) * layers)
    ]


def _steps(folder: Path, engine: str, ids: pa.Array, begin: Any, first: int, steps: int) -> int:
    """Steps of an engine with their members, and a wait in every sixteenth."""
    grid = (begin - begin.min()) // STEP_NS
    step = (grid[:, None] + np.arange(steps)).ravel()
    order = np.argsort(step, kind="stable")
    member, count = order // steps, np.bincount(step)
    nth = order % steps
    fields = {
        "request_id": ids.take(pa.array(member)),
        "phase": pa.array(np.where(nth == 0, "prefill", "decode")),
        "scheduled_tokens": pa.array(np.where(nth == 0, 476, 1)),
        "output_tokens": pa.repeat(pa.scalar(1, pa.int64()), member.size),
        "computed_before": pa.array(np.where(nth == 0, 1024, 1499 + nth)),
    }
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    structs = pa.StructArray.from_arrays(list(fields.values()), fields=list(MEMBER_TYPE))
    members = pa.ListArray.from_arrays(pa.array(offsets), structs)
    start = begin.min() + np.arange(count.size) * STEP_NS
    base: dict[str, Any] = {"run_id": "bench", "engine": engine, "evidence": "shim"}
    row = {**base, "op": "step", "process": f"{engine}/scheduler", "observer": "scheduler"}
    row |= {"start_ns": start, "end_ns": start + STEP_NS - MS, "members": members}
    _write(folder, "span", {**row, "span_id": first + np.arange(count.size)}, count.size, f"{engine}-step")
    wait = np.arange(0, count.size, WAIT_EVERY)
    row = {**base, "op": "wait", "reason": "load", "process": f"{engine}/worker", "observer": "worker"}
    row |= {"start_ns": start[wait], "end_ns": start[wait] + 2 * MS}
    row["request_id"] = ids.take(pa.array(np.minimum(wait, len(ids) - 1)))
    row["span_id"] = first + count.size + np.arange(wait.size)
    return count.size + _write(folder, "span", row, wait.size, f"{engine}-wait")


def write_drawn(folder: Path, requests: int, shape: Shape | None = None) -> int:
    """A run of so many requests; how many rows of `span` it has."""
    random = np.random.default_rng(7)
    folder.mkdir(parents=True)
    config = {"num_gpu_blocks": 4000}
    engines = [{"engine": f"e{number}", "config": config} for number in range(ENGINES)]
    meta = {"schema_version": schema.VERSION, "run_id": "bench", "synthetic": True, "engines": engines}
    (folder / "run.json").write_text(json.dumps(meta))
    size, shape = requests // ENGINES, shape or Shape()
    return sum(
        _requests(folder, f"e{number}", size, random, number << 40, shape) for number in range(ENGINES)
    )


def _child(question: str, folder: str) -> None:
    """Ask one question and say what it cost."""
    from kvtrace.analyses import question as find

    began, cpu = time.perf_counter(), time.process_time()
    rows = find(question)(open_run(folder))
    spent = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "rows": rows.height}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({**spent, "peak_gib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--steps", type=int, default=Shape.steps)
    parser.add_argument("--folder", type=Path, help="keep the run here, or use the one that is there")
    parser.add_argument("--questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*options.child)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "run"
        if not folder.exists():
            shape = Shape(options.layers, options.steps)
            print(f"rows of span       {write_drawn(folder, options.requests, shape):,}")
        shutil.rmtree(folder / ".derived", ignore_errors=True)
        for question in options.questions:
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.causes", "--child", question, str(folder)],
                check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            )  # fmt: skip
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{question:12} {found['rows']:>10,} rows  {found['wall_s']:6.1f} s wall  "
                f"{found['cpu_s']:6.1f} s CPU  {found['peak_gib']:.2f} GiB"
            )


if __name__ == "__main__":
    main()
