"""aiperf's records (profile_export.jsonl): one JSON line a request.

    {"metadata": {"x_request_id": ..., "request_start_ns": ..., "request_end_ns": ..., ...},
     "metrics": {"time_to_first_token": {"value": 104.8, "unit": "ms"}, ...}, "error": {...}?}

Times are unix ns of the machine that sends. x_request_id is the header X-Request-ID of the request: by it the
row joins the engine's. Tokens are the server's where its usage is there (--use-server-token-count), else what
aiperf's tokenizer counted. Warm-up requests are requests too, told by benchmark_phase.

Known from aiperf 0.13.0 itself, recorded here against vLLM 0.32 on CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sources import load_rows
from kvtrace.sources.records import Rows, at, first_values, number, read_lines, span_ns, text, time_ns, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "load-aiperf"
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "sec": 1_000_000_000}
_KEPT = ("session_num", "conversation_id", "turn_index", "benchmark_phase", "x_correlation_id", "worker_id",
         "source_trace_id", "agent_depth")  # fmt: skip
_PARTS = ("metadata", "metrics", "error", "trace_data", "spec_decode_acceptance")


def looks_like(head: bytes) -> bool:
    """Whether the first line is such a record."""
    found = first_values(head, 2)
    if found:
        return all(map(_is_one, found))
    start = head.lstrip()
    return start.startswith(b'{"metadata":') and b'"request_start_ns"' in start and b'"worker_id"' in start


def _is_one(value: Any) -> bool:
    return at(value, "metadata", "request_start_ns") is not None and isinstance(at(value, "metrics"), dict)


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; it has no content but the words of errors, which are dropped."""
    del options
    return read_lines(stream, Records(source))


class Records:
    """Takes records, adds requests."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)

    def take(self, value: Any) -> None:
        """One record."""
        about, rows = at(value, "metadata"), self.rows
        name = text(at(about, "x_request_id"))
        if not isinstance(about, dict) or name is None:
            rows.refuse("lines that are no record of a request with its x_request_id", op="request")
            return
        rows.ignore("records", [field for field in value if field not in _PARTS])
        rows.drop("error", int(value.get("error") is not None))
        start, issued = time_ns(about.get("request_start_ns"), 1), time_ns(about.get("credit_issued_ns"), 1)
        metrics = at(value, "metrics")
        queued = None if start is None or issued is None or issued > start else start - issued
        times = {
            "ttft_ns": _duration(metrics, "time_to_first_token"), "queue_ns": queued,
            "latency_ns": _duration(metrics, "request_latency"),
            "itl_mean_ns": _duration(metrics, "inter_token_latency"),
        }  # fmt: skip
        load_rows.add(load_rows.Sent(
            "aiperf", name, start, time_ns(about.get("request_end_ns"), 1),
            prompt_tokens=_count(metrics, "usage_prompt_tokens", "input_sequence_length"),
            output_tokens=_count(metrics, "usage_completion_tokens", "output_sequence_length"),
            cached_tokens=_count(metrics, "usage_prompt_cache_read_tokens"),
            status=_status(about, value.get("error")), times=times,
            said={field: about.get(field) for field in _KEPT},
        ), rows)  # fmt: skip

    def finish(self) -> None:
        """Nothing waits."""


def _status(about: dict[str, Any], error: Any) -> str:
    """How it ended: a record is written when its request is over."""
    if about.get("was_cancelled") is True:
        return "aborted"
    return "error" if error is not None else "ok"


def _duration(metrics: Any, tag: str) -> int | None:
    """A metric's value in ns, by the unit that it says."""
    unit = UNITS_NS.get(str(at(metrics, tag, "unit")))
    return None if unit is None else span_ns(at(metrics, tag, "value"), unit)


def _count(metrics: Any, *tags: str) -> int | None:
    """The first of some metrics that has a value, in tokens."""
    for tag in tags:
        found = at(metrics, tag, "value")
        if number(found) is not None and (count := whole(found)) is not None:
            return count
    return None
