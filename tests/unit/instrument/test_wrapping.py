"""A hook sees every call and hurts none."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import wrapping
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

pytestmark = pytest.mark.usefixtures("told")


def engine_class() -> type:
    """A new class every time: wrapping changes it in place."""

    class Engine:
        size = 3

        def add(self, one: int, *, two: int = 0) -> int:
            """Adds."""
            return one + two

        @classmethod
        def named(cls, text: str) -> str:
            return f"{cls.__name__} {text}"

        @staticmethod
        def twice(number: int) -> int:
            return 2 * number

        def fails(self) -> None:
            raise KeyError("the engine's own")

        async def later(self) -> int:
            return 1

    return Engine


def test_after_sees_result_self_and_arguments() -> None:
    engine, seen = engine_class(), []
    assert after(engine, "add", lambda *args, **kwargs: seen.append((args, kwargs)))
    one = engine()
    assert one.add(1, two=2) == 3
    assert seen == [((3, one, 1), {"two": 2})]


def test_the_kind_of_a_method_stays() -> None:
    engine, seen = engine_class(), []
    after(engine, "named", lambda result, cls, text: seen.append((result, cls, text)))
    after(engine, "twice", lambda result, number: seen.append((result, number)))
    assert engine.named("x") == "Engine x"
    assert engine.twice(4) == engine().twice(4) == 8
    assert seen == [("Engine x", engine, "x"), (8, 4), (8, 4)]


def test_a_wrapped_method_still_looks_like_itself() -> None:
    engine = engine_class()
    after(engine, "add", lambda *_: None)
    assert engine.add.__doc__ == "Adds."
    assert engine.add.__name__ == "add"


def test_a_function_of_a_module_is_wrapped() -> None:
    module, seen = types.ModuleType("engine_module"), []
    module.start = lambda port: port + 1  # type: ignore[attr-defined]
    assert after(module, "start", lambda result, port: seen.append((result, port)))
    assert module.start(1) == 2
    assert seen == [(2, 1)]
    assert wrapping.status() == {"engine_module.start": "active"}


def test_around_hands_the_token_from_before_to_after() -> None:
    engine, seen = engine_class(), []
    around(engine, "add", lambda _self, one, **_: one * 10, lambda *args, **_: seen.append(args))
    one = engine()
    assert one.add(2) == 2
    assert seen == [(20, 2, one, 2)]


def test_an_error_of_the_engine_is_told_and_goes_on() -> None:
    engine, seen = engine_class(), []
    around(
        engine,
        "fails",
        lambda _self: "token",
        lambda *_: seen.append("after"),
        lambda token, error, _self: seen.append((token, repr(error))),
    )
    with pytest.raises(KeyError, match="own"):
        engine().fails()
    assert seen == [("token", """KeyError("the engine's own")""")]


def test_after_is_silent_when_the_engine_raised() -> None:
    engine, seen = engine_class(), []
    after(engine, "fails", lambda *_: seen.append(1))
    with pytest.raises(KeyError):
        engine().fails()
    assert seen == []


def raising(*_: Any, **__: Any) -> None:
    raise ValueError("ours")


def test_what_a_hook_raises_is_counted_and_the_engine_goes_on(told: Told) -> None:
    engine = engine_class()
    after(engine, "add", raising)
    around(engine, "twice", raising, raising)
    around(engine, "named", lambda *_: None, raising)
    around(engine, "fails", lambda *_: None, lambda *_: None, raising)
    assert (engine().add(1), engine.twice(2), engine.named("x")) == (1, 4, "Engine x")
    with pytest.raises(KeyError):
        engine().fails()
    assert len(told.losses) == 4
    assert told.losses[0] == ("hook_failure", f"{raising.__module__}.raising: ValueError")


def test_a_hook_that_always_fails_is_switched_off(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapping, "LIMIT", 3)
    engine = engine_class()
    after(engine, "add", raising)
    assert [engine().add(1) for _ in range(10)] == [1] * 10
    assert len(told.losses) == 3
    off = {"instruments": {f"{engine.__qualname__}.add": wrapping.status()[f"{engine.__qualname__}.add"]}}
    assert told.described == [off]
    assert "switched off" in next(iter(wrapping.status().values()))


def test_a_failing_recorder_does_not_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.recorder.lost", raising)
    engine = engine_class()
    after(engine, "add", raising)
    assert engine().add(1) == 1


def test_the_fault_makes_every_hook_raise(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_FAULT", "hooks")
    engine, seen = engine_class(), []
    after(engine, "add", lambda *_: seen.append(1))
    around(engine, "twice", lambda *_: seen.append(1), lambda *_: seen.append(1))
    assert (engine().add(1), engine.twice(1)) == (1, 2)
    assert seen == []
    assert len(told.losses) == 2


def test_wrapping_twice_with_the_same_hook_is_wrapping_once() -> None:
    engine, seen = engine_class(), []

    def install() -> None:
        def hook(result: int, *_: Any) -> None:
            seen.append(result)

        assert after(engine, "add", hook)

    install()
    install()
    engine().add(1)
    assert seen == [1]


def test_different_hooks_on_one_method_all_run() -> None:
    engine, seen = engine_class(), []

    def first(*_: Any) -> None:
        seen.append("first")

    def second(*_: Any) -> None:
        seen.append("second")

    after(engine, "add", first)
    after(engine, "add", second)
    engine().add(1)
    assert seen == ["first", "second"]


def test_an_inherited_method_is_wrapped_on_the_class_that_was_named() -> None:
    parent, seen = engine_class(), []
    child = type("Child", (parent,), {})
    after(child, "add", lambda *_: seen.append("child"))
    parent().add(1)
    child().add(1)
    assert seen == ["child"]


def test_a_hook_on_parent_and_child_sees_an_inherited_call_once() -> None:
    parent, seen = engine_class(), []
    child = type("Child", (parent,), {})

    def hook(*_: Any) -> None:
        seen.append(1)

    assert after(parent, "add", hook)
    assert after(child, "add", hook)
    child().add(1)
    assert seen == [1]


def test_what_cannot_be_wrapped_says_why() -> None:
    engine = engine_class()
    assert not after(engine, "absent", lambda *_: None)
    assert not after(engine, "size", lambda *_: None)
    assert not after(engine, "later", lambda *_: None)
    assert not after(dict, "get", lambda *_: None)
    place = engine.__qualname__
    assert wrapping.status() == {
        f"{place}.absent": "not wrapped: no such method in this version",
        f"{place}.size": "not wrapped: not a method",
        f"{place}.later": "not wrapped: returns before it runs",
        "dict.get": wrapping.status()["dict.get"],
    }
    assert "TypeError" in wrapping.status()["dict.get"]
    assert asyncio.run(engine().later()) == 1
