"""SGLang's per-request metrics files: from which tier each request was served, as its scheduler counted it.

`--export-metrics-to-file` writes `sglang-request-metrics-YYYYmmdd_HH.log`, a JSON object a finished request:
its `meta_info` and, as a text of JSON, its `request_parameters`, which hold the prompt: counted and dropped.
Known from the source of 0.5.18 and 0.5.23 (observability/request_metrics_exporter.py, req_time_stats.py,
managers/scheduler_components/output_streamer.py). Times are there only with `--enable-metrics`; `storage` and
the two storage waits from 0.5.23 on.

    request_received_ts   forward_entry_time      prefill_finished_time      request_finished_ts
    |-------[== queue ====|------------------------|-- first_token ----------|       the request, its queue

`cached_tokens_details` is what was *used* of each tier at the first admission: `device` was in GPU memory,
`host` came from pinned memory, `storage` from the storage backend through it. What was found and declined is
not in it, so that no lookup comes out. The loads have tokens and no times: SGLang measures none by request.

queue_time sums the waits of a request that was retracted: its queue is then left out. Of a decode engine
behind a prefill engine (a bootstrap_room, and more than the one token that a prefill engine puts out) the
details are those of the prefill engine: they stay an attribute, and are no hits of this request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.records import Rows, at, attributes, number, read_lines, span_ns, text, time_ns, whole
from kvtrace.sources.sglang_words import COMPONENTS, ENGINE, TRANSFER, identity, room, storage, storage_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "sglang-request-metrics"
S = 1_000_000_000
MAX_BACKENDS = 16
SLACK_NS = 50_000_000
"""Two processes calibrate their clocks apart: what lies so little outside of its request is believed."""
_FIRST = re.compile(rb'\s*\{\s*"request_parameters"\s*:\s*"\{')
_KEPT = (
    "forward_entry_time", "prefill_finished_time", "queue_time", "storage_prefetch_wait",
    "storage_staging_wait", "api_server_dispatch_finish_ts", "response_sent_to_client_ts", "e2e_latency",
    "decode_throughput", "reasoning_tokens", "weight_version", "dp_rank", "num_retractions", "image_tokens",
    "audio_tokens", "video_tokens", "spec_accept_rate", "spec_accept_length", "spec_verify_ct",
)  # fmt: skip
_CONTENT = (
    "input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs",
    "input_token_ids_logprobs", "output_token_ids_logprobs", "hidden_states", "routed_experts",
    "indexer_topk", "output_token_sampling_mask", "output_token_sampling_logprobs", "prompt_token_ids",
)  # fmt: skip
_READ = (
    "request_parameters", "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
    "cached_tokens_details", "request_received_ts", "request_finished_ts", "first_token_latency",
)  # fmt: skip


class _Parameters(Struct, gc=False):
    """What is looked at of a request's parameters; `Raw` is content and only counted."""

    bootstrap_room: Any = None
    stream: Any = None
    sampling_params: Any = None
    text: Raw = Raw()
    input_ids: Raw = Raw()
    input_embeds: Raw = Raw()
    session_params: Raw = Raw()


_PARAMETERS = msgspec.json.Decoder(_Parameters)


def looks_like(head: bytes) -> bool:
    """Whether the first line begins as SGLang writes it: the parameters come first, however long they are."""
    return bool(_FIRST.match(head))


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    taker = Records(source)
    yield from read_lines(stream, taker)
    yield Decoded(identities=tuple(taker.identities(source)))


