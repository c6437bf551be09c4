"""A drawn OTLP recording of a vLLM + LMCache deployment, as large as a benchmark needs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

SPANS_A_REQUEST = 12
REQUESTS_A_BODY = 40
_EPOCH = 1_790_000_000_000_000_000


def _attribute(span: object, key: str, value: str | int | float) -> None:
    item = span.attributes.add()  # type: ignore[attr-defined]
    item.key = key
    if isinstance(value, str):
        item.value.string_value = value
    elif isinstance(value, int):
        item.value.int_value = value
    else:
        item.value.double_value = value


def _scope(body: ExportTraceServiceRequest, service: str, scope: str) -> ScopeSpans:
    resource: ResourceSpans = body.resource_spans.add()
    for key, value in (("service.name", service), ("service.instance.id", f"{service}-1")):
        item = resource.resource.attributes.add()
        item.key, item.value.string_value = key, value
    spans = resource.scope_spans.add()
    spans.scope.name = scope
    return spans


def _span(scope: ScopeSpans, rng: random.Random, name: str, trace: bytes, start: int, length: int) -> object:
    span = scope.spans.add()
    span.name, span.trace_id, span.span_id = name, trace, rng.randbytes(8)
    span.start_time_unix_nano, span.end_time_unix_nano = start, start + length
    return span


def _request(number: int, rng: random.Random, vllm: ScopeSpans, lmcache: ScopeSpans) -> None:
    """One request as its engine and its cache see it: a request, its lookup, loads and stores."""
    internal = f"cmpl-req-{number:07d}-0-{rng.getrandbits(32):08x}"
    start = _EPOCH + number * 3_000_000 + rng.randrange(1_000_000)
    trace = rng.randbytes(16)
    span = _span(vllm, rng, "llm_request", rng.randbytes(16), start, 900_000_000)
    for key, value in (
        ("gen_ai.request.id", internal[:-9]),
        ("gen_ai.usage.prompt_tokens", 1500),
        ("gen_ai.usage.completion_tokens", 64),
        ("gen_ai.latency.time_to_first_token", 0.1 + rng.random() / 10),
        ("gen_ai.latency.e2e", 0.9),
        ("gen_ai.latency.time_in_queue", rng.random() / 20),
        ("gen_ai.request.max_tokens", 64),
        ("gen_ai.request.n", 1),
        ("gen_ai.latency.time_in_model_prefill", 0.05),
        ("gen_ai.latency.time_in_model_decode", 0.7),
    ):
        _attribute(span, key, value)
    span = _span(lmcache, rng, "request", trace, start + 1000, 890_000_000)
    root = span.span_id  # type: ignore[attr-defined]
    for key, value in (
        ("session_id", internal),
        ("hit_tokens", 1280),
        ("requested_tokens", 1280),
        ("hit_rate", 1.0),
    ):
        _attribute(span, key, value)
    span = _span(lmcache, rng, "mp.lookup_prefetch", trace, start + 2000, 4_000_000)
    span.parent_span_id = root  # type: ignore[attr-defined]
    for key in ("requested_tokens", "hit_tokens", "l1_hit_tokens"):
        _attribute(span, key, "1280")
    for key, value in (
        ("session_id", internal),
        ("l2_hit_tokens", "0"),
        ("found_count", "5"),
        ("early_exit_reason", ""),
        ("model_name", "tiny-llama"),
        ("cache_salt", ""),
    ):
        _attribute(span, key, value)
    for part in range(SPANS_A_REQUEST - 3):
        name, count = ("mp.retrieve", "retrieved_count") if part % 2 else ("mp.store", "stored_count")
        span = _span(
            lmcache, rng, name, trace, start + 10_000_000 * (part + 1), 5_000_000 + rng.randrange(1_000_000)
        )
        span.parent_span_id = root  # type: ignore[attr-defined]
        for key, value in (
            ("session_id", internal),
            ("device", "cuda:0"),
            ("model_name", "tiny-llama"),
            ("transfer_key", f"{internal}#{number * SPANS_A_REQUEST + part}"),
            (count, "5"),
            ("engine_id", "1616881432641316317"),
            ("total_bytes", "2621440"),
            ("num_tokens", "1280"),
        ):
            _attribute(span, key, value)


def bodies(spans: int, seed: int = 7) -> Iterator[bytes]:
    """Export requests with about so many spans in all."""
    rng = random.Random(seed)
    number = 0
    while number * SPANS_A_REQUEST < spans:
        body = ExportTraceServiceRequest()
        vllm = _scope(body, "vllm", "vllm.tracing.otel")
        lmcache = _scope(body, "lmcache", "lmcache_mp.server")
        for _ in range(REQUESTS_A_BODY):
            _request(number, rng, vllm, lmcache)
            number += 1
        yield body.SerializeToString()


def write_frames(path: Path, spans: int) -> None:
    """The file that an OpenTelemetry Collector's file exporter would write."""
    with path.open("wb") as file:
        for body in bodies(spans):
            file.write(len(body).to_bytes(4, "big") + body)


def write_json(path: Path, spans: int) -> None:
    """The same as OTLP JSON lines."""
    import base64
    import json

    from google.protobuf.json_format import MessageToDict

    with path.open("w") as file:
        for body in bodies(spans):
            found = MessageToDict(ExportTraceServiceRequest.FromString(body))
            for resource in found["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        for key in ("traceId", "spanId", "parentSpanId"):
                            if key in span:
                                span[key] = base64.b64decode(span[key]).hex()
            file.write(json.dumps(found) + "\n")
