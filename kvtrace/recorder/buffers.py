"""Rows of one thread that wait to be written, and how many may wait."""

from __future__ import annotations

from _thread import _local
from _weakref import ref
from collections import deque

QUOTA_ROWS = 1_024
"""Rows a thread may add before it looks at how many wait in all threads together."""


class Token:
    """Lives as long as the thread whose local variable it is."""

    __slots__ = ("__weakref__",)


class Buffer(deque):  # type: ignore[type-arg]
    """Rows of one thread. The thread appends, the writer takes from the left; neither needs a lock."""

    __slots__ = ("alive", "drops", "quota", "reported")

    def __init__(self, token: Token | None, quota: int = QUOTA_ROWS) -> None:
        super().__init__()
        self.alive = ref(token) if token is not None else lambda: None
        self.quota = quota
        self.drops: dict[tuple[str, object], int] = {}
        self.reported: dict[tuple[str, object], int] = {}

    def new_drops(self) -> list[tuple[tuple[str, object], int]]:
        """(cause, shape), how many rows were thrown away since the last time of asking."""
        found = []
        for key, count in list(self.drops.items()):
            more = count - self.reported.get(key, 0)
            if more:
                self.reported[key] = count
                found.append((key, more))
        return found


class Local(_local):
    """`buffer` and `token` of the current thread."""

    buffer: Buffer
    token: Token
