"""How does a hook run after or around a method of an engine without ever hurting it?

    engine calls owner.name(...)                         timed: a clock, for what is called over and over
        before(self, ...)            ─► token          only `around`
        the engine's own method      ─► result | error
        after(token, result, self, ...) | failed(token, error, self, ...), and the error goes on

The engine's own errors are raised again as they are. What a hook raises is counted as a loss (`hook_failure`)
and goes nowhere. A hook that failed LIMIT times is switched off: something is systematically wrong with it,
and raising costs the engine more than recording. Wrapping twice with the same hook is wrapping once.

`KVTRACE_FAULT=hooks`, for tests, makes every hook raise.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]

LIMIT = 1_000
ACTIVE = "active"
SKIP = object()
"""What a hook that runs before a call returns when the call is none of its business."""
COROUTINE_FLAGS = (
    0x80 | 0x20 | 0x200
)  # coroutine, generator, asynchronous generator: they return before they run
_statuses: dict[str, str] = {}


class Guard:
    """Whether one hook still runs, and how often it failed."""

    __slots__ = ("failures", "key", "on", "place")

    def __init__(self, place: str, key: str) -> None:
        self.place = place
        self.key = key
        self.on = True
        self.failures = 0

    def failed(self, error: Exception) -> None:
        """Count what a hook raised; nothing may leave from here."""
        lose(self.key, error)
        self.failures += 1
        if self.failures >= LIMIT and self.on:
            self.on = False
            _statuses[self.place] = f"switched off: {self.key} failed {LIMIT} times"
            with suppress(Exception):
                recorder.describe(instruments={self.place: _statuses[self.place]})


def lose(what: str, error: Exception) -> None:
    """Count that our own code raised inside the engine; nothing may leave from here."""
    with suppress(Exception):
        recorder.lost("hook_failure", detail=f"{what}: {type(error).__name__}")


def after(owner: type | ModuleType, name: str, hook: Function) -> bool:
    """Call `hook(result, self_or_cls, *args, **kwargs)` after each call of `owner.name` that returned.

    A static method or a module's function has no `self`: the hook gets its arguments. False when there is
    nothing to wrap; `status()` then says why.
    """
    guard = Guard(place(owner, name), key(hook))
    hook = with_fault(hook)

    def wrapping(original: Function) -> Function:
        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if guard.on:
                try:
                    hook(result, *args, **kwargs)
                except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
                    guard.failed(error)
            return result

        return wrapped

    return replace(owner, name, guard, wrapping)


def around(
    owner: type | ModuleType, name: str, before: Function, after: Function, failed: Function | None = None
) -> bool:
    """Call `before(self, ...)`, the method, then `after(token, result, self, ...)`.

    When the method raises, `failed(token, error, self, ...)` instead, and the error goes on. A call whose
    `before` raised, or returned SKIP, gets neither. False when there is nothing to wrap; `status()` then says
    why.
    """
    guard = Guard(place(owner, name), f"{key(before)}, {after.__qualname__}")
    before, after = with_fault(before), with_fault(after)
    failed = failed and with_fault(failed)

    def wrapping(original: Function) -> Function:
        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not guard.on:
                return original(*args, **kwargs)
            try:
                token = before(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
                guard.failed(error)
                return original(*args, **kwargs)
            if token is SKIP:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if failed is not None:
                    told(guard, failed, token, error, args, kwargs)
                raise
            told(guard, after, token, result, args, kwargs)
            return result

        return wrapped

    return replace(owner, name, guard, wrapping)


class Clock:
    """What calls that are made over and over took; `inside` is whose call is under way."""

    __slots__ = ("calls", "end_ns", "inside", "long_ns", "nested", "total_ns")

    def __init__(self, long_ns: int) -> None:
        self.long_ns = long_ns
        self.inside: Any = None
        self.nested = False  # a call was made inside the one under way
        self.calls = self.total_ns = self.end_ns = 0


def timed(owner: type, name: str, clock: Clock, tell: Function) -> bool:
    """Add each call of `owner.name` to a clock, also one that raises: two clock reads and an addition.

    A call of `long_ns` or more, one inside another and one with others inside are not added:
    `tell(name, start_ns, end_ns, self, outer)` gets them. False when there is nothing to wrap.
    """
    guard = Guard(place(owner, name), key(tell))
    tell = with_fault(tell)

    def wrapping(original: Function) -> Function:
        @wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            outer, clock.inside = clock.inside, self
            start_ns = recorder.now()
            try:
                return original(self, *args, **kwargs)
            finally:
                end_ns = recorder.now()
                clock.inside = outer
                if outer is None and end_ns - start_ns < clock.long_ns and not clock.nested:
                    clock.calls += 1
                    clock.total_ns += end_ns - start_ns
                    clock.end_ns = end_ns
                else:
                    clock.nested = outer is not None
                    if guard.on:
                        told(guard, tell, name, start_ns, (end_ns, self, outer), {})

        return wrapped

    return replace(owner, name, guard, wrapping)


def status() -> dict[str, str]:
    """What was asked to be wrapped in this process: `Class.method` -> "active", or why not."""
    return dict(_statuses)


def told(guard: Guard, hook: Function, token: Any, what: Any, args: Any, kwargs: Any) -> None:
    """Call a hook with what a call gave; what it raises is counted."""
    try:
        hook(token, what, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - no hook may hurt the engine
        guard.failed(error)


def replace(
    owner: type | ModuleType,
    name: str,
    guard: Guard,
    wrapping: Callable[[Function], Function],
    *,
    later: bool = False,
) -> bool:
    """Put the wrapped method where the engine finds it; the kind of method stays what it was.

    `later`: the wrapping is made for a method that returns before it runs (later.py).
    """
    try:
        found = _found(owner, name)
        inner = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        reason = _refusal(inner, later=later)
        if reason is None and guard.key not in _keys(inner):
            wrapped = wrapping(inner)
            wrapped.__kvtrace_hook__ = guard.key  # type: ignore[attr-defined]
            kind = type(found) if inner is not found else None
            setattr(owner, name, kind(wrapped) if kind else wrapped)
    except Exception as error:  # noqa: BLE001 - an engine we do not know is no reason to stop it
        reason = f"not wrapped: {type(error).__name__}: {error}"
    if reason is None and _statuses.get(guard.place, ACTIVE) == ACTIVE:
        _statuses[guard.place] = ACTIVE
    elif reason is not None:
        _statuses[guard.place] = reason
    return reason is None


def _found(owner: type | ModuleType, name: str) -> Any:
    """The attribute as it is stored, not as it is bound; inherited ones too."""
    for place in getattr(owner, "__mro__", (owner,)):
        if name in vars(place):
            return vars(place)[name]
    return None


def _refusal(found: Any, *, later: bool) -> str | None:
    if found is None:
        return "not wrapped: no such method in this version"
    if not callable(found):
        return "not wrapped: not a method"
    code = getattr(found, "__code__", None)
    if not later and code is not None and code.co_flags & COROUTINE_FLAGS:
        return "not wrapped: returns before it runs"
    return None


def _keys(function: Any) -> set[str]:
    """Which hooks a method has already, of this class or inherited."""
    keys = set()
    while function is not None:
        key = vars(function).get("__kvtrace_hook__") if hasattr(function, "__dict__") else None
        if key is not None:
            keys.add(key)
        function = getattr(function, "__wrapped__", None)
    return keys


def key(hook: Function) -> str:
    """A hook by its name: a second load may have built the same closure again."""
    named = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return f"{getattr(hook, '__module__', None) or 'unknown'}.{named}".removeprefix("kvtrace.instrument.")


def place(owner: type | ModuleType, name: str) -> str:
    """A method as `status()` names it."""
    return f"{getattr(owner, '__qualname__', None) or owner.__name__}.{name}"


def with_fault(hook: Function) -> Function:
    """The hook, or one that always raises where the tests ask for that."""
    if "hooks" not in os.environ.get("KVTRACE_FAULT", "").split(","):
        return hook

    def raising(*_: Any, **__: Any) -> None:
        raise RuntimeError("KVTRACE_FAULT=hooks")

    return raising
