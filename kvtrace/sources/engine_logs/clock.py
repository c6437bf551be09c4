"""The time of a record as unix ns.

vLLM writes neither a year nor a zone, and whole seconds; LMCache a year and milliseconds, and no zone; a
container runtime all of them. In this order:

* a runtime's own time before the record is the record's time;
* a year comes from the last record of the file that had one; before the first, from that first one; in a file
  without any from the file's own date, which no record is later than;
* around a turn of the year the nearest of the possible years is it;
* without a zone a time is taken as UTC, and that is said.

A record whose year nobody knows has no time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

SECOND_NS = 1_000_000_000
_DAY_S, _LATEST_S = 86_400, 9_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(r"(.{10})T(.{8})(?:[.,](\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))", re.ASCII)
_DATED = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[,.](\d{3}))?", re.ASCII)
_SHORT = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)", re.ASCII)


class Clock:
    """Times of one file, and how they were found.

    stamped, dated, short: how many records each kind of time was taken from; unknown: how many have none
    """

    def __init__(self, written_ns: int | None) -> None:
        self._latest_s = None if written_ns is None else written_ns // SECOND_NS + _DAY_S
        self._near_s: int | None = None
        self._memory: dict[str, int | None] = {}
        self.by_file_date = False
        self.stamped = self.dated = self.short = self.unknown = 0

    def look_ahead(self, stamp: str | None, when: str) -> bool:
        """Take the year of a record that is still to come; whether it has one."""
        found = _of_stamp(stamp) if stamp else _of_date(when)
        if found is not None:
            self._near_s = found // SECOND_NS
        return found is not None

    def time_ns(self, stamp: str | None, when: str) -> int | None:
        """The time of a record."""
        found = _of_stamp(stamp) if stamp else None
        if found is not None:
            self.stamped += 1
        elif (found := self._remembered(when)) is None:
            self.unknown += 1
            return None
        self._near_s = found // SECOND_NS
        return found

    def _remembered(self, when: str) -> int | None:
        """A log has many records a second: each time is worked out once."""
        is_short = len(when) == 14
        self.short += is_short
        self.dated += not is_short
        if when not in self._memory:
            if len(self._memory) > 1000:
                self._memory.clear()
            self._memory[when] = self._short(when) if is_short else _of_date(when)
        return self._memory[when]

    def _short(self, when: str) -> int | None:
        """A time without a year: nearest to the last one, else the latest that the file's date allows."""
        found = _SHORT.fullmatch(when)
        near = self._near_s if self._near_s is not None else self._latest_s
        if found is None or near is None or not 0 < near < _LATEST_S:
            return None
        year = (_EPOCH.fromtimestamp(near, UTC)).year
        possible = [
            seconds
            for each in (year - 1, year, year + 1)
            if (seconds := _seconds(each, *map(int, found.groups()))) is not None
        ]
        if self._near_s is None:
            self.by_file_date = True
            possible = [seconds for seconds in possible if seconds <= near][-1:]
        return min(possible, key=lambda seconds: abs(seconds - near)) * SECOND_NS if possible else None


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    """A date of the calendar, taken as UTC, as unix seconds; 29 February only where it is."""
    try:
        since = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    found = since.days * _DAY_S + since.seconds
    return found if 0 < found < _LATEST_S else None


def _of_date(when: str) -> int | None:
    found = _DATED.fullmatch(when)
    if found is None:
        return None
    seconds = _seconds(*(int(part) for part in found.groups()[:6]))
    return None if seconds is None else seconds * SECOND_NS + int(found[7] or 0) * 1_000_000


def _of_stamp(stamp: str) -> int | None:
    found = _STAMP.fullmatch(stamp)
    plain = found and _of_date(f"{found[1]} {found[2]}")
    if not found or plain is None:
        return None
    offset_s = (int(found[5]) * 60 + int(found[6])) * 60 if found[4] else 0
    exact = (
        plain + int((found[3] or "0").ljust(9, "0")) - (-1 if found[4] == "-" else 1) * offset_s * SECOND_NS
    )
    return exact if exact > 0 else None
