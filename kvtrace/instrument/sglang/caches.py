"""What does the scheduler ask its radix cache, and what does it wait for?

match_prefix          lookup   asked again in every pass: a row when the answer is another
init_load_back        for whom the copies are that it asks for (copies.py)
check_prefetch_progress -> False ... True
                      queue    remote_kv: the request is passed over until its storage has answered
loading_check, writing_check
                      which copies are over (copies.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.sglang import copies
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from typing import Any

LIMIT = 10_000
"""Requests that are remembered; of more the oldest are forgotten."""
LOOKUP = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "requested_tokens", "found_tokens", "found_by_tier.gpu",
     "found_by_tier.host", "outcome"),
    op="lookup", component="hicache", observer="scheduler", evidence="shim", attribution="request",
    name="match_prefix", clock="host",
)  # fmt: skip
QUEUE_OPEN = recorder.shape(
    "span", ("span_id", "request_id", "start_ns"), part="open", op="queue", reason="remote_kv",
    component="hicache.l3", observer="scheduler", evidence="shim", attribution="request",
    name="check_prefetch_progress", clock="host",
)  # fmt: skip
QUEUE_CLOSE = recorder.shape("span", ("span_id", "end_ns", "attributes.calls"), part="close", outcome="ok")


_answers: dict[str, tuple[int, int, int]] = {}
"""Request -> tokens asked for, found on the GPU and on the host, as it was told last."""
_gates: dict[str, list[int]] = {}


def name(request: Any) -> str | None:
    """The request id of a request, of a handle, or of what is one."""
    found = getattr(request, "rid", request)
    return None if found is None else str(found)


def _began(*_: Any, **__: Any) -> int:
    return recorder.now()


def _match(cls: type, method: str) -> None:
    def matched(start_ns: int, result: Any, _cache: Any, params: Any) -> None:
        request_id = name(params.req)
        if request_id is None:
            return
        device = getattr(result, "device_prefix_len", None)
        on_gpu = len(result.device_indices) if device is None else device
        answer = (len(params.key), on_gpu, result.host_hit_length)
        if _answers.get(request_id) != answer:
            _bounded(_answers)[request_id] = answer
            _told(request_id, start_ns, answer)

    around(cls, method, _began, matched)


def _told(request_id: str, start_ns: int, answer: tuple[int, int, int]) -> None:
    asked, on_gpu, on_host = answer
    outcome = "ok" if on_host else "miss"
    row = (request_id, start_ns, recorder.now(), asked, on_gpu + on_host, on_gpu, on_host)
    recorder.record((LOOKUP, *row, outcome))


def _load_back(cls: type, method: str) -> None:
    def asked(_cache: Any, params: Any) -> Any:
        return copies.asking(name(params.req))

    def done(before: Any, _result: Any, *_: Any, **__: Any) -> None:
        copies.asked(before)

    around(cls, method, asked, done, done)


def _gate(cls: type, method: str) -> None:
    def polled(now: int, ready: Any, _cache: Any, request: Any) -> None:
        request_id = name(request)
        if request_id is None:
            return
        if not ready:
            if request_id not in _gates:
                _bounded(_gates)[request_id] = [recorder.next_id(), 0]
                recorder.record((QUEUE_OPEN, _gates[request_id][0], request_id, now))
            _gates[request_id][1] += 1
        elif request_id in _gates:
            span_id, calls = _gates.pop(request_id)
            recorder.record((QUEUE_CLOSE, span_id, recorder.now(), calls))

    around(cls, method, _began, polled)


def _bounded(collection: dict[str, Any]) -> dict[str, Any]:
    while len(collection) >= LIMIT:
        del collection[next(iter(collection))]
    return collection


HOOKS = {
    "match_prefix": _match,
    "init_load_back": _load_back,
    "check_prefetch_progress": _gate,
    "loading_check": lambda cls, method: copies.watch(cls, method, "ack_load_queue"),
    "writing_check": lambda cls, method: copies.watch(cls, method, "ack_write_queue"),
}
