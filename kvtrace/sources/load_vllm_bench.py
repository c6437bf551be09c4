"""Results of `vllm bench serve --save-result --save-detailed`: a document a benchmark, requests in columns.

    {"date": "20261130-082302", "backend": "openai", "model_id": ..., "input_lens": [200, ...],
     "ttfts": [0.087, ...], "itls": [[0.014, ...], ...], "latencies": [...], "start_times": [55454.59, ...],
     "generated_texts": [...], "errors": ["", ...]}

With --append-result a file has one a line. A result says neither its requests' ids nor the time: start_times
are seconds of the machine's monotonic clock. Who wants its requests joined says both as metadata of the
benchmark, which the result repeats:

    --request-id-prefix P --metadata request_id_prefix=P clock_offset_ns=$(python3 -c
        'import time; print(time.time_ns() - time.monotonic_ns())')

    both            unix times, and the ids P0, P1, ... (vLLM's own order; not of data sets that it shuffles)
    prefix alone    ids; times as below, and no end: it would be held against other clocks
    neither         ids of the file, unjoined; the last answer is put at `date`, whole seconds, read as UTC

Known from vLLM 0.32 itself, recorded here on CPU.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvtrace.sources import load_rows
from kvtrace.sources.load_rows import S, seconds_ns
from kvtrace.sources.records import (
    LATEST_TIME_NS,
    Rows,
    at,
    number,
    span_ns,
    text,
    time_ns,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "load-vllm-bench"
PREFIX, OFFSET = "request_id_prefix", "clock_offset_ns"
BY_DATE = "date of the result, whole seconds of a zone that it does not say, read as UTC"
NO_CLOCK = f"requests put at the result's date, which is no exact clock (give --metadata {OFFSET}=...)"
NO_NAMES = f"requests that cannot be joined: the result has no ids (give --metadata {PREFIX}=...)"
NO_DETAIL = "results without requests (--save-detailed was not given)"
_HEAD = re.compile(rb'\s*\{ ?"date" ?: ?"\d{8}-\d{6}" ?, ?"(?:endpoint_type|backend)" ?:')
_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")


def looks_like(head: bytes) -> bool:
    """Whether a file begins as such a result does."""
    return bool(_HEAD.match(head)) and b'"model_id"' in head and b'"num_prompts"' in head


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    results = Results(source)
    return load_rows.read_documents(stream, results.rows, results.taken)


class Results:
    """Takes results, adds requests."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._number = 0

    def taken(self, value: Any) -> Iterator[None]:
        """One result, request by request."""
        if text(at(value, "date")) is None:
            self.rows.refuse("lines that are no result of a benchmark", op="request")
            return
        self._number += 1
        texts = value.get("generated_texts")
        self.rows.drop("generated_texts", len(texts) if isinstance(texts, list) else 0)
        columns = {name: found for name in _COLUMNS if isinstance(found := value.get(name), list)}
        if "ttfts" not in columns or "start_times" not in columns:
            self.rows.refuse(NO_DETAIL, op="request")
            return
        yield from self._requests(value, columns)

    def _requests(self, result: dict[str, Any], columns: dict[str, list[Any]]) -> Iterator[None]:
        """The requests of a result, in the order of their numbers."""
        prefix, exact, count = text(result.get(PREFIX)), _offset(result.get(OFFSET)), _count(columns)
        offset = exact
        if offset is None:
            self.rows.remark(NO_CLOCK, count)
            date, last = _date(result["date"]), _last_end(columns, count)
            offset = None if date is None or last is None else date - last
        if prefix is None:
            self.rows.remark(NO_NAMES, count)
        names = prefix or f"{self.rows.source}:{self._number}:"
        said = {name: result.get(name) for name in ("backend", "model_id", "label")}
        if exact is None:
            said["start"] = BY_DATE
        keeps_end = exact is not None or prefix is None
        for place in range(count):
            self._one(f"{names}{place}", _row(columns, place), offset, said, keeps_end=keeps_end)
            yield

    def _one(
        self, name: str, one: dict[str, Any], offset: int | None, said: dict[str, Any], *, keeps_end: bool
    ) -> None:
        since, latency = time_ns(one.get("start_times"), S), _latency(one)
        start = None if since is None or offset is None else time_ns(since + offset, 1)
        failed = bool(one.get("errors"))
        self.rows.drop("errors", int(failed))
        end = start + latency if keeps_end and start is not None and latency is not None else None
        times = {
            "ttft_ns": seconds_ns(one.get("ttfts")), "latency_ns": latency,
            "queue_ns": span_ns(one.get("queue_times"), S), **load_rows.gaps(one.get("itls"), S),
        }  # fmt: skip
        load_rows.add(load_rows.Sent(
            "vllm-bench", name, start, end, prompt_tokens=whole(one.get("input_lens")),
            output_tokens=None if failed else whole(one.get("output_lens")),
            status="error" if failed else "ok" if "errors" in one else None, times=times, said=said,
        ), self.rows)  # fmt: skip


def _count(columns: dict[str, list[Any]]) -> int:
    """How many requests a result has: what it knows of their times and lengths, not how long any list is."""
    return max(len(columns.get(name, ())) for name in ("ttfts", "start_times", "input_lens"))


def _row(columns: dict[str, list[Any]], place: int) -> dict[str, Any]:
    """What the columns have of one request."""
    return {name: found[place] for name, found in columns.items() if place < len(found)}


def _last_end(columns: dict[str, list[Any]], count: int) -> int | None:
    """The latest end of a request, ns of the machine's monotonic clock."""
    ends = (
        start + (_latency(one) or 0)
        for one in (_row(columns, place) for place in range(count))
        if (start := time_ns(one.get("start_times"), S)) is not None
    )
    return max(ends, default=None)


def _latency(one: dict[str, Any]) -> int | None:
    """From sending to the last part of the answer: said, or of older versions the sum of its parts."""
    said = seconds_ns(one.get("latencies"))
    if said is not None or "latencies" in one:
        return said
    first, rest = seconds_ns(one.get("ttfts")), one.get("itls")
    parts = [number(part) for part in rest] if isinstance(rest, list) else [None]
    if first is None or None in parts:
        return None
    return span_ns(first + sum(part for part in parts if part is not None) * S, 1)


def _offset(said: Any) -> int | None:
    """Metadata is text."""
    found = int(said) if isinstance(said, str) and re.fullmatch(r"\d{1,19}", said) else whole(said)
    return found if found is not None and 0 < found <= LATEST_TIME_NS else None


def _date(said: Any) -> int | None:
    try:
        moment = datetime.strptime(said, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except (ValueError, TypeError):
        return None
    return time_ns(int(moment.timestamp()), S)
