"""How long the page of a million requests takes, over a partition that is already there.

    python -m tests.bench.report_million [REQUESTS] [FOLDER]

Writes a synthetic run (a request, a lookup, a load and a store each) and a partition of 18 rows a request
in place of the computed one, whose own cost another benchmark measures. Numbers are printed, not asserted.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
from kvtrace import schema
from kvtrace.analyses.exposure.cache import ALGORITHM
from kvtrace.panels import panel
from kvtrace.panels._facts import facts
from kvtrace.report import read_dashboard, write_report
from kvtrace.run import Run, open_run
from kvtrace.run.derived import derived_folder, files_hash
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MS = 1_000_000
START_NS = 1_764_400_000_000_000_000
BATCH = 100_000

_PARTITION = """
COPY (
    SELECT
        'cmpl-req-' || lpad(r::VARCHAR, 7, '0') AS request_id, w AS "window", k.class AS class, k.hop AS hop,
        CASE WHEN hash(r, w, k.class) % 10 < 7 THEN (hash(r, w, k.class, 1) % 50000000)::BIGINT ELSE 0 END
            AS exposed_ns,
        60000000::BIGINT AS total_ns, 0::BIGINT AS hidden_by_compute_ns, 0::BIGINT AS hidden_by_wait_ns,
        0::BIGINT AS hidden_by_queue_ns, 0::BIGINT AS hidden_by_load_ns, 0::BIGINT AS hidden_by_rest_ns,
        70000000::BIGINT AS work_ns, 0::BIGINT AS open_ns, 'exact' AS bound, r % 1000 = 0 AS censored,
        5::BIGINT AS agreement
    FROM range({requests}) t(r), (VALUES ('ttft'), ('decode'), ('e2e')) ws(w),
        (VALUES ('compute', NULL), ('wait_load', NULL), ('load', 'disk->host'), ('load', 'host->gpu'),
            ('lookup', NULL), ('other', NULL)) k(class, hop)
) TO '{path}' (FORMAT parquet, COMPRESSION zstd)
"""


def spans(requests: int) -> Iterator[pa.Table]:
    """Four rows a request, 2 ms apart."""
    random = np.random.default_rng(1)
    for first in range(0, requests, BATCH):
        number = np.arange(first, min(first + BATCH, requests))
        ids = pa.array([f"cmpl-req-{value:07d}" for value in number])
        at = START_NS + number * 2 * MS
        took = (random.gamma(2, 20, number.size) * MS).astype(np.int64) + MS
        asked = random.integers(1, 40, number.size) * 256
        found = (asked * random.random(number.size)).astype(np.int64) // 256 * 256
        common = {
            "request_id": ids,
            "engine": pa.array(["e0"] * number.size),
            "process": pa.array(["e0/api"] * number.size),
        }
        for op, begin, end, more in (
            (
                "request",
                at,
                at + 3 * took,
                {"first_token_ns": at + took, "prompt_tokens": asked, "output_tokens": asked // 16},
            ),
            ("lookup", at + MS // 4, at + MS // 2, {"requested_tokens": asked, "found_tokens": found}),
            ("load", at + MS // 2, at + MS // 2 + took // 3, {"tokens": found, "bytes": found * 2048}),
            (
                "store",
                at + took,
                at + took + took // 4,
                {"tokens": asked - found, "bytes": (asked - found) * 2048},
            ),
        ):
            tiers = {"load": ("host", "gpu"), "store": ("gpu", "host")}.get(op)
            columns = (
                common
                | {
                    "op": pa.array([op] * number.size),
                    "start_ns": begin,
                    "end_ns": end,
                    "span_id": 4 * number,
                }
                | more
            )
            if tiers:
                columns |= {
                    name: pa.array([tier] * number.size)
                    for name, tier in zip(("tier_from", "tier_to"), tiers, strict=True)
                }
                columns["outcome"] = pa.array(["ok"] * number.size)
            yield pa.table(columns)


def build(folder: Path, requests: int) -> Run:
    """The run, and the partition where the report looks for it."""
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(
            json.dumps({"schema_version": schema.VERSION, "synthetic": "tests/bench/report_million.py"})
        )
        write_table(folder / "span" / "part-0.parquet", "span", spans(requests))
    run = open_run(folder)
    path = derived_folder(run) / f"exposure-{files_hash(run, ALGORITHM)}.parquet"
    if not path.exists():
        duckdb.connect().execute(_PARTITION.format(requests=requests, path=path))
    return run


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp()) / "run"
    run = build(folder, requests)
    output = folder.parent / "report.html"
    timed(f"page of {requests:,} requests", lambda: write_report([run], output))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {output.stat().st_size:,} bytes, peak memory {peak:,.0f} MiB; of its time:")
    timed("facts", lambda: facts(run))
    for entry in read_dashboard():
        timed(
            f"{entry.name} {entry.options or ''}",
            functools.partial(panel(entry.name).data, run, **entry.options),
        )


def timed(what: str, run: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    print(f"{time.perf_counter() - wall:6.1f} s, {time.process_time() - cpu:6.1f} s of CPU  {what}")


if __name__ == "__main__":
    main()
