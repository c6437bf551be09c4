"""Dynamo's request trace (DYN_REQUEST_TRACE=1, schema dynamo.request.trace.v1): a JSON line a record.

    request_payload   at the start of the answer   what was asked and answered: dropped; usage, worker, model
    request_end       at the finish                tokens, times, worker, forecast, the prompt's keys
    tool              between                      kept without what the tool said

    request           |------------------------|   request_received_ms, total_time_ms
    queue             |--|                         prefill_wait_time_ms, derived: its reason is not said
    first token             ^                      ttft_ms

`cached_tokens` and `kv_hit_rate` of request_end are the router's forecast, weighted with its credits, made
before anything was loaded (others.md 0.1): predicted_tokens. Only the payload's usage says what was loaded.
Either of a request's two records may come first; it waits for the other, so that both are one row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.dynamo.names import KEY_SPACE, MS, alias, engine, key, outside_names
from kvtrace.sources.openai_responses.body import facts, nvext
from kvtrace.sources.records import Rows, at, attributes, number, read_lines, span_ns, text, time_ns, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "dynamo-request-trace"
MAX_WAITING = 20_000
"""Payloads that may wait for their request's end; the oldest then becomes a row of its own."""
MAX_ENDED = 1_000
"""Ends that may wait for their payload, which comes at once or never (it is not recorded by default)."""
_SCHEMA = re.compile(rb'"schema"\s*:\s*"dynamo\.request\.trace\.')
_FIELDS = (
    "request_id", "x_request_id", "model", "input_tokens", "output_tokens", "cached_tokens",
    "request_received_ms", "prefill_wait_time_ms", "prefill_time_ms", "ttft_ms", "total_time_ms",
    "avg_itl_ms", "kv_hit_rate", "kv_transfer_estimated_latency_ms", "queue_depth", "worker", "replay",
    "finish_reason_metadata", "backend_actual_cached_tokens", "routing_decision",
)  # fmt: skip
_KEPT = (
    "prefill_time_ms", "avg_itl_ms", "kv_hit_rate", "kv_transfer_estimated_latency_ms", "queue_depth",
    "backend_actual_cached_tokens", "model",
)  # fmt: skip
_COVERAGE = ("resident", "eligible", "selected", "overload_gap_tokens", "selection_gap_tokens")
_SAFE = re.compile(r"(?:.*_)?(?:id|type|name|status|model|phase|outcome|class|source|schema)")
"""Names whose text is a name, in records of a kind that nobody has described: other text may be content."""


def looks_like(head: bytes) -> bool:
    """Whether the first line is such a record."""
    first = head.lstrip().split(b"\n", 1)[0]
    return first.startswith(b"{") and bool(_SCHEMA.search(first))


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    return read_lines(stream, Records(source))


