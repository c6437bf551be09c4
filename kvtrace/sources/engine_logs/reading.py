"""A log file, record by record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.engine_logs import (
    lmcache_client,
    lmcache_inprocess,
    lmcache_server,
    requests,
    vllm,
)
from kvtrace.sources.engine_logs.clock import Clock
from kvtrace.sources.engine_logs.forms import LMCACHE, VLLM, Record, record
from kvtrace.sources.engine_logs.log import Log
from kvtrace.sources.engine_logs.rules import by_first_word, first_word
from kvtrace.sources.lines import lines
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.sources.stream import Stream

LOOKED_AHEAD = 20_000
"""Lines in which the first year is looked for."""
MAX_PROCESSES = 1_000
_RULES = by_first_word(
    each
    for module in (lmcache_client, lmcache_inprocess, lmcache_server, vllm, requests)
    for each in module.RULES
)
_ROLES = {"APIServer": "api", "EngineCore": "scheduler", "Worker": "worker", "VllmWorker": "worker"}
_STARTED = re.compile(rb"INFO: {1,10}Started server process \[(\d{1,10})\]")
_OTHERS = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?(?: [A-Z][A-Z0-9 ]{0,30})?\] ")
"""SGLang's lines: its logs hold lines of the libraries that it uses."""
NO_ZONE = "records have no time zone: their times are taken as UTC"
BY_DATE = "records before any with a year: the year is the latest that the file's own date allows"
WHOLE = "records of vLLM have whole seconds: a row begins and ends at the second's beginning"
STAMPED = "records have the time that a container runtime wrote before them"


def kinds(head: bytes) -> set[str]:
    """Which products have records among the first lines of a file; none when it is another engine's log."""
    found = set()
    for line in head.split(b"\n"):
        if _OTHERS.match(line):
            return set()
        if (seen := record(line)) is not None:
            found.add(seen.product)
    return found


def read_log(stream: Stream, source: str, product: str) -> Iterator[Decoded]:
    """The parts of a log file of one product; what was asked and answered never comes in."""
    reader = Reader(source, product, getattr(stream, "written_ns", None))
    is_first = True
    for item in lines(stream):
        if isinstance(item, Undecodable):
            reader.log.rows.refuse(item.detail, count=item.count)
            continue
        if is_first:
            reader.look_ahead(item)
            is_first = False
        for line in item:
            reader.take(line)
            if reader.log.rows.full:
                yield reader.log.rows.part()
    yield from reader.end()


class Reader:
    """Takes lines and tells the log what they mean."""

    def __init__(self, source: str, product: str, written_ns: int | None) -> None:
        self.log = Log(source, Clock(written_ns))
        self._product = product
        self._processes: dict[str, dict[str, Any]] = {}
        self._others = self._no_records = 0

    def look_ahead(self, first: Iterable[bytes]) -> None:
        """Find the first year in the lines that begin the file."""
        for number, line in enumerate(first):
            found = record(line)
            if number >= LOOKED_AHEAD or (found and self.log.clock.look_ahead(found.stamp, found.when)):
                return

    def take(self, line: bytes) -> None:
        """One line."""
        found = record(line)
        if found is None:
            self._no_records += 1
            if self._product == LMCACHE and (own := _STARTED.match(line)):
                self.log.server = f"{self.log.source}/{int(own[1])}"
            return
        time_ns = self.log.clock.time_ns(found.stamp, found.when)
        self._seen(found, time_ns)
        self._told(found, time_ns)
        self.log.last_ns = self.log.last_ns if time_ns is None else time_ns

    def _told(self, found: Record, time_ns: int | None) -> None:
        """What the record means, if anything."""
        for each in _RULES.get((found.product, first_word(found.message)), ()):
            if (match := each.form.match(found.message)) is None:
                continue
            if found.cut:
                self.log.rows.refuse("records longer than what is looked at")
            elif time_ns is None:
                self.log.rows.refuse("records without a time", cause="impossible_time")
            else:
                each.mean(self.log, found, time_ns, match)
            return
        self._others += 1

    def _seen(self, found: Record, time_ns: int | None) -> None:
        """Who wrote, and from when to when."""
        name = self.log.process(found)
        if name is None:
            return
        known = self._processes.get(name)
        if known is None:
            if len(self._processes) >= MAX_PROCESSES:
                return
            role = "server" if self._product == LMCACHE else None
            known = self._processes[name] = {"process": name, "role": role, "first_ns": None, "last_ns": None}
        if known["role"] is None and found.name:
            known["role"] = next(
                (role for start, role in _ROLES.items() if found.name.startswith(start)), None
            )
        if time_ns is not None:
            known["first_ns"] = min(time_ns, known["first_ns"] or time_ns)
            known["last_ns"] = max(time_ns, known["last_ns"] or time_ns)

    def end(self) -> Iterator[Decoded]:
        """What waits, who wrote, and what was counted."""
        log, clock = self.log, self.log.clock
        log.finish()
        rows = log.rows
        if self._others:
            rows.remark("records of other things, left out", self._others)
        if self._no_records:
            rows.remark(
                "lines that are no records (access logs, tracebacks, banners), left out", self._no_records
            )
        if clock.by_file_date:
            rows.remark(BY_DATE, 1)
        for words, count in (
            (STAMPED, clock.stamped),
            (WHOLE, clock.short),
            (NO_ZONE, clock.short + clock.dated),
        ):
            if count:
                rows.remark(words, count)
        yield Decoded(processes=tuple(self._process_rows()), identities=tuple(self._identities()))
        yield rows.end()

    def _process_rows(self) -> Iterator[dict[str, Any]]:
        shared = {"engine": self.log.source, "host": None, "product": self._product,
                  "version": self.log.versions.get(self._product), "instrument": "log"}  # fmt: skip
        unnamed = {"process": self.log.source, "role": None, "first_ns": None, "last_ns": None}
        for known in self._processes.values() or [unnamed]:
            yield {**known, **shared}

    def _identities(self) -> Iterator[dict[str, str]]:
        """What LMCache's keys stand for; a log names no model of theirs."""
        for name, value in self.log.identity.items():
            yield {"identity_id": f"lmcache:{self.log.source}", "side": "writer", "field": name,
            "value": value,
                   "source": self.log.source}  # fmt: skip


__all__ = ["LMCACHE", "VLLM", "kinds", "read_log"]
