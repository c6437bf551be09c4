"""Which rows does the scheduler's observer write, and with which columns?

Times are raw monotonic nanoseconds (`recorder.now`). An operation that may outlive the process is opened
when it begins and closed when it ends, under one span id; what is over when it is told is a whole row.
"""

from __future__ import annotations

from kvtrace.recorder import shape

_LOOKUP = (
    "request_id", "start_ns", "end_ns", "requested_tokens", "found_tokens", "outcome", "reason", "component",
    "attempt", "attributes.calls", "attributes.asked_from_tokens", "attributes.returned_tokens",
    "attributes.children", "attributes.timeout_of", "attributes.skipped_for",
)  # fmt: skip
_QUEUE = ("request_id", "start_ns", "reason", "blocks", "free_blocks", "attempt")
_STEP = ("start_ns", "end_ns", "tokens", "members", "outcome", "attributes.idle_passes")

REQUEST_OPEN = shape(
    "span", ("span_id", "request_id", "start_ns", "prompt_tokens", "trace_id"), part="open",
    op="request", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
REQUEST_ADMITTED = shape("span", ("span_id", "gpu_hit_tokens", "selected_tokens"), part="update")
REQUEST_CLOSE = shape(
    "span",
    ("span_id", "end_ns", "output_tokens", "status", "attempt", "attributes.finish_reason",
     "attributes.preemptions"),
    part="close",
)  # fmt: skip

QUEUE = shape(
    "span", (*_QUEUE, "end_ns"),
    op="queue", outcome="ok", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
QUEUE_OPEN = shape(
    "span", ("span_id", *_QUEUE), part="open",
    op="queue", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
QUEUE_CLOSE = shape("span", ("span_id", "end_ns"), part="close", outcome="ok")

LOOKUP = shape("span", _LOOKUP, op="lookup", observer="scheduler", evidence="shim", attribution="request")
LOOKUP_OPEN = shape(
    "span", ("span_id", *_LOOKUP), part="open",
    op="lookup", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
LOOKUP_CLOSE = shape("span", ("span_id", *_LOOKUP), part="close")

LOAD_OPEN = shape(
    "span",
    ("span_id", "request_id", "transfer_id", "submit_ns", "start_ns", "tokens", "blocks", "tier_from",
     "component", "purpose", "attempt"),
    part="open", op="load", tier_to="gpu", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
LOAD_SOURCES = shape("span", ("span_id", "tier_from", "attributes.sources"), part="update")
LOAD_CLOSE = shape(
    "span", ("span_id", "end_ns", "usable_ns", "outcome", "attributes.usable_tokens"), part="close"
)

HOLD_OPEN = shape(
    "span",
    ("span_id", "request_id", "start_ns", "blocks", "reason", "component", "attributes.blocks_total",
     "attributes.hold"),
    part="open", op="hold", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
HOLD_CLOSE = shape("span", ("span_id", "end_ns"), part="close", outcome="ok")

STEP = shape("span", _STEP, op="step", observer="scheduler", evidence="shim", attribution="operation")

HEALTH_OPEN = shape(
    "span", ("span_id", "start_ns", "reason", "component"), part="open",
    op="health", observer="scheduler", evidence="shim", attribution="aggregate",
)  # fmt: skip
HEALTH_CLOSE = shape("span", ("span_id", "end_ns"), part="close", outcome="ok")
