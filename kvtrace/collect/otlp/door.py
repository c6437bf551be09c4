"""Whether an export is taken, and the count of those that were not.

A sender that is refused for want of room sends the same bytes again: what then comes through was not lost.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from kvtrace.sources.losses import Loss
from kvtrace.sources.otlp.judging import Judged, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.collect.intake import Intake
    from kvtrace.collect.otlp.received import Otlp

MAX_REFUSED = 100_000
"""Refused exports that are recognised when they come again."""
NO_ROOM = "spans that were refused for want of room and did not come again"
UNREAD = "exports that are no OTLP"
UNFINISHED = "exports that never came whole: too long, corrupt, or their sender went away"
TOO_LONG = "exports longer than the limit, compressed or not"


@dataclass(slots=True)
class Answer:
    """What its sender is told of an export."""

    judged: Judged
    taken: bool

    @property
    def rejected(self) -> int:
        """Spans that were set aside though the others were taken."""
        return self.judged.impossible

    @property
    def words(self) -> str:
        """Why some spans were set aside; empty when none was."""
        if not self.rejected:
            return ""
        return "spans that end before they start, or whose times are outside of 64-bit nanoseconds"


@dataclass
class Door:
    """One listener's door; its threads come here."""

    source: Otlp
    intake: Intake
    _lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    _refused: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    _gone: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, body: bytes, *, text: bool) -> Answer:
        """Look at an export and queue it; one at a time: what looking costs is paid once."""
        with self._lock:
            found = judged(body, text=text)
            if found.mistake is not None:
                self._lost["undecodable", UNREAD] += 1
                return Answer(found, taken=False)
            self.source.knocked = True
            taken = self.intake.offer(self.source, (body, text), len(body))
            if not taken or self._refused:
                self._remember(body, found.spans, taken=taken)
            return Answer(found, taken)

    def lose(self, cause: str, detail: str, count: int = 1) -> None:
        """Count exports that never got as far as the door."""
        with self._lock:
            self._lost[cause, detail] += count

    def _remember(self, body: bytes, spans: int, *, taken: bool) -> None:
        mark = blake2b(body, digest_size=16).digest()
        if taken:
            self._refused.pop(mark, None)
            return
        self._refused[mark] = spans
        if len(self._refused) > MAX_REFUSED:
            self._gone += self._refused.popitem(last=False)[1]

    def losses(self) -> Iterator[Loss]:
        """What was refused and did not come again, or could not be read."""
        with self._lock:
            missing = sum(self._refused.values()) + self._gone
            if missing:
                yield Loss(self.source.name, "dropped", missing, detail=NO_ROOM)
            for (cause, detail), count in self._lost.items():
                if count:
                    yield Loss(self.source.name, cause, count, detail=detail)
