"""How does a hook follow what a method of an engine returns before it runs, without ever hurting it?

    steps(owner, name, watch)                       a method that makes a generator
        watch(self, ...)                  ─► Watch    when it is made, in the caller's thread
        Watch.enters() | leaves()           around each step: next, send, throw and close
        Watch.gave(item)                    what a step yielded
        Watch.ends(error)                   once, no step follows: returned, closed (GeneratorExit), raised

    awaited(owner, name, before, after, failed)     a method that makes a coroutine
        before(self, ...) ─► token                    when it is made, in the caller's thread
        after(token, result, self, ...) | failed(token, error, self, ...)     when it is over

What is sent, thrown, yielded, returned and raised passes as it is; the engine gets a generator or a coroutine
for a generator or a coroutine. One that is never begun has no step and no end. A hook's own error is counted
(wrapping.py) and goes nowhere.
"""

from __future__ import annotations

from functools import wraps
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Protocol

from kvtrace.instrument.wrapping import SKIP, Guard, key, place, replace, told, with_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]


class Watch(Protocol):
    """What follows one generator."""

    def enters(self) -> None:
        """A step begins, in the thread that makes it."""

    def leaves(self) -> None:
        """A step is over, in that thread."""

    def gave(self, item: Any) -> None:
        """A step yielded."""

    def ends(self, error: BaseException | None) -> None:
        """No step follows; GeneratorExit when the engine closed it."""


def steps(owner: type | ModuleType, name: str, watch: Callable[..., Watch]) -> bool:
    """Follow each generator that `owner.name` makes. False when there is nothing to wrap, see `status()`."""
    guard = Guard(place(owner, name), key(watch))
    watch = with_fault(watch)

    def wrapping(original: Function) -> Function:
        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not guard.on:
                return made
            try:
                watching = watch(*args, **kwargs)
                _expect(made, GeneratorType)
            except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
                guard.failed(error)
                return made
            return _through(made, watching, guard)

        return wrapped

    return replace(owner, name, guard, wrapping, later=True)


def awaited(
    owner: type | ModuleType, name: str, before: Function, after: Function, failed: Function | None = None
) -> bool:
    """As `around`, for a method that makes a coroutine. False when nothing can be wrapped, see `status()`."""
    guard = Guard(place(owner, name), f"{key(before)}, {after.__qualname__}")
    before, after = with_fault(before), with_fault(after)
    failed = failed and with_fault(failed)

    def wrapping(original: Function) -> Function:
        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not guard.on:
                return made
            try:
                token = before(*args, **kwargs)
                _expect(made, CoroutineType)
            except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
                guard.failed(error)
                return made
            return made if token is SKIP else ends(made, token, args, kwargs)

        async def ends(made: Coroutine[Any, Any, Any], token: Any, args: Any, kwargs: Any) -> Any:
            try:
                result = await made
            except BaseException as error:
                if failed is not None:
                    told(guard, failed, token, error, args, kwargs)
                raise
            told(guard, after, token, result, args, kwargs)
            return result

        return wrapped

    return replace(owner, name, guard, wrapping, later=True)


def _through(made: Generator[Any, Any, Any], watching: Watch, guard: Guard) -> Generator[Any, Any, Any]:
    """`yield from made`, with a word before and after each step."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        _say(guard, watching.enters)
        try:
            item = made.send(sent) if thrown is None else made.throw(thrown)
        except StopIteration as last:
            _over(guard, watching, None)
            return last.value
        except BaseException as error:
            _over(guard, watching, error)
            raise
        finally:
            sent = thrown = None  # an error that is kept would keep this frame
        _say(guard, watching.leaves)
        _say(guard, watching.gave, item)
        try:
            sent = yield item
        except GeneratorExit as closing:
            _say(guard, watching.enters)
            try:
                value: Any = made.close()  # type: ignore[func-returns-value] # from Python 3.13 on
            finally:
                _over(guard, watching, closing)
            if value is not None:
                return value
            raise
        except BaseException as error:  # noqa: BLE001 - it is the generator's, and goes there
            thrown = error


def _expect(made: Any, kind: type) -> None:
    if not isinstance(made, kind):
        raise TypeError(f"no {kind.__name__}")


def _over(guard: Guard, watching: Watch, error: BaseException | None) -> None:
    _say(guard, watching.leaves)
    _say(guard, watching.ends, error)


def _say(guard: Guard, hook: Function, *what: Any) -> None:
    try:
        hook(*what)
    except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
        guard.failed(error)
