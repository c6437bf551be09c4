"""How much faster the OTLP decoders are than the obvious way, in CPU time of one process, one run.

    python tests/bench/otlp_decode.py [spans]

protobuf: against a plain loop over the official classes that fills Arrow columns.
JSON: against DuckDB, read_json with the columns given (its fastest way) and unnest.
Both baselines return spans and long attributes, as we do. Numbers are printed, never asserted.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from kvtrace.sources.otlp import json_lines, protobuf
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

if TYPE_CHECKING:
    from collections.abc import Callable

SPANS_A_BODY = 2_000
BATCH_BYTES = 4 << 20
MEMBERS = {"string_value": "stringValue", "int_value": "intValue", "double_value": "doubleValue"}


def attributes(rng: random.Random, number: int) -> list[tuple[str, str, object]]:
    """Ten attributes as an engine's retrieve span has them."""
    return [
        ("kvtrace.op", "string_value", "load"),
        ("kvtrace.request.id", "string_value", f"cmpl-req-{number // 8:06d}-0-{rng.randrange(1 << 32):08x}"),
        ("kvtrace.tier.from", "string_value", rng.choice(["host", "disk", "peer"])),
        ("kvtrace.component", "string_value", "lmcache.l1"),
        ("kvtrace.tokens", "int_value", rng.randrange(1 << 14)),
        ("kvtrace.bytes", "int_value", rng.randrange(1 << 32)),
        ("kvtrace.submit_ns", "int_value", 1_795_963_408_160_979_193 + number * 1000),
        ("kvtrace.blocks", "int_value", rng.randrange(1 << 10)),
        ("gen_ai.latency.time_to_first_token", "double_value", rng.random()),
        ("gen_ai.request.temperature", "double_value", rng.choice([0.0, 0.7, 1.0])),
    ]


def body(rng: random.Random, first: int) -> bytes:
    """One ExportTraceServiceRequest."""
    message = TracesData()
    group = message.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "vllm"
    scope = group.scope_spans.add()
    scope.scope.name = "kvtrace"
    trace = rng.randbytes(16)
    for number in range(first, first + SPANS_A_BODY):
        if number % 8 == 0:
            trace = rng.randbytes(16)
        start = 1_795_963_408_160_979_193 + number * 1_000
        span = scope.spans.add(
            trace_id=trace, span_id=rng.randbytes(8), parent_span_id=rng.randbytes(8), name="retrieve",
            kind=1, start_time_unix_nano=start, end_time_unix_nano=start + rng.randrange(10**7),
        )  # fmt: skip
        for key, member, value in attributes(rng, number):
            setattr(span.attributes.add(key=key).value, member, value)
    return message.SerializeToString()


def as_json(payload: bytes) -> bytes:
    """The same body as the Collector writes it: one line of JSON."""
    message = TracesData.FromString(payload)

    def pairs(items: object) -> list[object]:
        return [
            {"key": item.key, "value": {MEMBERS[kind]: str(found) if kind == "int_value" else found}}
            for item in items  # type: ignore[attr-defined]
            for kind in [item.value.WhichOneof("value")]
            for found in [getattr(item.value, kind)]
        ]

    group = message.resource_spans[0]
    spans = [
        {
            "traceId": span.trace_id.hex(), "spanId": span.span_id.hex(),
            "parentSpanId": span.parent_span_id.hex(),
            "name": span.name, "kind": 1, "startTimeUnixNano": str(span.start_time_unix_nano),
            "endTimeUnixNano": str(span.end_time_unix_nano),
            "attributes": pairs(span.attributes), "status": {},
        }
        for span in group.scope_spans[0].spans
    ]  # fmt: skip
    scope = {"scope": {"name": "kvtrace"}, "spans": spans}
    resource = {"attributes": pairs(group.resource.attributes)}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()


