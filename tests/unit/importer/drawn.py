"""Spans as engines and caches send them, drawn in milliseconds, and files of every encoding that holds them.

vllm        llm_request      |---------------------|     external id: cmpl-req-000-0
lmcache     mp.lookup_prefetch |--|                      internal id: cmpl-req-000-0-92cea7c0
            mp.retrieve            |----|
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
from google.protobuf.json_format import ParseDict
from kvtrace.importer import ImportReport, import_files
from kvtrace.run import Run, open_run
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sources.dialects import to_words
from kvtrace.sources.otlp import json_lines
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MS = 1_000_000
VLLM = {"service.name": "vllm", "service.instance.id": "vllm-1"}
LMCACHE = {"service.name": "lmcache", "service.instance.id": "lmcache-1"}
INTERNAL = "cmpl-req-000-0-92cea7c0"
EXTERNAL = "cmpl-req-000-0"
CLIENT = "req-000"


@dataclass(frozen=True)
class Sent:
    """One span of one instrumentation scope of one process."""

    resource: dict[str, Any]
    scope: str
    span: dict[str, Any]


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else "NaN"}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}


def _attributes(named: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in named.items()]


def span(
    name: str, start_ms: float, end_ms: float | None, attributes: dict[str, Any] | None = None, *,
    resource: dict[str, Any] | None = None, scope: str = "test", trace: int = 1, id: int | None = None,  # noqa: A002
    parent: int | None = None, status: int = 0, times_ns: tuple[int, int] | None = None,
) -> Sent:  # fmt: skip
    """Any span; without an id it has one of its own content, so that the same span twice is a duplicate."""
    start, end = times_ns or (round(start_ms * MS), 0 if end_ms is None else round(end_ms * MS))
    drawn = repr((name, start, end, attributes, trace, parent))
    number = id or int.from_bytes(hashlib.sha256(drawn.encode()).digest()[:7], "big") + 1
    found: dict[str, Any] = {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": _attributes(attributes or {}),
    }
    found |= {"parentSpanId": f"{parent:016x}"} if parent else {}
    found |= {"status": {"code": status}} if status else {}
    return Sent(resource if resource is not None else {"service.instance.id": "p0"}, scope, found)


def op(word: str, start_ms: float, end_ms: float | None, request: str | None = "r0", **named: Any) -> Sent:
    """A canonical span; `tier_from="host"` stands for kvtrace.tier.from, `more={...}` for anything else."""
    more = named.pop("more", {})
    how = {key: named.pop(key) for key in ("resource", "trace", "id", "parent", "times_ns") if key in named}
    dotted = {"tier_from": "tier.from", "tier_to": "tier.to", "transfer_id": "transfer.id"}
    attributes = {f"kvtrace.{dotted.get(key, key)}": value for key, value in named.items()}
    identity = {} if request is None else {"kvtrace.request.id": request}
    return span(word, start_ms, end_ms, {"kvtrace.op": word, **identity, **attributes, **more}, **how)


def llm_request(
    external: str, start_ms: float, end_ms: float | None, *, first_ms: float | None = None,
    queue_ms: float | None = None, prompt: int = 1500, output: int = 12, **how: Any,
) -> Sent:  # fmt: skip
    """The span that vLLM sends of a request; seconds are counted from its start."""
    seconds = {"gen_ai.latency.time_to_first_token": first_ms, "gen_ai.latency.time_in_queue": queue_ms}
    attributes = {
        "gen_ai.request.id": external,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": output,
        **{name: value / 1000 for name, value in seconds.items() if value is not None},
        **how.pop("more", {}),
    }
    how = {"resource": VLLM, "scope": "vllm.tracing.otel", "trace": int(start_ms * 1000) + 7, **how}
    return span("llm_request", start_ms, end_ms, attributes, **how)


def lmcache(name: str, session: str, start_ms: float, end_ms: float | None, **how: Any) -> Sent:
    """A span of LMCache's server: every attribute is text, but those of its root."""
    attributes = {"session_id": session, **how.pop("more", {})}
    if name != "request":
        attributes = {key: str(value) for key, value in attributes.items()}
    return span(
        name, start_ms, end_ms, attributes, **{"resource": LMCACHE, "scope": "lmcache_mp.server", **how}
    )


