"""What Mooncake's messages mean, as rows."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from kvtrace.sources.engine_logs.clock import Clock
from kvtrace.sources.mooncake_log.records import record
from kvtrace.sources.mooncake_summary.client import Report
from kvtrace.sources.mooncake_summary.master import is_master, take_master
from kvtrace.sources.mooncake_summary.samples import Samples, number
from kvtrace.sources.records import MAX_TEXT, attributes

if TYPE_CHECKING:
    from kvtrace.sources.mooncake_log.records import Record

KEY_SPACE = "mooncake:unknown:unknown"
"""As the instrument of Mooncake's client calls it: a key names no model."""
ENGINE = "mooncake_transfer_engine"
NO_ZONE = "records have no time zone: their times are taken as UTC"
BY_DATE = "records without a year: it is the latest that the file's own date allows"
OTHERS = "records of other things, left out"
NO_RECORDS = "lines that are no records of the log, left out"
_REPORT = re.compile(rb"(?:Master Metrics|Master Admin Metrics): (.*)", re.DOTALL)
_NO_ROOM = re.compile(rb"Failed to start put operation for key=(.{1,512}?) due to insufficient space")
_EVICTED = re.compile(rb"\[EVICT-RESULT\] evicted_count=(\d{1,18})(?:, eviction_base=(\d{1,18}))?")
_ACTION = re.compile(
    rb"client_id=(\d{1,20}-\d{1,20})(?:, segment_name=([^,\s]{1,256}))?, action=([a-z_]{1,60})"
    rb"(?:, segment_name=([^,\s]{1,256}))?"
)
_ENGINE = re.compile(
    rb"\[Metrics\] Transfer Engine (?:Stats \(over last (\d{1,6})s\):(?: Throughput: ([\d.]{1,24}) MB/s)?"
    rb"(?: ?\| Latency Distribution \(count=(\d{1,18})\): (.{0,2000}))?"
    rb"|Throughput: ([\d.]{1,24}) MB/s \(over last (\d{1,6})s\))"
)
_SHARE = re.compile(r"(>?[\d-]{1,24})(?:μs|us): ?([\d.]{1,6})%", re.ASCII)
_MASTER_FILES = ("master", "rpc_service", "segment.cpp")


class Meaning:
    """Takes lines in their order, adds rows."""

    def __init__(self, source: str, written_ns: int | None) -> None:
        self._samples = Samples(source, process=source)
        self.rows = self._samples.rows
        self._clock = Clock(written_ns)
        self._report = Report(self._samples)
        self._in_report = False
        self._roles: Counter[str] = Counter()
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._others = self._no_records = self._zoneless = 0

    def take(self, line: bytes) -> None:
        """One line."""
        found = record(line)
        if found is None:
            if not (self._in_report and self._report.take(line.decode("utf-8", "replace").strip())):
                self._no_records += 1
            return
        self._in_report = False
        self._report.end()
        time_ns = self._clock.time_ns(None, found.when)
        if time_ns is None:
            self.rows.refuse("records without a time", cause="impossible_time")
            return
        self._zoneless += 1
        self._mean(found, self._seen(found, time_ns + found.part_ns))

    def _seen(self, found: Record, time_ns: int) -> int:
        self._roles["server" if found.place.startswith(_MASTER_FILES) else "client"] += 1
        self._first_ns = min(time_ns, self._first_ns or time_ns)
        self._last_ns = max(time_ns, self._last_ns or time_ns)
        return time_ns

    def _mean(self, found: Record, time_ns: int) -> None:
        message = found.message
        self._samples.time_ns = time_ns
        if (report := _REPORT.match(message)) and is_master(report[1]):
            self._samples.page += 1
            take_master(report[1].decode("utf-8", "replace"), self._samples)
        elif message.startswith(b"Client Metrics Report:"):
            self._in_report = True
        elif match := _ENGINE.match(message):
            self._engine(match)
        elif match := _NO_ROOM.match(message):
            self._no_room(_text(match[1]), found, time_ns)
        elif (match := _EVICTED.match(message)) and int(match[1]):
            self._point(found, time_ns, "evict", "EVICT-RESULT", reason="capacity", outcome="ok",
                        removed_keys=int(match[1]), looked_at=match[2] and int(match[2]))  # fmt: skip
        elif match := _ACTION.match(message):
            segment = match[2] or match[4]
            self._point(found, time_ns, None, _text(match[3]), client_id=_text(match[1]),
                        segment=segment and _text(segment))  # fmt: skip
        else:
            self._others += 1

    def _engine(self, match: re.Match[bytes]) -> None:
        """What a transfer engine moved in the seconds before, and how long its tasks took."""
        self._samples.page += 1
        seconds, rate = match[1] or match[6], match[2] or match[5]
        self._samples.add(f"{ENGINE}.interval_s", "gauge", float(seconds))
        if rate is not None and (value := number(_text(rate))) is not None:
            self._samples.add(f"{ENGINE}.bytes_per_s", "gauge", value * (1 << 20))
        if match[3] is not None:
            self._samples.add(f"{ENGINE}.tasks", "gauge", float(match[3]))
            for bucket, percent in _SHARE.findall(_text(match[4])):
                share = number(percent)
                if share is not None:
                    self._samples.add(f"{ENGINE}.share_of_tasks", "gauge", share / 100, took_us=bucket)

    def _point(
        self, found: Record, time_ns: int, op: str | None, name: str, *, reason: str | None = None,
        outcome: str | None = None, **said: Any,
    ) -> None:  # fmt: skip
        self.rows.add("span", {
            "op": op, "name": name, "start_ns": time_ns, "end_ns": time_ns, "reason": reason,
            "outcome": outcome, "component": "mooncake.store", "observer": "server", "evidence": "native",
            "clock": "host", "attribution": "aggregate", "process": self.rows.source,
            "engine": self.rows.source,
            "attributes": attributes(log_line=found.place, **said),
        })  # fmt: skip

    def _no_room(self, key: str, found: Record, time_ns: int) -> None:
        """A client could not even start to write."""
        who = {"component": "mooncake.store", "evidence": "native", "process": self.rows.source,
               "engine": self.rows.source}  # fmt: skip
        self.rows.add("span", {
            **who, "op": "store", "name": "put", "start_ns": time_ns, "end_ns": time_ns, "outcome": "failed",
            "reason": "no_room", "observer": "client", "clock": "host", "attribution": "key",
            "attributes": attributes(log_line=found.place, key=key[:MAX_TEXT]),
        })  # fmt: skip
        self.rows.add("block", {
            **who, "time_ns": time_ns, "event": "failed", "mode": "write", "key_space": KEY_SPACE, "key": key,
            "reason": "no room",
        })  # fmt: skip

    def finish(self) -> None:
        """What was counted."""
        self._samples.finish()
        counted = [(OTHERS, self._others), (NO_RECORDS, self._no_records), (NO_ZONE, self._zoneless)]
        if self._clock.by_file_date:
            counted.append((BY_DATE, self._clock.short))
        for words, count in counted:
            if count:
                self.rows.remark(words, count)

    def processes(self) -> tuple[dict[str, Any], ...]:
        """Who wrote the file: a master, where most of its records are of one."""
        if self._first_ns is None:
            return ()
        ((role, _),) = self._roles.most_common(1)
        return ({
            "process": self.rows.source, "engine": self.rows.source, "host": None, "role": role,
            "product": "mooncake", "version": None, "instrument": "log", "first_ns": self._first_ns,
            "last_ns": self._last_ns,
        },)  # fmt: skip


def _text(found: bytes) -> str:
    return found.decode("utf-8", "replace")