def plain_loop(payloads: list[bytes]) -> tuple[pa.Table, pa.Table]:
    """What one writes first: official classes, appends, Arrow at the end."""
    spans: dict[str, list[object]] = {
        k: [] for k in ("trace", "span", "parent", "name", "start", "end", "code")
    }
    rows: list[int] = []
    keys: list[str] = []
    texts: list[str] = []
    for payload in payloads:
        for group in TracesData.FromString(payload).resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    spans["trace"].append(span.trace_id.hex())
                    spans["span"].append(int.from_bytes(span.span_id, "big"))
                    spans["parent"].append(int.from_bytes(span.parent_span_id, "big"))
                    spans["name"].append(span.name)
                    spans["start"].append(span.start_time_unix_nano)
                    spans["end"].append(span.end_time_unix_nano)
                    spans["code"].append(span.status.code)
                    row = len(spans["code"])
                    for attribute in span.attributes:
                        rows.append(row)
                        keys.append(attribute.key)
                        texts.append(str(getattr(attribute.value, attribute.value.WhichOneof("value"))))
    whole = {"span": pa.uint64(), "parent": pa.uint64()}
    columns = {name: pa.array(column, whole.get(name)) for name, column in spans.items()}
    return pa.table(columns), pa.table({"row": rows, "key": keys, "value": texts})


VALUE = "STRUCT(stringValue VARCHAR, intValue VARCHAR, doubleValue DOUBLE, boolValue BOOLEAN)"
PAIRS = f'STRUCT("key" VARCHAR, "value" {VALUE})[]'
SPAN = (
    "STRUCT(traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, name VARCHAR, startTimeUnixNano UBIGINT, "
    f"endTimeUnixNano UBIGINT, attributes {PAIRS}, status STRUCT(code INTEGER, message VARCHAR))"
)
SCOPES = f"STRUCT(scope STRUCT(name VARCHAR), spans {SPAN}[])[]"
GROUPS = f"STRUCT(resource STRUCT(attributes {PAIRS}), scopeSpans {SCOPES})[]"
SQL = """
    CREATE TEMP TABLE span AS
    WITH g AS (SELECT unnest(resourceSpans) AS r FROM read_json($path, format = 'newline_delimited',
                 maximum_object_size = 100000000, columns = {'resourceSpans': $groups})),
         s AS (SELECT unnest(r.scopeSpans) AS sc FROM g)
    SELECT row_number() OVER () AS row, sp.* FROM (SELECT unnest(sc.spans) AS sp FROM s)
"""
LONG = """
    SELECT row, a."key", coalesce(a."value".stringValue, a."value".intValue, a."value".doubleValue::VARCHAR,
                                  a."value".boolValue::VARCHAR) AS text
    FROM (SELECT row, unnest(attributes) AS a FROM span)
"""


def duckdb_json(path: Path) -> int:
    """DuckDB on one thread: spans and long attributes as Arrow."""
    con = duckdb.connect(config={"threads": 1})
    con.execute(SQL.replace("$path", f"'{path}'").replace("$groups", "'" + GROUPS.replace("'", "''") + "'"))
    spans = con.sql("SELECT * EXCLUDE (attributes) FROM span").to_arrow_table()
    return int(spans.num_rows + con.sql(LONG).to_arrow_table().num_rows)


def batched(items: list[bytes]) -> list[list[bytes]]:
    """Batches of about four megabytes, as the reader makes them."""
    found: list[list[bytes]] = [[]]
    for item in items:
        if sum(map(len, found[-1])) >= BATCH_BYTES:
            found.append([])
        found[-1].append(item)
    return found


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds, the better of two."""
    taken = []
    for _ in range(2):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    """Build, measure, print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rng = random.Random(7)
    payloads = [body(rng, first) for first in range(0, count, SPANS_A_BODY)]
    lines = [as_json(payload) for payload in payloads]
    binary, text = batched(payloads), batched(lines)
    results = {
        "protobuf: plain loop over official classes": cpu_s(lambda: [plain_loop(b) for b in binary]),
        "protobuf: kvtrace, loop": cpu_s(lambda: [protobuf.decode_with_loop(b) for b in binary]),
        "protobuf: kvtrace": cpu_s(lambda: [protobuf.decode(b) for b in binary]),
        "json: kvtrace": cpu_s(lambda: [json_lines.decode(b) for b in text]),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans.jsonl"
        path.write_bytes(b"\n".join(lines))
        results["json: DuckDB read_json + unnest"] = cpu_s(lambda: duckdb_json(path))
    for name, seconds in results.items():
        print(f"{name:45} {seconds:7.2f} CPU s  {count / seconds / 1000:6.0f}k spans/s")
    loop, fast = results["protobuf: plain loop over official classes"], results["protobuf: kvtrace"]
    print(f"protobuf: {loop / fast:.1f} x the plain loop")
    print(f"json: {results['json: DuckDB read_json + unnest'] / results['json: kvtrace']:.1f} x DuckDB")


if __name__ == "__main__":
    main()
