"""Rows as a drain hands them on: one request seen by two processes, what happened to it, and a step.

caller ──► request (api)        |------------------------------|
            request (scheduler)   |--------------------------|
             queue                |---|
             lookup                   |--| found 1,024 of 1,280
             load (failed)               |----|
step                                          |--| members a and b
request (open), of another caller      |--------------------- ...
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from kvtrace.sinks.parquet.arrow import arrow_schema, conform

T0 = 1_700_000_000_000_000_000
RUN = "0123456789abcdef0123456789abcdef"
A, B = "cmpl-a-0-92cea7c0", 'cmpl-<script>"b\n'
CALLERS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLERS_SPAN = 0x00F067AA0BA902B7
API = {"engine": "vllm-0", "process": "host-a/10", "observer": "api", "clock": "host", "evidence": "shim"}
SCHEDULER = API | {"process": "host-a/11", "observer": "scheduler"}
MEMBERS = [
    {
        "request_id": A, "phase": "prefill", "scheduled_tokens": 256, "output_tokens": 0,
        "computed_before": 1024,
    },
    {
        "request_id": B, "phase": "decode", "scheduled_tokens": 1, "output_tokens": 1, "computed_before": 99,
    },
]  # fmt: skip

SPANS: list[dict[str, Any]] = [
    {
        **API, "op": "request", "request_id": A, "span_id": 101, "start_ns": T0, "end_ns": T0 + 30_001,
        "first_token_ns": T0 + 20_003, "prompt_tokens": 1280, "output_tokens": 7, "status": "ok",
        "reported_cached_tokens": 1024, "attribution": "request", "trace_id": CALLERS_TRACE,
        "parent_span_id": CALLERS_SPAN, "attributes": [("finish_reason", "length")],
    },
    {
        **SCHEDULER, "op": "request", "request_id": A, "span_id": 201, "start_ns": T0 + 2_000,
        "end_ns": T0 + 29_000, "gpu_hit_tokens": 0, "selected_tokens": 1024, "status": "ok",
        "attribution": "request",
    },
    {
        **SCHEDULER, "op": "queue", "request_id": A, "span_id": 202, "start_ns": T0 + 2_000,
        "end_ns": T0 + 6_000, "reason": "capacity", "blocks": 10, "free_blocks": 3, "attribution": "request",
    },
    {
        **SCHEDULER, "op": "lookup", "request_id": A, "span_id": 203, "start_ns": T0 + 6_000,
        "end_ns": T0 + 9_000, "requested_tokens": 1280, "found_tokens": 1024, "attempt": 1, "outcome": "ok",
        "found_by_tier": [("host", 768), ("disk", 256)], "attribution": "request",
        "attributes": [("calls", "8763"), ("note", "=1+1 \x1b[31m")],
    },
    {
        **SCHEDULER, "op": "load", "request_id": A, "span_id": 2**64 - 2, "start_ns": T0 + 9_000,
        "end_ns": T0 + 14_000, "submit_ns": T0 + 9_000, "usable_ns": T0 + 15_000, "tokens": 1024, "blocks": 8,
        "bytes": 2**40 + 1, "tier_from": "host", "tier_to": "gpu", "component": "lmcache", "purpose": "reuse",
        "outcome": "failed", "reason": "io", "transfer_id": "t-1", "rank": 0, "attribution": "request",
    },
    {
        **SCHEDULER, "op": "step", "span_id": 204, "start_ns": T0 + 15_000, "end_ns": T0 + 17_000,
        "members": MEMBERS, "tokens": 257, "attribution": "operation", "outcome": "ok",
    },
    {
        **SCHEDULER, "op": "request", "request_id": B, "span_id": 205, "start_ns": T0 + 8_000,
        "end_ns": None, "status": "open", "outcome": "open", "attribution": "request",
    },
]  # fmt: skip
PROCESSES = [
    {"process": "host-a/10", "engine": "vllm-0", "role": "api"},
    {"process": "host-a/11", "engine": "vllm-0", "role": "scheduler"},
]


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the table that a drain gives; missing columns are null, repeated words a dictionary."""
    fields = arrow_schema(name)
    columns = [pa.array([{"run_id": RUN, **row}.get(f.name) for row in rows], f.type) for f in fields]
    return conform(pa.Table.from_arrays(columns, schema=fields), name)


def drained() -> dict[str, pa.Table]:
    """Everything, as one pass of a drain."""
    return {"span": table("span", SPANS), "process": table("process", PROCESSES)}
