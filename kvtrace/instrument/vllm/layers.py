"""Which of a step's many small calls of a connector made it wait?

    layer     0         1         2              wait_for_layer_load, save_kv_layer: a call a layer
           l . s     l . s     lllll . s         a call over LONG_NS is a row
           └─────────┴── the rest: one sum a step and reason, a row when it is over LONG_NS in all ──┘

A row of a sum is as long as its calls together and ends with the last of them: its place is derived, and says
so. Methods that do nothing in a class, and are called for every layer all the same, are left alone.

A wait for loads names those that the scheduler put inside the step. Which requests a layer is saved for no
connector says: of a wait for stores the members are those that the step computes. With more than MOST_NAMED
of them a single layer's row names nobody: names cost more than the row, once a layer, and the step around it
has them.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, inside, products
from kvtrace.instrument.vllm.carrier import computed_in_the_step, inside_the_step
from kvtrace.instrument.wrapping import Clock, around, timed

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

LONG_NS = 100_000
"""A shorter call is no row of its own."""
MOST_NAMED = 64
CALLS = {"wait_for_layer_load": "load", "save_kv_layer": "store", "wait_for_save": "store"}
"""Method -> what the step waits for in it."""
_WAIT = (
    "start_ns", "end_ns", "reason", "members", "component", "rank", "attribution", "attributes.call",
    "attributes.children", "attributes.calls",
)  # fmt: skip
_SEEN = recorder.shape("span", _WAIT, name="kv_wait", op="wait", observer="worker", evidence="shim")
_SUMMED = recorder.shape(
    "span", (*_WAIT, "attributes.total_ns"), name="kv_waits", op="wait", observer="worker", evidence="derived"
)
_IDLE = {"RESUME", "NOP", "CACHE", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS"}


class Sum(Clock):
    """The short calls of one reason since the step began, and what its children had of them."""

    __slots__ = ("children", "inner", "last_long_ns", "reason")

    def __init__(self, reason: str) -> None:
        super().__init__(LONG_NS)
        self.last_long_ns = 0
        self.reason = reason
        self.inner: dict[str, int] = {}  # of the call under way
        self.children: dict[str, int] = {}

    def clear(self) -> None:
        """A new step."""
        self.calls = self.total_ns = self.end_ns = self.last_long_ns = 0
        self.children = {}

    def tell(self, name: str, start_ns: int, end_ns: int, connector: Any, outer: Any) -> None:
        """A call that is long, inside another one, or has others inside."""
        took_ns = end_ns - start_ns
        if outer is not None:
            if outer is not connector:
                child = products.component(connector)
                self.inner[child] = self.inner.get(child, 0) + took_ns
            return
        inner, self.inner = self.inner, {}
        if took_ns >= LONG_NS:
            self.last_long_ns = end_ns
            names = _named(self.reason, connector, name)
            wait(start_ns, end_ns, self.reason, connector, name, request_ids=names, children=inner)
            return
        self.calls += 1
        self.total_ns += took_ns
        self.end_ns = end_ns
        for child, inner_ns in inner.items():
            self.children[child] = self.children.get(child, 0) + inner_ns


_inside: list[Any] = []
_sums = {reason: Sum(reason) for reason in ("load", "store")}


def instrument(connector: type) -> None:
    """Wrap the calls of this class that a step makes for every layer, and where it is done with them."""
    for name, reason in CALLS.items():
        if not does_nothing(connector, name):
            timed(connector, name, _sums[reason], _sums[reason].tell)
    around(connector, "clear_connector_metadata", _entered, _step_over, _left)


def does_nothing(owner: type, name: str) -> bool:
    """Whether a method is there and only returns a constant."""
    code = getattr(getattr(owner, name, None), "__code__", None)
    return code is not None and all(each.opname in _IDLE for each in dis.get_instructions(code))


def members(request_ids: Collection[str]) -> tuple[Any, ...] | None:
    """Requests as a row names them; None when there are none to name."""
    if not request_ids:
        return None
    unknown = (None,) * len(request_ids)
    return (tuple(request_ids), unknown, unknown, unknown, unknown)


def wait(
    start_ns: int, end_ns: int, reason: str, connector: Any, call: str, *,
    request_ids: Collection[str], children: dict[str, int], calls: int = 1,
) -> None:  # fmt: skip
    """A row: from when to when a step stood still in a call, or as long as the sum of several."""
    shape, more = (_SEEN, ()) if calls == 1 else (_SUMMED, (end_ns - start_ns,))
    inner = " ".join([f"{name}={took_ns}" for name, took_ns in sorted(children.items())]) or None
    recorder.record((
        shape, start_ns, end_ns, reason, members(request_ids), products.component(connector),
        configuration.here().rank, "operation" if request_ids else "aggregate", call, inner, calls, *more,
    ))  # fmt: skip


def _entered(connector: Any, *_: Any, **__: Any) -> None:
    _inside.append(connector)


def _left(_token: None, _error: BaseException, *_: Any, **__: Any) -> None:
    _inside.pop()


def _named(reason: str, connector: Any, call: str) -> tuple[str, ...]:
    if reason == "load":
        return inside_the_step(connector)
    found = computed_in_the_step(connector)
    return () if call == "save_kv_layer" and len(found) > MOST_NAMED else found


def _step_over(_token: None, _result: Any, connector: Any, *_: Any, **__: Any) -> None:
    """The step lets go of its metadata: what its short calls took together."""
    _inside.pop()
    if _inside:
        return
    inside.step_over(_sums["load"].last_long_ns)
    for total in _sums.values():
        if total.calls and total.total_ns >= LONG_NS:
            wait(total.end_ns - total.total_ns, total.end_ns, total.reason, connector, "layers",
                 request_ids=_named(total.reason, connector, "layers"), children=total.children,
                 calls=total.calls)  # fmt: skip
        if total.calls or total.last_long_ns:
            total.clear()
