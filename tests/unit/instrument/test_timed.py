"""Calls that are made over and over: added up, told only when they are long or inside one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import wrapping
from kvtrace.instrument.wrapping import Clock, timed

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

LONG = 100


def engine(told: Told) -> Any:
    """An engine of a class of its own, whose call lasts what it is told."""

    class Engine:
        child: Any = None

        def call(self, lasts: int, *, error: Exception | None = None) -> str:
            told.clock += lasts
            if self.child is not None:
                self.child.call(10)
            if error is not None:
                raise error
            return "result"

    return Engine


def test_short_calls_are_added_up_and_long_ones_told(told: Told) -> None:
    kind, clock, seen = engine(told), Clock(LONG), []
    assert timed(kind, "call", clock, lambda *call: seen.append(call))
    made, begin = kind(), told.clock
    for lasts in (30, 100, 20):
        assert made.call(lasts) == "result"
    assert (clock.calls, clock.total_ns, clock.end_ns) == (2, 50, begin + 150)
    assert seen == [("call", begin + 30, begin + 130, made, None)]


def test_a_call_that_raises_lasted_as_well(told: Told) -> None:
    kind, clock = engine(told), Clock(LONG)
    timed(kind, "call", clock, print)
    with pytest.raises(KeyError, match="theirs"):
        kind().call(40, error=KeyError("theirs"))
    assert (clock.calls, clock.total_ns, clock.inside) == (1, 40, None)


def test_calls_inside_one_another_are_told_the_inner_first(told: Told) -> None:
    kind, clock, seen = engine(told), Clock(LONG), []
    timed(kind, "call", clock, lambda _, start, end, own, outer: seen.append((end - start, own, outer)))
    outer, inner = kind(), kind()
    outer.child = inner
    outer.call(5)
    assert seen == [(10, inner, outer), (15, outer, None)]
    assert clock.calls == 0
    inner.call(7)
    assert (clock.calls, clock.total_ns) == (1, 7), "a call without others inside is added again"


def test_what_the_hook_raises_is_counted_and_the_engine_gets_its_result(told: Told) -> None:
    kind = engine(told)

    def tell(*_: Any) -> None:
        raise RuntimeError("ours")

    timed(kind, "call", Clock(LONG), tell)
    assert kind().call(200) == "result"
    assert [cause for cause, _ in told.losses] == ["hook_failure"]


def test_wrapping_twice_with_one_hook_adds_once(told: Told) -> None:
    kind, clock = engine(told), Clock(LONG)

    def tell(*_: Any) -> None:
        pass

    assert timed(kind, "call", clock, tell)
    assert timed(kind, "call", clock, tell)
    kind().call(30)
    assert clock.total_ns == 30
    assert wrapping.status() == {f"{kind.__qualname__}.call": "active"}
    assert not timed(kind, "gone", clock, tell)
