"""Which call of the engine is a thread in, and what has that call moved so far?

A layerwise call is many steps, and steps of several requests take turns: each keeps its own account.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


class Call:
    """What one call of the engine has moved: bytes and keys (layerwise: of one layer each)."""

    __slots__ = ("bytes", "keys", "no_room", "request_id", "there")

    def __init__(self, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.bytes = self.keys = 0
        self.there = 0  # keys that were found where they would have been stored
        self.no_room = False

    def moves(self, objects: Any) -> int:
        """Objects of LMCache were read or handed over; returns their bytes."""
        moved = sum([size(each) for each in objects])
        self.bytes += moved
        self.keys += len(objects)
        return moved


class Under(threading.local):
    """The call that this thread is in."""

    def __init__(self) -> None:
        self.call = Call()


under = Under()


def begin(request_id: str | None) -> None:
    """A call of the engine begins in this thread; None: it is over."""
    under.call = Call(request_id)


def size(found: Any) -> int:
    """Bytes of an object of LMCache."""
    return int(found.get_size())
