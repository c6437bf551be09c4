"""Which request is this code working for?

    with kvtrace.request("cmpl-7"):      any engine or script
        cache.copy_(pages)               the row of this copy says cmpl-7

A context variable: scopes nest, every thread and every asyncio task keeps its own, and a thread that is
started inside a scope begins without one (`contextvars.copy_context().run` hands it on). Nothing is recorded
here: without a recording a scope costs setting a context variable.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import monotonic_ns

TYPE_CHECKING = False  # importing typing costs an engine's start more than this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from typing import Protocol

    class Followed(Protocol):
        """A scope that somebody follows while it lasts: `scope` is the one to be in, `end` never raises."""

        scope: Scope

        def end(self, row: tuple[object, ...] | None = None, error: object = None) -> None:
            """It is over, and what a recording would say of it, if anything."""


class Scope:
    """For whom copies are made: one request, several (`members`), or what somebody nearer records itself."""

    __slots__ = ("covered", "members", "request_id", "span", "transfer_id")

    def __init__(
        self,
        request_id: str | None = None,
        *,
        members: tuple[str, ...] = (),
        transfer_id: str | None = None,
        covered: bool = False,
        span: object = None,
    ) -> None:
        self.request_id = request_id
        self.members = members
        self.transfer_id = transfer_id
        self.covered = covered
        self.span = span


COVERED = Scope(covered=True)
"""Copies in it are recorded by whoever set it, with events of their own: they give no second row."""
_scope: ContextVar[Scope | None] = ContextVar("kvtrace_scope", default=None)
current = _scope.get
"""The scope of this thread or task; None outside of all."""
follow: Callable[[Scope, str | None, int], Followed | None] | None = None
"""Asked when a scope begins: (scope, its operation or None, monotonic ns). Set by autoinstrument/."""


def enter(scope: Scope) -> Token[Scope | None]:
    """Begin a scope; what it returns goes to `leave`."""
    return _scope.set(scope)


def leave(token: Token[Scope | None]) -> None:
    """End a scope. Never raises: a generator may be closed in another context than it began in."""
    try:
        _scope.reset(token)
    except ValueError:
        _scope.set(None)


def within(mine: Scope | None, action: Callable[..., object], *args: object) -> None:
    """Call `action(*args)` in the scope that another thread was in, if somebody follows it."""
    if mine is None or mine.span is None:
        action(*args)
        return
    token = enter(mine)
    try:
        action(*args)
    finally:
        leave(token)


class request:  # noqa: N801 - read as `with kvtrace.request(id):`
    """`with kvtrace.request(id):` names the request of everything copied inside; several ids share copies.

    `transfer_id` ties the copies to a transfer that another observer records too. The same object may be
    entered again, also inside itself. Never raises.
    """

    __slots__ = ("_entered", "_scope")

    def __init__(self, *request_ids: str, transfer_id: str | None = None) -> None:
        one = request_ids[0] if len(request_ids) == 1 else None
        members = request_ids if len(request_ids) > 1 else ()
        self._scope = Scope(one, members=members, transfer_id=transfer_id)
        self._entered: list[tuple[Token[Scope | None], Followed | None]] = []

    def __enter__(self) -> None:
        followed = None if follow is None else follow(self._scope, None, monotonic_ns())
        mine = self._scope if followed is None else followed.scope
        self._entered.append((_scope.set(mine), followed))

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        token, followed = self._entered.pop()
        leave(token)
        if followed is not None:
            followed.end(None, error)