class Records:
    """Takes finished requests, adds their rows."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._external: dict[tuple[str, str], None] = {}

    def take(self, value: Any) -> None:
        """One finished request."""
        if not isinstance(value, dict) or "request_parameters" not in value:
            self.rows.refuse("lines that are no finished request", op="request")
            return
        request = text(value.get("id"))
        if request is None:
            self.rows.refuse("requests without an id", op="request")
            return
        times = _times(value)
        if times is None:
            self.rows.refuse("requests without times: SGLang writes them with --enable-metrics",
                             op="request", cause="impossible_time")  # fmt: skip
            return
        asked = self._parameters(value["request_parameters"])
        for name in _CONTENT:
            self.rows.drop(name, value.get(name) is not None)
        self.rows.ignore("meta_info", [n for n in value if n not in (*_READ, *_KEPT, *_CONTENT)])
        self._request(request, value, asked, times)

    def finish(self) -> None:
        """Nothing waits."""

    def identities(self, source: str) -> Iterator[dict[str, Any]]:
        """The external tiers, as far as requests named them."""
        for field, named in self._external:
            yield identity(field, named, source)

    def _request(
        self, request: str, value: dict[str, Any], asked: dict[str, Any], times: tuple[int, int | None]
    ) -> None:
        """The row of a request, its queue and its loads."""
        start, end = times
        rank = whole(value.get("dp_rank"))
        who = {"request_id": request, "id_kind": "internal", "attribution": "request", "evidence": "native",
               "engine": f"{ENGINE}/dp{rank}" if rank else ENGINE}  # fmt: skip
        tiers = _tiers(value)
        half = asked["room"] is not None and (whole(value.get("completion_tokens")) or 0) > 1
        if half and any((tiers["host"], tiers["storage"], tiers["device"])):
            self.rows.remark("requests of a decode engine: what was cached is what their prefill engine says")
        own = {} if half else tiers
        details = {f"cached_tokens_details.{name}": found for name, found in tiers.items() if half}
        status, finish = _status(value.get("finish_reason"))
        self.rows.drop("finish_reason.message", at(value, "finish_reason", "message") is not None)
        self.rows.add("span", {
            "op": "request", "name": "sglang_request", **who, "observer": "api", "start_ns": start,
            "end_ns": end, "first_token_ns": self._first_token(value, start, end),
            "prompt_tokens": whole(value.get("prompt_tokens")),
            "output_tokens": whole(value.get("completion_tokens")),
            "reported_cached_tokens": None if half else whole(value.get("cached_tokens")),
            "gpu_hit_tokens": own.get("device"), "user_request_id": asked["room"], "status": status,
            "attributes": attributes(
                finish_reason=finish, **{name: value.get(name) for name in _KEPT}, **asked["said"], **details
            ),
        })  # fmt: skip
        self._queue(value, start, end, who)
        if own:
            self._loads(own, who)

    def _first_token(self, value: dict[str, Any], start: int, end: int | None) -> int | None:
        """When the first token left; a latency beyond the request's end is not believed."""
        if value.get("first_token_latency") is None:
            return None
        latency = span_ns(value["first_token_latency"], S)
        if latency is None or (end is not None and start + latency > end + SLACK_NS):
            self.rows.refuse("first tokens outside of their request", op="request", cause="negative_duration")
            return None
        return start + latency if end is None else min(start + latency, end)

    def _queue(self, value: dict[str, Any], start: int, end: int | None, who: dict[str, Any]) -> None:
        """The wait before the first forward, where it is one wait; prefetches from storage lie in it."""
        waited, entered = value.get("queue_time"), time_ns(value.get("forward_entry_time"), S)
        if waited is None or entered is None:
            return
        if whole(value.get("num_retractions")):
            self.rows.remark("requests that were retracted: their queue_time sums several waits, no row")
            return
        length = span_ns(waited, S)
        late = end is not None and entered > end + SLACK_NS
        if length is None or late or entered - length < max(start - SLACK_NS, 1):
            self.rows.refuse("queue times outside of their request", op="queue", cause="negative_duration")
            return
        self.rows.add("span", {"op": "queue", "name": "queue_time", "reason": "unknown", **who,
                               "evidence": "derived", "observer": "scheduler", "start_ns": entered - length,
                               "end_ns": entered})  # fmt: skip

    def _loads(self, tiers: dict[str, Any], who: dict[str, Any]) -> None:
        """What was used of each tier beyond the GPU: how much, and not when."""
        host, stored = tiers.get("host") or 0, tiers.get("storage") or 0
        backend = tiers.get("backend")
        if host + stored:
            self._external["host_memory", "pinned"] = None
        if backend is not None and len(self._external) < MAX_BACKENDS:
            self._external["storage_backend", storage_name(backend)] = None
        same = {"op": "load", "outcome": "ok", "observer": "api", **who}
        if host + stored:
            self.rows.add("span", {**same, "name": "cached_tokens_details", "tier_from": "host",
                                   "tier_to": "gpu", "purpose": "reuse", "component": COMPONENTS["host"],
                                   "tokens": host + stored})  # fmt: skip
        if stored:
            tier, component = storage(backend)
            self.rows.add("span", {**same, "name": "cached_tokens_details.storage", "tier_from": tier,
                                   "tier_to": "host", "purpose": "prefetch", "component": component,
                                   "tokens": stored, "transfer_id": TRANSFER})  # fmt: skip

    def _parameters(self, given: Any) -> dict[str, Any]:
        """Which room ties it to another engine's half, and what was asked for; the prompt is counted."""
        try:
            found = _PARAMETERS.decode(given) if isinstance(given, str) else _Parameters()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.rows.refuse("request_parameters that cannot be read")
            found = _Parameters()
        for name in ("text", "input_ids", "input_embeds"):
            self.rows.drop(name, bytes(getattr(found, name)) not in (b"", b"null"))
        params = found.sampling_params
        said = attributes(stream=found.stream, max_new_tokens=whole(at(params, "max_new_tokens")))
        return {"room": room(found.bootstrap_room), "said": said}


def _times(value: dict[str, Any]) -> tuple[int, int | None] | None:
    """Arrival and finish; of one that is missing the latency tells, where it is there."""
    start = time_ns(value.get("request_received_ts"), S)
    end = time_ns(value.get("request_finished_ts"), S)
    length = span_ns(value.get("e2e_latency"), S)
    if start is None and end is not None and length is not None:
        start = end - length
    elif end is None and start is not None and length is not None:
        end = start + length
    if start is None or start <= 0 or (end is not None and end < start):
        return None
    return start, end


def _tiers(value: dict[str, Any]) -> dict[str, Any]:
    """Tokens used by tier; no details and no cached token at all is a GPU hit of none."""
    details = value.get("cached_tokens_details")
    if isinstance(details, dict):
        found = {name: whole(details.get(name)) for name in ("device", "host", "storage")}
        return {**found, "backend": text(details.get("storage_backend"))}
    none = details is None and number(value.get("cached_tokens")) == 0
    return {"device": 0 if none else None, "host": None, "storage": None, "backend": None}


def _status(reason: Any) -> tuple[str | None, str | None]:
    """How it went and SGLang's word: an abort with a status code is the server's, else the caller's."""
    kind = text(at(reason, "type")) or text(reason)
    if kind is None:
        return None, None
    if kind != "abort":
        return "ok", kind
    code = at(reason, "status_code")
    return ("error" if isinstance(code, int) and code >= 400 else "aborted"), kind
