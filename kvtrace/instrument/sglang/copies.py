"""When do HiCache's copies between GPU and host begin and end, and whose are they?

    init_load_back(request) ─► load(node)      asked for
    start_loading                              submitted: what many requests asked for, merged into one copy
    loading_check                              seen to be over

One row a merged copy, from its submission to the check that saw its end (the scheduler's clock); the device's
own duration stays in `attributes.device_ns`. A copy for several requests names them as members. Stores are
asked for by nodes of the tree, which belong to no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from typing import Any

LIMIT = 10_000
_ALL: dict[str, str] = {
    "component": "hicache.l2", "observer": "worker", "evidence": "shim", "clock": "host",
}  # fmt: skip
_COLUMNS = (
    "span_id", "request_id", "submit_ns", "start_ns", "tokens", "bytes", "attribution", "attributes.nodes",
)  # fmt: skip
LOAD_OPEN = recorder.shape(
    "span", (*_COLUMNS, "members"), part="open", name="start_loading", op="load", tier_from="host",
    tier_to="gpu", **_ALL,
)  # fmt: skip
STORE_OPEN = recorder.shape(
    "span", _COLUMNS, part="open", name="start_writing", op="store", tier_from="gpu", tier_to="host", **_ALL
)
CLOSE = recorder.shape("span", ("span_id", "end_ns", "attributes.device_ns"), part="close", outcome="ok")

_asking: list[str | None] = [None]
_asked: dict[int, tuple[str | None, int]] = {}
_open: dict[int, int] = {}


def asking(request_id: str | None) -> str | None:
    """From now on loads are asked for by this request; what it was before goes to `asked`."""
    before, _asking[0] = _asking[0], request_id
    return before


def asked(before: str | None) -> None:
    """The request has asked."""
    _asking[0] = before


def watch(cls: type, method: str, queue: str) -> None:
    """After a check, what has left the queue of acknowledgements is over."""

    def looked(cache: Any, *_: Any, **__: Any) -> list[Any]:
        return list(getattr(getattr(cache, "cache_controller", None), queue, ()) or ())

    def checked(before: list[Any], _result: Any, cache: Any, *_: Any, **__: Any) -> None:
        if not before:
            return
        now, left = recorder.now(), {id(ack) for ack in looked(cache)}
        for ack in before:
            span_id = None if id(ack) in left else _open.pop(id(ack), None)
            if span_id is not None:
                recorder.record((CLOSE, span_id, now, _device_ns(ack)))

    around(cls, method, looked, checked)


def _load(cls: type, method: str) -> None:
    def queued(result: Any, _controller: Any, *args: Any, **kwargs: Any) -> None:
        node_id = kwargs.get("node_id", args[2] if len(args) > 2 else -1)
        if result is not None:
            while len(_asked) >= LIMIT:
                del _asked[next(iter(_asked))]
            _asked[node_id] = (_asking[0], recorder.now())

    after(cls, method, queued)


def _start(cls: type, method: str) -> None:
    queue = "ack_load_queue" if method == "start_loading" else "ack_write_queue"

    def begun(controller: Any) -> tuple[int, int]:
        return len(getattr(controller, queue)), recorder.now()

    def submitted(begun: tuple[int, int], _result: Any, controller: Any) -> None:
        length, start_ns = begun
        for ack in getattr(controller, queue)[length:]:
            _record(ack, start_ns, loads=method == "start_loading")

    around(cls, method, begun, submitted)


def _record(ack: Any, start_ns: int, *, loads: bool) -> None:
    span_id = recorder.next_id()
    while len(_open) >= LIMIT:
        del _open[next(iter(_open))]
    _open[id(ack)] = span_id
    size, count = ack.num_bytes or None, len(ack.node_ids)
    if not loads:
        recorder.record(
            (STORE_OPEN, span_id, None, start_ns, start_ns, ack.num_tokens, size, "operation", count)
        )
        return
    whose = [_asked.pop(node, (None, start_ns)) for node in ack.node_ids]
    names = sorted({request_id for request_id, _ in whose if request_id is not None})
    submit_ns = min((asked_ns for _, asked_ns in whose), default=start_ns)
    one = names[0] if len(names) == 1 else None
    none = [None] * len(names)
    members = (names, none, none, none, none) if len(names) > 1 else None
    kind = "request" if one else "operation"
    row = (span_id, one, submit_ns, start_ns, ack.num_tokens, size, kind, count)
    recorder.record((LOAD_OPEN, *row, members))


def _device_ns(ack: Any) -> int | None:
    """The copy's own duration, which the check has waited for."""
    return round(ack.start_event.elapsed_time(ack.finish_event) * 1e6) if ack.timing_enabled else None


HOOKS = {"load": _load, "start_loading": _start, "start_writing": _start}
