"""What a whole import costs, against the obvious ways to read OTLP, in CPU seconds of one process.

    python -m tests.bench.import_otlp [--spans N] [--format protobuf|json|both] [--repeat N] [--large-mb MB]

kvtrace: everything on - decoding, words, aliases, duplicates, contradictions, sorting, Parquet, run.json.
protobuf: a plain loop over the official classes that fills Arrow columns and long attributes, in memory.
JSON: DuckDB, read_json with the columns given and unnest, into a table with a MAP of attributes, in memory.
Both baselines stop where the import begins to understand. Numbers are printed, never asserted.

    --large-mb   also the peak of resident memory of a child that imports a file of that size
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from kvtrace.importer import import_files
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.bench import deployment

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
CHILD = """
import sys
from pathlib import Path
from kvtrace.importer import import_files
report = import_files([Path(sys.argv[1])], Path(sys.argv[2]))
peak, = (int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.rows["span"], peak // 1024)
"""


def plain_loop(path: Path) -> int:
    """Spans and long attributes as Arrow tables, with the official classes."""
    names = ("trace_id", "span_id", "parent_span_id", "name", "start_ns", "end_ns", "scope", "service")
    columns: dict[str, list[object]] = {name: [] for name in names}
    rows: list[int] = []
    keys: list[str] = []
    values: list[str] = []
    number = 0
    data = path.read_bytes()
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = ExportTraceServiceRequest.FromString(data[at + 4 : at + 4 + size])
        at += 4 + size
        for group in body.resource_spans:
            service = next(a.value.string_value for a in group.resource.attributes if a.key == "service.name")
            for scope in group.scope_spans:
                for span in scope.spans:
                    columns["trace_id"].append(span.trace_id.hex())
                    columns["span_id"].append(int.from_bytes(span.span_id, "big"))
                    columns["parent_span_id"].append(int.from_bytes(span.parent_span_id, "big"))
                    columns["name"].append(span.name)
                    columns["start_ns"].append(span.start_time_unix_nano)
                    columns["end_ns"].append(span.end_time_unix_nano)
                    columns["scope"].append(scope.scope.name)
                    columns["service"].append(service)
                    for attribute in span.attributes:
                        kind = attribute.value.WhichOneof("value")
                        rows.append(number)
                        keys.append(attribute.key)
                        values.append(str(getattr(attribute.value, kind)))
                    number += 1
    ids = {name: pa.array(columns.pop(name), pa.uint64()) for name in ("span_id", "parent_span_id")}
    spans = pa.table(columns | ids)
    attributes = pa.table({"row": rows, "key": keys, "value": values})
    return spans.num_rows if attributes.num_rows else 0


VALUE = "STRUCT(stringValue VARCHAR, intValue VARCHAR, doubleValue DOUBLE, boolValue BOOLEAN)"
PAIRS = f'STRUCT("key" VARCHAR, "value" {VALUE})[]'
SPAN = (
    'STRUCT(traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, "name" VARCHAR, '
    f"startTimeUnixNano BIGINT, endTimeUnixNano BIGINT, attributes {PAIRS})"
)
SCOPES = f'STRUCT(scope STRUCT("name" VARCHAR), spans {SPAN}[])[]'
GROUPS = f"STRUCT(resource STRUCT(attributes {PAIRS}), scopeSpans {SCOPES})[]"
DUCKDB = """
    CREATE TABLE span AS
    WITH groups AS (
        SELECT unnest(resourceSpans) AS g FROM read_json($path, format = 'newline_delimited',
            maximum_object_size = 100000000, columns = {'resourceSpans': $groups})
    ), scopes AS (SELECT g.resource AS resource, unnest(g.scopeSpans) AS s FROM groups),
    spans AS (SELECT resource, s.scope AS scope, unnest(s.spans) AS p FROM scopes)
    SELECT p.traceId AS trace_id, p.spanId AS span_id, p.parentSpanId AS parent_span_id, p."name" AS name,
        p.startTimeUnixNano AS start_ns, p.endTimeUnixNano AS end_ns, scope."name" AS scope, resource,
        map_from_entries(list_transform(p.attributes, lambda a: {'k': a."key", 'v': coalesce(
            a."value".stringValue, a."value".intValue, a."value".doubleValue::VARCHAR,
            a."value".boolValue::VARCHAR)})) AS attributes
    FROM spans
"""


def duckdb_table(path: Path) -> int:
    """Spans as a DuckDB table with a MAP of attributes, on one thread."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute(DUCKDB.replace("$path", f"'{path}'").replace("$groups", f"'{GROUPS}'"))
        ((count,),) = connection.sql("SELECT count(*) FROM span").fetchall()
        return int(count)


def whole_import(path: Path, folder: Path) -> int:
    """A run that was not there before; returns the rows of its span table."""
    return import_files([path], folder / f"run-{time.monotonic_ns()}").rows["span"]


def cpu_s(work: Callable[[], int], repeat: int) -> tuple[float, int]:
    """CPU seconds of all threads, the least of some, and what the work counted."""
    taken = []
    for _ in range(repeat):
        start = time.process_time()
        count = work()
        taken.append(time.process_time() - start)
    return min(taken), count


def measure(name: str, path: Path, baseline: Callable[[Path], int], repeat: int) -> None:
    """One encoding: the import, the obvious way, their ratio, and what a span costs on disk."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        obvious_s, spans = cpu_s(lambda: baseline(path), repeat)
        import_s, rows = cpu_s(lambda: whole_import(path, folder), repeat)
        run = next(folder.glob("run-*"))
        on_disk = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    label = {"plain_loop": "plain loop over official classes", "duckdb_table": "DuckDB read_json + unnest"}
    print(f"{name}: {spans:,} spans in {path.stat().st_size / MIB:.1f} MiB, {rows:,} rows of span")
    for what, seconds in ((label[baseline.__name__], obvious_s), ("kvtrace import, everything on", import_s)):
        print(f"  {what:36} {seconds:7.2f} CPU s  {spans / seconds / 1000:7.0f}k spans/s")
    print(f"  {'import is':36} {obvious_s / import_s:7.2f} x as fast in CPU")
    packed = len(gzip.compress(path.read_bytes(), 6))
    print(
        f"  {'bytes a span':36} {on_disk / spans:7.1f} run, {path.stat().st_size / spans:.1f} raw, "
        f"{packed / spans:.1f} raw and gzip"
    )


def peak_memory(large_mb: int) -> None:
    """A file of some size, written body by body, and the peak of a child that imports it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "large.binpb"
        written = 0
        with path.open("wb") as file:
            for body in deployment.bodies(10**12):
                written += file.write(len(body).to_bytes(4, "big") + body)
                if written >= large_mb * MIB:
                    break
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(path), str(Path(scratch) / "run")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        rows, peak_mib = map(int, done.stdout.split())
        print(
            f"large: {written / MIB:.0f} MiB, {rows:,} rows of span, {time.monotonic() - started:.0f} s, "
            f"peak {peak_mib} MiB resident"
        )


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.import_otlp", description=__doc__)
    parser.add_argument("--spans", type=int, default=120_000)
    parser.add_argument("--format", choices=("protobuf", "json", "both"), default="both")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--large-mb", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.format in ("protobuf", "both"):
            path = Path(scratch) / "spans.binpb"
            deployment.write_frames(path, options.spans)
            measure("protobuf", path, plain_loop, options.repeat)
        if options.format in ("json", "both"):
            path = Path(scratch) / "spans.jsonl"
            deployment.write_json(path, options.spans)
            measure("json", path, duckdb_table, options.repeat)
    if options.large_mb:
        peak_memory(options.large_mb)


if __name__ == "__main__":
    main()
