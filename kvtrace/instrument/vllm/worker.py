"""When does a step stand still for a transfer, and whose?

    handle_preemptions   start_load_kv          wait_for_layer_load ... save_kv_layer   wait_for_save
    |-- store -----|     |-- load ---------|      (layers.py)                              (layers.py)

A worker runs the step of a whole batch: everybody in it pays for these calls. `start_load_kv` is a wait when
the scheduler put loads inside the step, and names their requests; what it does for asynchronous loads is no
wait. `handle_preemptions` is one from LONG_NS on, if it has anything to do: it submits what it must flush,
and waits for it. Of a connector of several the outermost call is the row; what the calls inside it took is
`attributes.children`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, inside, layers, offload, products
from kvtrace.instrument.vllm.carrier import inside_the_step
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LONG_NS = layers.LONG_NS
ERRORS = "kv_load_errors"
_ERRORS = recorder.shape(
    "span",
    ("start_ns", "end_ns", "blocks", "members", "component", "rank", "attribution", "attributes.block_ids"),
    name=ERRORS, observer="worker", evidence="shim", outcome="failed",
)  # fmt: skip
_MOST_IDS = 64
"""So many ids of blocks are written; their number always is."""


class Call:
    """One call under way, and what the calls inside it did. `idle`: it has nothing to do."""

    __slots__ = ("children", "connector", "idle", "inner", "inner_ids", "request_ids", "start_ns")

    def __init__(self, connector: Any, request_ids: Iterable[str], *, idle: bool) -> None:
        self.connector = connector
        self.request_ids = set(request_ids)
        self.children: dict[str, int] = {}
        self.idle = idle
        self.inner = 0
        self.inner_ids: set[str] = set()
        self.start_ns = recorder.now()


_calls: list[Call] = []


def instrument(connector: type) -> None:
    """Wrap where a step of a worker may stand still for this connector class."""
    if not layers.does_nothing(connector, "handle_preemptions"):
        around(connector, "handle_preemptions", _flush_begins, _flush_ended, _broke)
    around(connector, "start_load_kv", _load_begins, _load_ended, _broke)
    around(connector, "get_block_ids_with_load_errors", _asked, _errors, _broke)
    layers.instrument(connector)


def _flush_begins(connector: Any, kv_connector_metadata: Any = None, *_: Any, **__: Any) -> Call:
    """Whose stores it is about is known before, not after."""
    request_ids = offload.flushed_by(connector, kv_connector_metadata)
    return _begin(connector, request_ids or (), idle=request_ids is not None and not request_ids)


def _flush_ended(call: Call, _result: Any, *_: Any, **__: Any) -> None:
    took_ns = _end(call)
    if not _calls and took_ns >= LONG_NS and not call.idle:
        _tell(call, took_ns, "store", "handle_preemptions")


def _load_begins(connector: Any, *_: Any, **__: Any) -> Call:
    return _begin(connector, inside_the_step(connector))


def _load_ended(call: Call, _result: Any, *_: Any, **__: Any) -> None:
    took_ns = _end(call)
    if call.request_ids > call.inner_ids:
        waits = not layers.does_nothing(type(call.connector), "wait_for_layer_load")
        inside.began(call.connector, call.start_ns, call.start_ns + took_ns, waits=waits)
    if not _calls and call.request_ids:
        _tell(call, took_ns, "load", "start_load_kv")


def _asked(connector: Any, *_: Any, **__: Any) -> Call:
    return _begin(connector, ())


def _errors(call: Call, block_ids: Any, connector: Any, *_: Any, **__: Any) -> None:
    """Blocks that did not arrive; whose they are the scheduler finds out."""
    _end(call)
    if _calls or not block_ids:
        return
    inside.lost(len(block_ids))
    now, some = recorder.now(), sorted(block_ids)[:_MOST_IDS]
    names = inside_the_step(connector)
    recorder.record((
        _ERRORS, now, now, len(block_ids), layers.members(names), products.component(connector),
        configuration.here().rank, "operation" if names else "aggregate", " ".join(map(str, some)),
    ))  # fmt: skip


def _begin(connector: Any, request_ids: Iterable[str], *, idle: bool = False) -> Call:
    call = Call(connector, request_ids, idle=idle)
    _calls.append(call)
    return call


def _end(call: Call) -> int:
    """The call is over: how long it took, ns; the one around it learns of it, unless it is super()'s."""
    took_ns = recorder.now() - call.start_ns
    while _calls and _calls.pop() is not call:
        pass
    if _calls:
        outer = _calls[-1]
        outer.request_ids |= call.request_ids
        outer.inner_ids |= call.request_ids
        outer.idle = call.idle and (outer.idle or not outer.inner)
        outer.inner += 1
        if outer.connector is not call.connector:
            name = products.component(call.connector)
            outer.children[name] = outer.children.get(name, 0) + took_ns
        for name, inner_ns in call.children.items():
            outer.children[name] = outer.children.get(name, 0) + inner_ns
    return took_ns


def _broke(call: Call, _error: BaseException, *_: Any, **__: Any) -> None:
    _end(call)


def _tell(call: Call, took_ns: int, reason: str, what: str) -> None:
    layers.wait(
        call.start_ns, call.start_ns + took_ns, reason, call.connector, what,
        request_ids=sorted(call.request_ids), children=call.children,
    )  # fmt: skip
