"""Report of Dynamo's offline replay (dynamo.replay.run_trace_replay): a simulation, nothing of it happened.

    {"summary": {...}, "per_request": [{"uuid": ..., "routing_history": [...], ...}], ...}

One row a request and one a routing, all of evidence `predicted`: what a simulator says it reused is a
forecast (predicted_tokens), never a result, so reported_cached_tokens stays null and no row has an observer
but the simulated router. Its clock begins at 0: rows begin at SIMULATION_START_NS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.dynamo.names import MS, engine
from kvtrace.sources.records import Rows, at, attributes, parse, parsed, span_ns, text, whole
from kvtrace.sources.stream import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "dynamo-replay-report"
MAX_BYTES = Limits().max_message_bytes
SIMULATION_START_NS = 1_000_000_000
"""Where a simulation's 0 is put: no row of a run begins at 0."""
SIMULATED = "simulated requests (times count from a second after 1970; all rows are predicted)"
_SUMMARY = re.compile(rb'\s*\{\s*"summary"\s*:\s*\{')
_KEPT = (
    "first_admit_ms", "admission_count", "readmission_count", "requested_output_length", "terminal_status",
    "turn_index", "prefill_worker_idx", "decode_worker_idx",
)  # fmt: skip
_ROUTED = (
    "pool", "outcome", "logical_worker_id", "scheduler_id", "dp_rank", "selected_overlap_blocks",
    "best_available_overlap_blocks", "overlap_regret_blocks", "queue_wait_ms",
)  # fmt: skip
_DONE = {
    "completed": "ok",
    "rejected": "error",
    "failed": "error",
    "error": "error",
    "cancelled": "aborted",
    "aborted": "aborted",
}


def looks_like(head: bytes) -> bool:
    """Whether a file begins as such a report does."""
    return bool(_SUMMARY.match(head)) and b'"completed_requests"' in head and b"cache_reused_ratio" in head


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a report, which is one JSON document: up to MAX_BYTES of it are read."""
    del options
    rows = Rows(source)
    limit = MAX_BYTES
    found = bytearray()
    while len(found) <= limit and (more := stream.read()):
        found += more
    for item in stream.losses:
        rows.refuse(item.detail, count=item.count)
    if len(found) > limit:
        rows.refuse(f"document longer than {limit:,} bytes")
        yield rows.end()
        return
    value = parse(bytes(found))
    requests = at(value, "per_request") if parsed(value) else None
    if not isinstance(requests, list):
        rows.refuse("document that is no report of a replay with per_request (capture_per_request=True)")
        requests = []
    for request in requests:
        take(request, rows)
        if rows.full:
            yield rows.part()
    yield rows.end()


def take(request: Any, rows: Rows) -> None:
    """One simulated request and its routings."""
    name, arrival = text(at(request, "uuid")), _moment(at(request, "arrival_time_ms"))
    if name is None or arrival is None:
        rows.refuse("simulated requests without an id or an arrival", op="request")
        return
    end, first = _moment(request.get("terminal_time_ms")), _moment(request.get("first_token_ms"))
    if end is not None and end < arrival:
        rows.refuse("ends before its start", op="request", cause="negative_duration")
        return
    first = first if first is not None and arrival <= first <= (end or first) else None
    worker = request.get("decode_worker_idx")
    rows.remark(SIMULATED)
    rows.add("span", {
        "op": "request", "name": "replay", "request_id": name, "id_kind": "internal", "start_ns": arrival,
        "end_ns": end, "first_token_ns": first,
        "prompt_tokens": whole(request.get("input_length")),
        "output_tokens": whole(request.get("output_length")),
        "predicted_tokens": whole(request.get("reused_input_tokens")),
        "engine": engine(worker, None), "attribution": "request", "evidence": "predicted",
        "status": "open" if end is None else _DONE.get(str(request.get("terminal_status"))),
        "attributes": attributes(**{field: request.get(field) for field in _KEPT}),
    })  # fmt: skip
    history = request.get("routing_history")
    for attempt, routing in enumerate(history if isinstance(history, list) else (), 1):
        if isinstance(routing, dict):
            _route(routing, request, name, attempt, arrival, rows)
        else:
            rows.refuse("routings that are no object", op="route")


def _route(
    routing: dict[str, Any], request: dict[str, Any], name: str, attempt: int, arrival: int, rows: Rows
) -> None:
    """A simulated choice; it takes no time but that in the router's queue."""
    start = _moment(routing.get("queue_entered_at_ms")) or arrival
    waited = span_ns(routing.get("queue_wait_ms"), MS)
    overlap = whole(routing.get("reported_overlap_tokens"))
    rows.add("span", {
        "op": "route", "name": "replay", "request_id": name, "id_kind": "internal", "start_ns": start,
        "end_ns": start + (waited or 0), "attempt": attempt, "observer": "router",
        "engine": engine(routing.get("logical_worker_id"), routing.get("dp_rank")),
        "requested_tokens": whole(request.get("input_length")), "found_tokens": overlap,
        "predicted_tokens": overlap, "attribution": "request", "evidence": "predicted",
        "attributes": attributes(**{field: routing.get(field) for field in _ROUTED}),
    })  # fmt: skip


def _moment(milliseconds: Any) -> int | None:
    """A time of the simulation as ns of a run."""
    found = span_ns(milliseconds, MS)
    return None if found is None else SIMULATION_START_NS + found