def lookup(
    session: str,
    start_ms: float,
    end_ms: float,
    asked: int,
    l1: int = 0,
    l2: int = 0,
    early: str = "",
    **how: Any,
) -> Sent:
    found = {"found_count": (l1 + l2) // 256, "requested_tokens": asked, "hit_tokens": l1 + l2,
             "l1_hit_tokens": l1, "l2_hit_tokens": l2, "early_exit_reason": early,
             "model_name": "tiny-llama", "cache_salt": ""}  # fmt: skip
    return lmcache("mp.lookup_prefetch", session, start_ms, end_ms, more=found, **how)


def _moved(count: str, chunks: int, session: str, number: int) -> dict[str, Any]:
    return {count: chunks, "num_tokens": chunks * 256, "total_bytes": chunks * 524_288, "device": "cpu",
            "engine_id": 1616881432641316317, "model_name": "tiny-llama",
            "transfer_key": f"{session}#{number}"}  # fmt: skip


def retrieve(
    session: str, start_ms: float, end_ms: float | None, chunks: int, number: int, **how: Any
) -> Sent:
    return lmcache(
        "mp.retrieve",
        session,
        start_ms,
        end_ms,
        more=_moved("retrieved_count", chunks, session, number),
        **how,
    )


def store(session: str, start_ms: float, end_ms: float | None, chunks: int, number: int, **how: Any) -> Sent:
    return lmcache(
        "mp.store", session, start_ms, end_ms, more=_moved("stored_count", chunks, session, number), **how
    )


def body(*sent: Sent) -> dict[str, Any]:
    """One ExportTraceServiceRequest as OTLP JSON, spans in order, grouped as far as order allows."""
    groups: list[dict[str, Any]] = []
    for one in sent:
        resource = {"attributes": _attributes(one.resource)}
        if (
            not groups
            or groups[-1]["resource"] != resource
            or groups[-1]["scopeSpans"][-1]["scope"] != {"name": one.scope}
        ):
            groups.append({"resource": resource, "scopeSpans": [{"scope": {"name": one.scope}, "spans": []}]})
        groups[-1]["scopeSpans"][-1]["spans"].append(one.span)
    return {"resourceSpans": groups}


