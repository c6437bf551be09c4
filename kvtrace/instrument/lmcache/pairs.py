"""Starts that wait for their end: which span a later event belongs to, in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from typing import Any

MOST = 65_536
"""Operations that may be open at once; of more the oldest is forgotten, and its end then has no start."""


class Pairs:
    """Name of an operation -> its span id, and what must be known of it at its end."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[Any, tuple[int, Any]] = {}

    def begin(self, name: Any, kept: Any = None) -> int:
        """A new span id. An operation of the same name that was never ended stays open for ever."""
        if len(self._open) >= MOST:
            self._open.pop(next(iter(self._open)))
        span = recorder.next_id()
        self._open[name] = (span, kept)
        return span

    def end(self, name: Any) -> tuple[int | None, Any]:
        """Its span id and what was kept; (None, None) when its start was not seen."""
        return self._open.pop(name, (None, None))

    def peek(self, name: Any) -> tuple[int | None, Any]:
        """The same, and it stays open."""
        return self._open.get(name, (None, None))


class Queues:
    """Times by name, first in, first out: when something was asked for that begins later."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Any, deque[int]] = {}
        self._count = 0

    def put(self, name: Any, at: int) -> None:
        """One more."""
        if self._count >= MOST:  # nobody fetches them: none of them is worth keeping
            self._waiting.clear()
            self._count = 0
        self._waiting.setdefault(name, deque()).append(at)
        self._count += 1

    def take(self, name: Any) -> int | None:
        """The oldest of this name."""
        found = self._waiting.get(name)
        if not found:
            return None
        self._count -= 1
        at = found.popleft()
        if not found:
            del self._waiting[name]
        return at
