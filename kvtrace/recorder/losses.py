"""What this process knows to have lost, until it is written as rows of `loss`."""

from __future__ import annotations

import time
from collections import deque

from kvtrace.recorder.shapes import LOSS

MOST_WAITING = 10_000
MOST_DETAILS = 64
"""Losses told apart by their detail in one flush; further details are written without their text."""

Key = tuple[str, "str | None", "str | None"]


class Losses:
    """Counts by (cause, operation, detail), with the time span in which they happened."""

    __slots__ = ("_since_ns", "_waiting", "sums")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Key, int, int]] = deque()
        self._since_ns = time.monotonic_ns()
        self.sums: dict[Key, list[int]] = {}

    def add(self, cause: str, count: int, op: str | None, detail: str | None) -> None:
        """Called from any thread, also inside signal handlers: appends, nothing else."""
        if len(self._waiting) >= MOST_WAITING:
            op, detail = None, None
            self._waiting[-1] = ((cause, op, detail), count + self._waiting[-1][1], time.monotonic_ns())
            return
        self._waiting.append(((cause, op, detail), count, time.monotonic_ns()))

    def since_last(self, cause: str, count: int, op: str | None, detail: str | None = None) -> None:
        """A loss that happened between the last flush and now. Only the writer calls this."""
        self._sum((cause, op, detail), count, self._since_ns, time.monotonic_ns())

    def rows(self) -> list[tuple[object, ...]]:
        """Rows of `loss` for everything new. Only the writer calls this."""
        while self._waiting:
            key, count, at = self._waiting.popleft()
            self._sum(key, count, at, at)
        self._since_ns = time.monotonic_ns()
        sums, self.sums = self.sums, {}
        return [
            (LOSS, cause, count, op, detail, start, end)
            for (cause, op, detail), (count, start, end) in sums.items()
        ]

    def _sum(self, key: Key, count: int, start: int, end: int) -> None:
        if len(self.sums) >= MOST_DETAILS and key not in self.sums:
            key = (key[0], key[1], None)
        found = self.sums.get(key)
        if found is None:
            self.sums[key] = [count, start, end]
        else:
            found[0] += count
            found[1] = min(found[1], start)
            found[2] = max(found[2], end)
