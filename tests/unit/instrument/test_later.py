"""A hook follows generators and coroutines of an engine, and changes nothing about them."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import later

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.unit.instrument.conftest import Told

pytestmark = pytest.mark.usefixtures("told")


class Watch:
    """Writes down what it is told."""

    seen: list[Any] = []  # noqa: RUF012 - of the last one made

    def __init__(self, _engine: Any, *args: Any) -> None:
        Watch.seen = self.seen = [("made", args)]

    def enters(self) -> None:
        self.seen.append("enters")

    def leaves(self) -> None:
        self.seen.append("leaves")

    def gave(self, item: Any) -> None:
        self.seen.append(item)

    def ends(self, error: BaseException | None) -> None:
        self.seen.append(("ends", type(error).__name__))


def engine_class() -> type:
    """A new class every time: wrapping changes it in place."""

    class Engine:
        def walk(self, most: int) -> Generator[Any, Any, str]:
            """Says what it is sent; survives a KeyError."""
            said: Any = None
            for number in range(most):
                try:
                    said = yield (number, said)
                except KeyError as error:
                    said = repr(error)
            return "done"

        def stubborn(self) -> Generator[int, None, None]:
            try:
                yield 1
            except GeneratorExit:
                yield 2

        async def ask(self, number: int) -> int:
            await asyncio.sleep(0)
            if number < 0:
                raise ValueError("negative")
            return number + 1

    return Engine


def watched(kind: type = Watch) -> Any:
    engine = engine_class()
    assert later.steps(engine, "walk", kind)
    assert later.steps(engine, "stubborn", kind)
    return engine()


def play(made: Any, moves: list[tuple[str, Any]]) -> list[Any]:
    """What a generator answers to each move."""
    answers: list[Any] = []
    for name, what in moves:
        try:
            answers.append(getattr(made, name)(*what))
        except BaseException as error:  # noqa: BLE001 - compared
            answers.append((type(error), str(error), getattr(error, "value", None)))
    return answers


MOVES = [
    [("send", (None,)), ("send", ("x",)), ("__next__", ()), ("__next__", ()), ("__next__", ())],
    [("send", ("early",)), ("__next__", ()), ("close", ()), ("__next__", ())],
    [("__next__", ()), ("throw", (KeyError("k"),)), ("throw", (ValueError("v"),)), ("__next__", ())],
    [("throw", (ValueError("v"),)), ("__next__", ())],
    [("close", ()), ("__next__", ())],
    [("__next__", ()), ("throw", (StopIteration(3),))],
    [("__next__", ()), ("throw", (GeneratorExit(),)), ("close", ())],
]


@pytest.mark.parametrize("moves", MOVES)
def test_a_followed_generator_answers_every_move_as_the_engines_own(moves: list[tuple[str, Any]]) -> None:
    own, followed = engine_class()().walk(3), watched().walk(3)
    assert inspect.isgenerator(followed)
    assert play(followed, moves) == play(own, moves)


def test_one_that_does_not_let_itself_be_closed_raises_as_before() -> None:
    moves = [("__next__", ()), ("close", ())]
    own, followed = engine_class()().stubborn(), watched().stubborn()
    assert play(followed, moves) == play(own, moves)


def test_a_watch_is_told_each_step_and_the_end_once() -> None:
    assert list(watched().walk(2)) == [(0, None), (1, None)]
    assert Watch.seen == [
        ("made", (2,)), "enters", "leaves", (0, None), "enters", "leaves", (1, None),
        "enters", "leaves", ("ends", "NoneType"),
    ]  # fmt: skip


def test_one_that_nobody_keeps_is_closed_and_one_that_is_never_begun_says_nothing() -> None:
    made = watched().walk(2)
    del made
    assert Watch.seen == [("made", (2,))]
    made = watched().walk(2)
    next(made)
    del made
    assert Watch.seen[-3:] == ["enters", "leaves", ("ends", "GeneratorExit")]


def test_an_error_of_the_engine_goes_on_and_is_told() -> None:
    made = watched().walk(2)
    next(made)
    with pytest.raises(ValueError, match="v"):
        made.throw(ValueError("v"))
    assert Watch.seen[-1] == ("ends", "ValueError")


def test_what_a_watch_raises_is_counted_and_hurts_nothing(told: Told) -> None:
    class Bad(Watch):
        def enters(self) -> None:
            raise ZeroDivisionError

        def gave(self, item: Any) -> None:  # noqa: ARG002 - as every watch
            raise ZeroDivisionError

    assert list(watched(Bad).walk(1)) == [(0, None)]
    assert told.losses == [("hook_failure", f"{Bad.__module__}.{Bad.__qualname__}: ZeroDivisionError")] * 3


def test_a_watch_that_cannot_be_made_leaves_the_generator_alone(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTRACE_FAULT", "hooks")
    assert list(watched().walk(1)) == [(0, None)]
    assert [cause for cause, _ in told.losses] == ["hook_failure"]


def test_a_call_with_wrong_arguments_raises_at_once() -> None:
    with pytest.raises(TypeError):
        watched().walk()


def test_what_is_no_generator_is_handed_on_and_counted(told: Told) -> None:
    engine = type("Engine", (), {"walk": lambda _self, most: [most]})
    later.steps(engine, "walk", Watch)
    assert engine().walk(2) == [2]  # type: ignore[attr-defined]
    assert [cause for cause, _ in told.losses] == ["hook_failure"]


def test_a_coroutine_is_followed_from_its_making_to_its_end() -> None:
    engine, seen = engine_class(), []
    later.awaited(
        engine, "ask", lambda _self, number: seen.append(number) or "token",
        lambda token, result, _self, number: seen.append((token, result, number)),
        lambda token, error, _self, number: seen.append((token, str(error), number)),
    )  # fmt: skip
    made = engine().ask(1)
    assert inspect.iscoroutine(made)
    assert seen == [1]
    assert asyncio.run(made) == 2
    with pytest.raises(ValueError, match="negative"):
        asyncio.run(engine().ask(-1))
    assert seen == [1, ("token", 2, 1), -1, ("token", "negative", -1)]
