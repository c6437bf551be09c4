"""Which numbered batches are missing, which came twice, and where a publisher began anew?

    0 1 2 4 5      3 is missing
    0 1 2 2 3      2 came twice (the same time): it counts once
    0 1 2 0 1      a restart: later times, numbers from 0
    0 1 0 1 2 2 3  two publishers under one name: each continues its own count

A publisher counts from 0 (LMCache from 1). A recording that begins later lost nothing that it could have had:
that is said, and is no gap. A number that was missing and still comes (a replay) is not missing any more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

REMEMBERED = 16_384
"""Batches of one publisher that are told from a copy; vLLM itself replays at most 10,000."""
MAX_GAPS = 1_000
"""Gaps of one publisher that are told apart; later ones are added to the last."""
MAX_PUBLISHERS = 256
"""Publishers of one recording that are counted apart."""


@dataclass(slots=True)
class _Gap:
    first: int
    last: int
    from_ns: int | None
    to_ns: int
    count: int


@dataclass(slots=True)
class _Count:
    """One publisher's count: its last number, when, and what is missing."""

    last: int
    time_ns: int
    seen: OrderedDict[int, int] = field(default_factory=OrderedDict)
    gaps: list[_Gap] = field(default_factory=list)

    def take(self, number: int, time_ns: int) -> None:
        if number > self.last + 1:
            self.miss(self.last + 1, number - 1, self.time_ns, time_ns)
        self.last, self.time_ns = number, time_ns
        self.remember(number, time_ns)

    def remember(self, number: int, time_ns: int) -> None:
        self.seen[number] = time_ns
        if len(self.seen) > REMEMBERED:
            self.seen.popitem(last=False)

    def miss(self, first: int, last: int, from_ns: int | None, to_ns: int) -> None:
        if len(self.gaps) < MAX_GAPS:
            self.gaps.append(_Gap(first, last, from_ns, to_ns, last - first + 1))
        else:
            self.gaps[-1].count += last - first + 1
            self.gaps[-1].to_ns = to_ns

    def fill(self, number: int, time_ns: int) -> bool:
        """Whether the number was missing, and its time lies inside the gap: then it is there after all."""
        for gap in self.gaps:
            inside = gap.first <= number <= gap.last and number not in self.seen
            if inside and (gap.from_ns is None or gap.from_ns <= time_ns <= gap.to_ns):
                gap.count -= 1
                self.remember(number, time_ns)
                return True
        return False


@dataclass(slots=True)
class Numbering:
    """The counts of one stream: of one topic and data-parallel rank."""

    counts: list[_Count] = field(default_factory=list)
    duplicates: int = 0
    restarts: int = 0
    interleaved: bool = False
    began: int | None = None

    def take(self, number: int, time_ns: int) -> bool:
        """Whether a batch is new; a copy of one that was there counts once."""
        if not self.counts:
            self.counts.append(_Count(number - 1, time_ns))
            self.counts[0].take(number, time_ns)
            self.began = number
            return True
        if any(count.seen.get(number) == time_ns for count in self.counts):
            self.duplicates += 1
            return False
        newest = self.counts[-1]
        following = [count for count in self.counts if count.last == number - 1]
        if following:
            chosen = newest if newest in following else following[-1]
            self.interleaved = self.interleaved or chosen is not newest
            if chosen is not newest:
                self.counts.remove(chosen)
                self.counts.append(chosen)
            chosen.take(number, time_ns)
        elif any(count.fill(number, time_ns) for count in self.counts):
            pass
        elif number > newest.last:
            newest.take(number, time_ns)
        else:
            self._begin(number, time_ns)
        return True

    def _begin(self, number: int, time_ns: int) -> None:
        """A count that begins in the middle: what comes before its first number is missing."""
        new = _Count(number, time_ns)
        if len(self.counts) >= MAX_PUBLISHERS:
            new.gaps = self.counts.pop(0).gaps
        new.remember(number, time_ns)
        if number > 0:
            new.miss(0, number - 1, self.counts[-1].time_ns, time_ns)
        self.counts.append(new)
        self.restarts += 1

    def losses(self, source: str, what: str) -> Iterator[Loss]:
        """What is missing, gap by gap, and what came twice."""
        for count in self.counts:
            for gap in count.gaps:
                if gap.count > 0:
                    yield Loss(
                        source, "sequence_gap", gap.count,
                        from_ns=gap.from_ns or None, to_ns=gap.to_ns or None,
                        detail=f"batches {gap.first} to {gap.last} of {what}",
                    )  # fmt: skip
        if self.duplicates:
            yield Loss(source, "duplicate", self.duplicates, detail=f"batches of {what} that came again")
