"""Reports of guidellm (benchmarks.json): one document, each benchmark with the requests that it kept.

    {"metadata": {"guidellm_version": ...}, "config": {...}, "benchmarks": [
        {"config": {...}, "requests": {"successful": [...], "errored": [...], "incomplete": [...]}}]}
    a request: {"request_id": ..., "response_id": "cmpl-...", "request_args": "...", "output": "...",
                "info": {"status": ..., "timings": {"request_start": 1796027200.34, ...}},
                "input_metrics": {"total_tokens": 150, "cached_tokens": 128, ...}, "output_metrics": {...}}

Times are unix seconds in floats, exact to half a microsecond. request_id is guidellm's own and was not sent:
the answer's id, response_id, joins the row to the engine's. A report may hold a sample of its requests only.

Known from guidellm 0.8.1 itself, recorded here against vLLM 0.32 on CPU; a public report of an older version
(danielkorat/guidellm-bench) has the same fields.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources import load_rows
from kvtrace.sources.load_rows import S
from kvtrace.sources.records import Rows, at, text, time_ns, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "load-guidellm"
STATUSES = {"successful": "ok", "errored": "error", "incomplete": "aborted"}
"""Group of a benchmark's requests -> how they ended; guidellm cancels what is incomplete when it stops."""
_HEAD = re.compile(rb'\s*\{\s*"(?:metadata|config|benchmarks)"\s*:')
_CONTENT = ("request_args", "output", "reasoning_output", "tool_calls")
_KEPT = ("conversation_id", "turn_index", "history_len", "agent_id", "scheduler_process_id")
NOT_ONE = "lines that are no report with benchmarks"


def looks_like(head: bytes) -> bool:
    """Whether a file begins as such a report does."""
    return bool(_HEAD.match(head)) and b'"guidellm_version"' in head


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    reports = Reports(source)
    return load_rows.read_documents(stream, reports.rows, reports.taken)


class Reports:
    """Takes a report, adds requests."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)

    def taken(self, value: Any) -> Iterator[None]:
        """One report, request by request."""
        benchmarks = at(value, "benchmarks")
        if not isinstance(benchmarks, list):
            self.rows.refuse(NOT_ONE, op="request")
            return
        for number, benchmark in enumerate(benchmarks):
            found = at(benchmark, "config", "strategy")
            strategy = text(at(found, "type_")) or text(at(found, "kind"))
            for group, status in STATUSES.items():
                kept = at(benchmark, "requests", group)
                for request in kept if isinstance(kept, list) else ():
                    self._request(request, status, {"benchmark": number, "strategy": strategy})
                    yield

    def _request(self, request: Any, status: str, said: dict[str, Any]) -> None:
        rows, info = self.rows, at(request, "info")
        own, answer = text(at(request, "request_id")), text(at(request, "response_id"))
        name = answer or own
        if name is None:
            rows.refuse("requests without an id", op="request")
            return
        for part in _CONTENT:
            rows.drop(part, int(request.get(part) is not None))
        rows.drop("error", int(at(info, "error") is not None) + int(at(info, "traceback") is not None))
        timing = {word: time_ns(at(info, "timings", word), S) for word in
                  ("request_start", "resolve_start", "request_end", "resolve_end", "first_token_iteration",
                   "last_token_iteration", "targeted_start")}  # fmt: skip
        start = timing["request_start"] or timing["resolve_start"]
        end = timing["request_end"] or timing["resolve_end"]
        tokens = at(request, "output_metrics", "total_tokens")
        first, last = timing["first_token_iteration"], timing["last_token_iteration"]
        parts = whole(at(info, "timings", "token_iterations")) or 0
        apart = _between(first, last)
        times = {
            "ttft_ns": _between(start, first), "latency_ns": _between(start, end),
            "queue_ns": _between(timing["targeted_start"], start),
            "itl_mean_ns": round(apart / (parts - 1)) if apart is not None and parts > 1 else None,
        }  # fmt: skip
        load_rows.add(load_rows.Sent(
            "guidellm", name, start, end,
            prompt_tokens=whole(at(request, "input_metrics", "total_tokens")), output_tokens=whole(tokens),
            cached_tokens=whole(at(request, "input_metrics", "cached_tokens")), status=status, times=times,
            said={**said, "guidellm.request_id": own, **{field: at(info, field) for field in _KEPT}},
        ), rows)  # fmt: skip


def _between(start: int | None, end: int | None) -> int | None:
    """From one time to a later one; None where either is not known, or the second comes first."""
    return None if start is None or end is None or end < start else end - start
