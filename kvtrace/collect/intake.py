"""A bounded queue between whoever receives and the one thread that decodes and stages.

listeners  offer() ─► full: refused, the sender tries again ┐
streams    wait()  ─► full: nothing is read any more        ├─► LIMIT_BYTES ─► take() ─► feeding.py
polls      offer() ─► full: the page is left out, counted   ┘
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kvtrace.collect.feeding import Source

LIMIT_BYTES = 64 << 20
ITEM_BYTES = 256
"""What an item takes beyond its content."""
BATCH_BYTES = 8 << 20
GATHER_SECONDS = 0.2
"""So long small items are gathered: decoding one takes as long as decoding hundreds."""


class Item(NamedTuple):
    """What arrived: for whom, when (unix ns), its size, and itself."""

    source: Source
    time_ns: int
    size: int
    content: Any


class Intake:
    """Items in the order in which they came, up to a number of bytes."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, source: Source, content: Any, size: int) -> bool:
        """Take an item if there is room; an item larger than all the room is taken when nothing waits."""
        with self._changed:
            return self._taken(source, content, size + ITEM_BYTES)

    def wait(self, source: Source, content: Any, size: int) -> bool:
        """Take an item as soon as there is room; False when the queue was closed meanwhile."""
        with self._changed:
            while not self._taken(source, content, size + ITEM_BYTES):
                if self._closed:
                    return False
                self._changed.wait(1.0)
            return True

    def _taken(self, source: Source, content: Any, size: int) -> bool:
        if self._closed or (self._bytes and self._bytes + size > self.limit_bytes):
            return False
        self._items.append(Item(source, time.time_ns(), size, content))
        self._bytes += size
        self._changed.notify_all()
        return True

    def take(self) -> list[Item]:
        """What waits, some megabytes at most, gathered for a moment; empty when closed and nothing waits."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            deadline = time.monotonic() + GATHER_SECONDS
            while (
                not self._closed and self._bytes < BATCH_BYTES and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            found: list[Item] = []
            size = 0
            while self._items and (not found or size + self._items[0].size <= BATCH_BYTES):
                item = self._items.popleft()
                found.append(item)
                size += item.size
            self._bytes -= size
            self._changed.notify_all()
            return found

    def close(self) -> None:
        """Nothing more is taken; what waits is still given out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