class Records:
    """Takes records, adds requests, their queue times, their keys and their names."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._waiting: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, dict[str, Any]] = {}

    def take(self, value: Any) -> None:
        """One record, in its wrapper {timestamp, event} or bare."""
        event = value["event"] if isinstance(at(value, "event"), dict) else value
        if not isinstance(event, dict) or not str(event.get("schema", "")).startswith(
            "dynamo.request.trace."
        ):
            self.rows.refuse("lines that are no record of a request trace")
            return
        kind = text(event.get("event_type"))
        if kind == "request_end" and isinstance(event.get("request"), dict):
            self._end(event["request"])
        elif kind == "request_payload" and isinstance(event.get("payload"), dict):
            self._payload(event["payload"])
        else:
            self._other(kind, event)

    def finish(self) -> None:
        """Records whose other one is missing are requests all the same."""
        for request, end in self._ended.items():
            self._whole(request, end, {})
        self._ended = {}
        for request, payload in self._waiting.items():
            self._only_payload(request, payload)
        self._waiting = {}

    def _payload(self, payload: dict[str, Any]) -> None:
        """What the payload of a request knows beyond its content."""
        request = text(payload.get("request_id"))
        if request is None:
            self.rows.refuse("records without a request", op="request")
            return
        asked = payload.get("request")
        for name in ("messages", "prompt", "input", "tools"):
            found = at(asked, name)
            self.rows.drop(name, len(found) if isinstance(found, list) else int(found is not None))
        body = payload.get("response")
        said = attributes(endpoint=payload.get("endpoint"), model=payload.get("model"),
                          stream=at(asked, "stream"), max_tokens=at(asked, "max_tokens"))  # fmt: skip
        known = {
            **facts(body, self.rows), "nvext": nvext(body), "said": said,
            "client": text(payload.get("x_request_id")),
        }  # fmt: skip
        if request in self._ended:
            self._whole(request, self._ended.pop(request), known)
            return
        if len(self._waiting) >= MAX_WAITING and request not in self._waiting:
            oldest = next(iter(self._waiting))
            self._only_payload(oldest, self._waiting.pop(oldest))
        self._waiting[request] = known

    def _end(self, end: dict[str, Any]) -> None:
        """A finished request: with its payload if that came, else what is needed of it waits."""
        request, start = text(end.get("request_id")), time_ns(end.get("request_received_ms"), MS)
        if request is None or start is None:
            self.rows.refuse("requests without an id or a time", op="request", cause="impossible_time")
            return
        self.rows.ignore("request_end", [name for name in end if name not in _FIELDS])
        self._keys(request, start, at(end, "replay"))
        known = _known(end, start)
        if request in self._waiting:
            self._whole(request, known, self._waiting.pop(request))
            return
        if request in self._ended or len(self._ended) >= MAX_ENDED:
            oldest = request if request in self._ended else next(iter(self._ended))
            self._whole(oldest, self._ended.pop(oldest), {})
        self._ended[request] = known

    def _whole(self, request: str, end: dict[str, Any], payload: dict[str, Any]) -> None:
        """A finished request, with what its payload knew."""
        found = {**end["found"], "engine": end["engine"] or _engine(payload.get("nvext"), "nvext.")}
        self._row("request_end", request, end["start"], end["times"], payload, found, end["said"])
        self._names(request, payload, end["client"])

    def _only_payload(self, request: str, payload: dict[str, Any]) -> None:
        """A request of which nothing but the payload was recorded: its times are those of the answer."""
        timing = {name.removeprefix("nvext."): value for name, value in payload.get("nvext", {}).items()}
        start = time_ns(timing.get("request_received_ms"), MS) or payload.get("start_ns")
        if start is None:
            self.rows.refuse("requests without an id or a time", op="request", cause="impossible_time")
            return
        found = {"engine": _engine(timing)}
        said = {"start": payload["basis"]} if "request_received_ms" not in timing else {}
        self._row("request_payload", request, start, timing, payload, found, said)
        self._names(request, payload, None)

    def _row(
        self, name: str, request: str, start: int, times: dict[str, Any], payload: dict[str, Any],
        found: dict[str, Any], said: dict[str, str],
    ) -> None:  # fmt: skip
        """A request, and its queue where the wait for the prefill is said."""
        length, first, waited = (
            span_ns(times.get(field), MS) for field in ("total_time_ms", "ttft_ms", "prefill_wait_time_ms")
        )
        from_payload = ("prompt_tokens", "output_tokens", "reported_cached_tokens", "status")
        who = {"observer": "api", "attribution": "request", "request_id": request, "id_kind": "internal",
               "start_ns": start, "engine": found.pop("engine", None)}  # fmt: skip
        known = {column: payload.get(column) for column in from_payload}
        answered = {  # what the end says itself need not be there twice
            word: value for word, value in payload.get("attributes", {}).items()
            if name != "request_end" or not word.startswith("nvext.")
        }  # fmt: skip
        self.rows.add("span", {
            "op": "request", "name": name, "evidence": "native", **who,
            **known, **{column: value for column, value in found.items() if value is not None},
            "end_ns": None if length is None else start + length,
            "first_token_ns": None if first is None or first > (length or first) else start + first,
            "attributes": {**payload.get("said", {}), **answered, **said},
        })  # fmt: skip
        if waited is not None and (length is None or waited <= length):
            self.rows.add("span", {"op": "queue", "name": "prefill_wait_time_ms", "reason": "unknown", **who,
                                   "evidence": "derived", "end_ns": start + waited})  # fmt: skip

    def _names(self, request: str, payload: dict[str, Any], client: str | None) -> None:
        """The API server's names of it, seen or by Dynamo's rule, and the caller's."""
        seen = payload.get("response")
        source = self.rows.source
        if seen and seen != request:
            self.rows.add("alias", alias(seen, "external", request, source))
        elif not seen:
            for name in outside_names(request):
                self.rows.add("alias", alias(name, "external", request, source, "derived"))
        named = client or payload.get("client")
        if named and named != request:
            self.rows.add("alias", alias(named, "client", request, source))

    def _keys(self, request: str, start: int, replay: Any) -> None:
        """One row a block of the prompt: input_sequence_hashes are rolling, each stands for all before it."""
        hashes, size = at(replay, "input_sequence_hashes"), whole(at(replay, "trace_block_size"))
        length = whole(at(replay, "input_length"))
        bad = 0
        for position, block in enumerate(hashes if isinstance(hashes, list) else ()):
            name = key(block)
            if name is None:
                bad += 1
                continue
            left = None if length is None or size is None else length - position * size
            tokens = size if left is None or size is None else min(size, left)
            self.rows.add("request_key", {
                "request_id": request, "attempt": 1, "position": position, "key_space": KEY_SPACE,
                "key": name,
                "tokens": tokens if tokens is None or tokens > 0 else None, "time_ns": start,
                "source": self.rows.source,
            })  # fmt: skip
        self.rows.refuse("hashes that are no 64-bit numbers", op="request", count=bad)

    def _other(self, kind: str | None, event: dict[str, Any]) -> None:
        """A tool's record, or one of a kind that this version does not know: kept, its numbers and names."""
        time = time_ns(event.get("event_time_unix_ms"), MS)
        body = next((value for value in event.values() if isinstance(value, dict)), {})
        if kind is None or time is None:
            self.rows.refuse("records without a kind or a time", cause="impossible_time")
            return
        kept = {name[:64]: value for name, value in list(body.items())[:64]
                if not isinstance(value, str) or _SAFE.fullmatch(name)}  # fmt: skip
        self.rows.drop(kind, len(body) - sum(isinstance(value, int | float | str) for value in kept.values()))
        if kind != "tool":
            self.rows.remark(f"records of kind {kind!r}, which this version does not know, kept without op")
        self.rows.add("span", {
            "name": kind, "request_id": text(body.get("request_id")), "id_kind": "internal", "start_ns": time,
            "end_ns": time, "observer": "api", "evidence": "native", "attributes": attributes(**kept),
        })  # fmt: skip