def binary(*sent: Sent) -> bytes:
    """The same as protobuf."""
    found = copy.deepcopy(body(*sent))
    for group in found["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for one in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in one:
                        one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()
    return ParseDict(found, ExportTraceServiceRequest()).SerializeToString()


def frames(*sent: Sent, a_frame: int = 2) -> bytes:
    """Length-prefixed protobuf, as the Collector's file exporter writes it."""
    bodies = [binary(*sent[at : at + a_frame]) for at in range(0, len(sent), a_frame)]
    return b"".join(len(one).to_bytes(4, "big") + one for one in bodies)


def lines(*sent: Sent, a_line: int = 2) -> bytes:
    """OTLP JSON lines."""
    return b"".join(
        json.dumps(body(*sent[at : at + a_line])).encode() + b"\n" for at in range(0, len(sent), a_line)
    )


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


ENCODINGS = {
    "json": lines,
    "json, gzip": lambda *sent: gzip.compress(lines(*sent)),
    "json, zstd": lambda *sent: zstd(lines(*sent)),
    "frames": frames,
    "frames, gzip": lambda *sent: gzip.compress(frames(*sent)),
    "frames, zstd": lambda *sent: zstd(frames(*sent)),
    "body": binary,
    "body, gzip": lambda *sent: gzip.compress(binary(*sent)),
    "body, zstd": lambda *sent: zstd(binary(*sent)),
}


def hash_log(*lookups: tuple[str, float, int]) -> bytes:
    """LMCache's lookup-hash log: (session, time in ms, chunks asked for) a line."""
    return b"".join(
        json.dumps({"timestamp": at / 1000, "request_id": session, "model_name": "tiny-llama",
                    "chunk_size": 256, "seq_len": 1500,
                    "chunk_hashes": [f"0x{session}:{n}" for n in range(chunks)],
                    "dtypes": ["bfloat16"], "shapes": [[2, 2]]}).encode() + b"\n"
        for session, at, chunks in lookups
    )  # fmt: skip


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def imported(folder: Path, *inputs: bytes | Path | Sequence[Sent], **options: Any) -> Run:
    """A run of contents (spans become OTLP JSON lines) and paths."""
    return open_run(reported(folder, *inputs, **options).run)


def reported(folder: Path, *inputs: bytes | Path | Sequence[Sent], **options: Any) -> ImportReport:
    """The same, as what the importer says about it."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir()))
    paths = []
    for at, one in enumerate(inputs):
        if isinstance(one, bytes):
            paths.append(written(folder / f"input-{number}-{at}", one))
        elif isinstance(one, (list, tuple)):
            paths.append(written(folder / f"input-{number}-{at}", lines(*one)))
        else:
            paths.append(one)  # type: ignore[arg-type]
    return import_files(paths, folder / f"run-{number}", **options)


NOUNS = ("request", "queue", "lookup", "transfer", "store", "wait", "step", "member", "hold", "health")
LISTS = ("request_key", "alias", "identity", "process", "loss", "span")


def tables(run: Run, *names: str, without: Iterable[str] = ("run_id",)) -> dict[str, list[tuple[Any, ...]]]:
    """Nouns and tables as sorted rows, to compare runs by."""
    left_out = set(without)
    found = {}
    for name in names or (*NOUNS, *LISTS):
        if name in TABLES:
            files = run.files(name)
            frame = pl.concat([pl.read_parquet(file) for file in files]) if files else _nothing(name)
        else:
            frame = run.connection().sql(f"FROM {name}").pl()
        rows = frame.drop([column for column in frame.columns if column in left_out]).rows()
        found[name] = sorted(rows, key=repr)
    return found


def query(run: Run, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query over nouns and tables; making all of the nouns takes longer than a small import."""
    named = set(re.findall(r"(?:FROM|JOIN)\s+(\w+)", sql))
    if not named <= set(TABLES):
        return run.connection().sql(sql).fetchall()
    with duckdb.connect(":memory:") as connection:
        for table in named:
            files = run.files(table)
            found = pl.concat([pl.read_parquet(file) for file in files]) if files else _nothing(table)
            connection.register(table, found)
        return connection.sql(sql).fetchall()


def _nothing(table: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(arrow_schema(table).empty_table()))


def losses(run: Run) -> list[tuple[str, str | None, int]]:
    """What was lost: (cause, operation, count)."""
    return query(run, "SELECT cause, op, sum(count)::BIGINT FROM loss GROUP BY ALL ORDER BY ALL")


def words(*sent: Sent) -> tuple[list[dict[str, Any]], list[tuple[str, str | None, int]]]:
    """What the dialects make of spans before anything is joined: rows without nulls, and losses."""
    found = to_words(json_lines.decode([json.dumps(body(*sent)).encode()]), "input")
    rows = [
        {name: value for name, value in row.items() if value is not None}
        for table in found.spans
        for row in table.to_pylist()
    ]
    return rows, [(loss.cause, loss.op, loss.count) for loss in found.losses]


def word(one: Sent) -> dict[str, Any]:
    """The first row of one span, its attributes as a dict."""
    row = words(one)[0][0]
    return row | {"attributes": dict(row.get("attributes", ()))}
