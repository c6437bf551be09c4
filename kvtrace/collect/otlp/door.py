"""Whether an export is taken, and the count of those that were not.

A sender that is refused for want of room sends the same bytes again: what then comes through was not lost.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from kvtrace.collect.otlp.signals import LOGS, TRACES
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.collect.intake import Intake
    from kvtrace.collect.otlp.received import Otlp
    from kvtrace.collect.otlp.signals import Signal
    from kvtrace.sources.otlp.judging import Judged

MAX_REFUSED = 100_000
"""Refused exports that are recognised when they come again."""
NO_ROOM = "{} that were refused for want of room and did not come again"
UNREAD = "exports that are no OTLP"
UNFINISHED = "exports that never came whole: too long, corrupt, or their sender went away"
TOO_LONG = "exports longer than the limit, compressed or not"


@dataclass(slots=True)
class Answer:
    """What its sender is told of an export."""

    judged: Judged
    taken: bool
    signal: Signal = TRACES

    @property
    def rejected(self) -> int:
        """Records that were set aside though the others were taken."""
        return self.judged.impossible

    @property
    def words(self) -> str:
        """Why some records were set aside; empty when none was."""
        return self.signal.impossible if self.rejected else ""


@dataclass
class Door:
    """One listener's door; its threads come here."""

    source: Otlp
    intake: Intake
    _lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    _refused: OrderedDict[bytes, tuple[str, int]] = field(default_factory=OrderedDict)
    _gone: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, body: bytes, *, text: bool, signal: Signal = TRACES) -> Answer:
        """Look at an export and queue it; logs go no further. One at a time: looking costs memory once."""
        with self._lock:
            found = signal.judged(body, text=text)
            if found.mistake is not None:
                self._lost["undecodable", UNREAD] += 1
                return Answer(found, taken=False, signal=signal)
            self.source.knocked = True
            if signal is LOGS:
                self.source.logs += found.records
                return Answer(found, taken=True, signal=signal)
            taken = self.intake.offer(self.source, (body, text, signal), len(body))
            if not taken or self._refused:
                self._remember(body, signal.records, found.records, taken=taken)
            return Answer(found, taken, signal)

    def lose(self, cause: str, detail: str, count: int = 1) -> None:
        """Count exports that never got as far as the door."""
        with self._lock:
            self._lost[cause, detail] += count

    def _remember(self, body: bytes, what: str, records: int, *, taken: bool) -> None:
        mark = blake2b(body, digest_size=16).digest()
        if taken:
            self._refused.pop(mark, None)
            return
        self._refused[mark] = (what, records)
        if len(self._refused) > MAX_REFUSED:
            what, records = self._refused.popitem(last=False)[1]
            self._gone[what] += records

    def losses(self) -> Iterator[Loss]:
        """What was refused and did not come again, or could not be read."""
        with self._lock:
            missing = Counter(self._gone)
            for what, records in self._refused.values():
                missing[what] += records
            for what, count in missing.items():
                if count:
                    yield Loss(self.source.name, "dropped", count, detail=NO_ROOM.format(what))
            for (cause, detail), count in self._lost.items():
                if count:
                    yield Loss(self.source.name, cause, count, detail=detail)
