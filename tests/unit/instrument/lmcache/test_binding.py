"""A traced call is bound as its signature binds it, whatever it was given."""

from __future__ import annotations

from functools import wraps
from inspect import Signature, signature
from itertools import combinations
from typing import Any

import pytest
from kvtrace.instrument.lmcache.binding import MARK, Table, hasten


def plain(self: Any, keys: Any, mode: str = "new", count: int = 1) -> tuple[Any, str, int]:
    assert self is not None
    return keys, mode, count


def answer(binder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]] | str:
    try:
        bound = binder.bind_partial(*args, **kwargs)
    except TypeError as error:
        return str(error)
    bound.apply_defaults()
    return list(bound.arguments.items())


NAMES = ("self", "keys", "mode", "count", "nobody")
GIVEN = [
    (tuple(range(number)), dict.fromkeys(named, 9))
    for number in range(6)
    for size in range(4)
    for named in combinations(NAMES, size)
]


@pytest.mark.parametrize(("args", "kwargs"), GIVEN)
def test_it_answers_as_the_signature_does_errors_and_order_included(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    own = signature(plain)
    assert answer(Table(own), args, kwargs) == answer(own, args, kwargs)


def test_one_call_leaves_nothing_to_the_next() -> None:
    table = Table(signature(plain))
    answer(table, (1, 2, 3, 4), {})
    assert answer(table, (1, 2), {}) == [("self", 1), ("keys", 2), ("mode", "new"), ("count", 1)]


def traced(told: list[Any]) -> Any:
    """LMCache's decorator: the signature is a variable of its closure."""

    def deco(function: Any) -> Any:
        sig = signature(function)

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = sig.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            told.append(
                (type(sig), {name: value for name, value in bound.arguments.items() if name != "self"})
            )
            return function(*args, **kwargs)

        setattr(wrapper, MARK, function.__qualname__)
        return wrapper

    return deco


def test_traced_methods_say_the_same_as_before_through_wrappers_of_others_too() -> None:
    told: list[Any] = []
    inner = traced(told)(plain)

    @wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    kind = type("StorageManager", (), {"read": outer, "untraced": plain})
    kind().read([1], count=2)  # type: ignore[attr-defined]
    assert (hasten(kind), hasten(kind)) == (1, 0)
    assert kind().read([1], count=2) == ([1], "new", 2)  # type: ignore[attr-defined]
    (before, said), (after, again) = told
    assert (before, after) == (Signature, Table)
    assert said == again == {"keys": [1], "mode": "new", "count": 2}


def test_a_signature_that_is_not_plain_stays_what_it_is() -> None:
    told: list[Any] = []

    def starred(*keys: Any, **more: Any) -> Any:
        return keys, more

    kind = type("StorageManager", (), {"read": staticmethod(traced(told)(starred))})
    assert hasten(kind) == 0
    kind.read(1, two=2)  # type: ignore[attr-defined]
    assert told == [(Signature, {"keys": (1,), "more": {"two": 2}})]
