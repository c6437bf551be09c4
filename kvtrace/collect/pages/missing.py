"""Pages that there are not.

    . . . p p x p p . .      p: a page    .: nobody listens    x: slow, cut, a lie, or nobody between pages

A server that is not up yet, or no more, owes no page: that is said. What is missing between two pages, or was
answered badly, is a loss; so is everything when no page ever came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.collect.pages.fetching import Missed
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class _Absence:
    """Polls in a row that found nobody."""

    polls: int = 0
    from_ns: int = 0
    to_ns: int = 0


@dataclass(slots=True)
class Missing:
    """What was missed of one address."""

    source: str
    _before: int = 0
    _came: bool = False
    _now: _Absence = field(default_factory=_Absence)

    def add(self, found: Missed) -> Iterator[Loss]:
        """One page that was missed."""
        if not found.is_absence:
            yield self._loss(found, 1, found.time_ns)
            return
        if not self._now.polls:
            self._now.from_ns = found.time_ns
        self._now.polls += 1
        self._now.to_ns = found.time_ns

    def came(self) -> Iterator[Loss]:
        """A page came: what was missed since the last one was owed."""
        if not self._came:
            self._came, self._before = True, self._now.polls
        elif self._now.polls:
            yield self._absent()
        self._now = _Absence()

    def note(self) -> dict[str, None]:
        """What was missed before the first page and after the last, in words."""
        found = {"before the first page came": self._before, "after the last page came": self._now.polls}
        said = {f"{polls} polls found nobody there {when}": None for when, polls in found.items() if polls}
        return said if self._came else {}

    def losses(self) -> Iterator[Loss]:
        """What was missed where no page ever came."""
        if not self._came and self._now.polls:
            yield self._absent()

    def _absent(self) -> Loss:
        return self._loss(Missed.absent(self._now.from_ns), self._now.polls, self._now.to_ns)

    def _loss(self, found: Missed, count: int, to_ns: int) -> Loss:
        return Loss(self.source, found.cause, count, from_ns=found.time_ns, to_ns=to_ns, detail=found.detail)
