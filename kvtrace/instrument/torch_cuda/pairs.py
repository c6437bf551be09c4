"""Two events around one copy, and how many of them there may be.

free ──take──► recorded around a copy ──► waits for the reaper ──give──► free
                                            │ never ends, cannot be read
                                            └─ retire: never used again, another may be made
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kvtrace.instrument.scope import Scope

MOST_PAIRS = 4_096
"""Copies of one device that may wait for their end at once."""


class Pair:
    """Events around one copy, and what is known of it when it is called."""

    __slots__ = (
        "blocks", "bytes", "end", "lane", "name", "op", "range", "scope", "start", "station", "stream",
        "submit_ns",
    )  # fmt: skip

    def __init__(self, station: Any, start: Any, end: Any) -> None:
        self.station = station
        self.start = start
        self.end = end
        self.op = self.name = ""
        self.scope: Scope | None = None
        self.submit_ns = self.lane = 0
        self.stream: Any = None
        self.bytes: int | None = None
        self.blocks: int | None = None
        self.range: Any = None


class Pool:
    """Pairs of one device: made when first needed, at most `most`; any thread may take and give."""

    __slots__ = ("_free", "_make", "made", "most")

    def __init__(self, make: Callable[[], Pair], most: int = MOST_PAIRS) -> None:
        self._free: deque[Pair] = deque()
        self._make = make
        self.made = 0
        self.most = most

    def take(self) -> Pair | None:
        """A pair that nobody uses; None when all of them wait. Raises what making an event raises."""
        try:
            return self._free.pop()
        except IndexError:
            if self.made >= self.most:
                return None
        pair = self._make()
        self.made += 1
        return pair

    def give(self, pair: Pair) -> None:
        """The pair may be used again. It holds no stream and no request any longer."""
        pair.stream = pair.scope = pair.range = pair.bytes = pair.blocks = None
        self._free.append(pair)

    def retire(self) -> None:
        """One pair is gone for good: its events may still be written to, or cannot be read."""
        self.made = max(0, self.made - 1)

    def forget(self) -> None:
        """No pair made so far is used again."""
        self._free.clear()
        self.made = 0