def _known(end: dict[str, Any], start: int) -> dict[str, Any]:
    """What is needed of a request's end, which may have to wait: small, whatever the record holds."""
    worker, coverage = at(end, "worker"), at(end, "routing_decision", "raw_cache_coverage")
    return {
        "start": start,
        "times": {
            name: number(end.get(name)) for name in ("total_time_ms", "ttft_ms", "prefill_wait_time_ms")
        },
        "found": {
            "prompt_tokens": whole(end.get("input_tokens")),
            "output_tokens": whole(end.get("output_tokens")),
            "predicted_tokens": whole(end.get("cached_tokens")),
        },
        "engine": _engine(worker),
        "client": text(end.get("x_request_id")),
        "said": attributes(
            **{name: end.get(name) for name in _KEPT},
            **{f"raw_cache_coverage.{name}": at(coverage, name) for name in _COVERAGE},
            finish_reason=at(end, "finish_reason_metadata", "finish_reason"),
            **_worker(worker),
        ),
    }


def _engine(worker: Any, prefix: str = "") -> str | None:
    """The worker that decoded, else the one that did the prefill."""
    for part in ("decode", "prefill"):
        found = engine(at(worker, f"{prefix}{part}_worker_id"), at(worker, f"{prefix}{part}_dp_rank"))
        if found:
            return found
    return None


def _worker(worker: Any) -> dict[str, Any]:
    names = ("prefill_worker_id", "prefill_dp_rank", "decode_worker_id", "decode_dp_rank")
    return {name: at(worker, name) for name in names}
