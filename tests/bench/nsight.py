"""What reading an Nsight Systems export costs: `python -m tests.bench.nsight [--copies 100000]`.

The export is drawn: as many calls as copies, a range around every tenth, as many kernels that nobody asks
for. Beside it what fetching the same rows from SQLite alone costs, in the same process. CPU seconds, printed
and never asserted.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from kvtrace.sources import nsight
from kvtrace.sources.decoded import Options
from kvtrace.sources.stream import open_input
from tests.unit.sources.profilers import Export

KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, correlationId INTEGER)"
TABLES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


def write(path: Path, copies: int) -> Path:
    """An export of so many copies."""
    made = Export(path)
    made.db.execute(KERNELS)
    for number in range(copies):
        at = number * 10_000
        made.call(at + 100, number).copy(at + 2000, at + 5000, number, 1 + number % 2)
        made.add("CUPTI_ACTIVITY_KIND_KERNEL", start=at, end=at + 9000, correlationId=number)
        if number % 10 == 0:
            made.range(f"kvtrace:req-{number}:load", at, at + 9000)
    return made.done()


def decoded(path: Path) -> int:
    """How many rows the decoder makes of it."""
    with open_input(path) as stream:
        parts = nsight.read(stream, path.name, Options())
        return sum(frame.height for part in parts for frame in part.tables.values())


def fetched(path: Path) -> int:
    """The same tables as Python objects, without a meaning."""
    with closing(sqlite3.connect(path)) as db:
        return sum(len(db.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES)


def main() -> None:
    """One line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "report.sqlite", given.copies)
        began = time.process_time()
        rows = decoded(path)
        own = time.process_time() - began
        fetched(path)
        bare = time.process_time() - began - own
        size = path.stat().st_size / 1e6
    print(
        f"{rows:,} rows of {size:,.0f} MB: {rows / own:,.0f} rows and {size / own:,.1f} MB a CPU second, "
        f"{own / bare:.1f} x the bare fetch"
    )


if __name__ == "__main__":
    main()
