"""Which request is this code working for?

    with kvtrace.request("cmpl-7"):      any engine or script
        cache.copy_(pages)               the row of this copy says cmpl-7

A context variable: scopes nest, every thread and every asyncio task keeps its own, and a thread that is
started inside a scope begins without one (`contextvars.copy_context().run` hands it on). Nothing is recorded
here: without a recording a scope costs setting a context variable.
"""

from __future__ import annotations

from contextvars import ContextVar

TYPE_CHECKING = False  # importing typing costs an engine's start more than this file
if TYPE_CHECKING:
    from contextvars import Token


class Scope:
    """For whom copies are made: one request, several (`members`), or what somebody nearer records itself."""

    __slots__ = ("covered", "members", "request_id", "transfer_id")

    def __init__(
        self,
        request_id: str | None = None,
        *,
        members: tuple[str, ...] = (),
        transfer_id: str | None = None,
        covered: bool = False,
    ) -> None:
        self.request_id = request_id
        self.members = members
        self.transfer_id = transfer_id
        self.covered = covered


COVERED = Scope(covered=True)
"""Copies in it are recorded by whoever set it, with events of their own: they give no second row."""
_scope: ContextVar[Scope | None] = ContextVar("kvtrace_scope", default=None)
current = _scope.get
"""The scope of this thread or task; None outside of all."""


def enter(scope: Scope) -> Token[Scope | None]:
    """Begin a scope; what it returns goes to `leave`."""
    return _scope.set(scope)


def leave(token: Token[Scope | None]) -> None:
    """End a scope. Never raises: a generator may be closed in another context than it began in."""
    try:
        _scope.reset(token)
    except ValueError:
        _scope.set(None)


class request:  # noqa: N801 - read as `with kvtrace.request(id):`
    """`with kvtrace.request(id):` names the request of everything copied inside; several ids share copies.

    `transfer_id` ties the copies to a transfer that another observer records too. The same object may be
    entered again, also inside itself. Never raises.
    """

    __slots__ = ("_scope", "_tokens")

    def __init__(self, *request_ids: str, transfer_id: str | None = None) -> None:
        one = request_ids[0] if len(request_ids) == 1 else None
        members = request_ids if len(request_ids) > 1 else ()
        self._scope = Scope(one, members=members, transfer_id=transfer_id)
        self._tokens: list[Token[Scope | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_scope.set(self._scope))

    def __exit__(self, *_: object) -> None:
        leave(self._tokens.pop())
