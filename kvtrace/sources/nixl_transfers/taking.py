"""One record of a transfer -> one row, with the time that its caller, or another record, ties it to."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import (
    LATEST_TIME_NS,
    Rows,
    at,
    attributes,
    number,
    span_ns,
    text,
    time_ns,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

US = 1_000
SPELLINGS = (
    ("startTime", "postDuration", "xferDuration", "totalBytes", "descCount"),
    ("start_time_us", "post_duration_us", "xfer_duration_us", "total_bytes", "desc_count"),
)
"""The five numbers, as Python's and as the C and Rust bindings call them."""
BELOW = ("telemetry", "xfer_telemetry", "stats")
POSTED = ("t0_ns", "posted_ns", "submit_ns")
SINCE_START = "transfers of a monotonic clock alone: their times count from the machine's start, put at 1970"
BORROWED = "transfers without the caller's time: anchored by another transfer of the file"
TIERS = {
    "DRAM": "host", "VRAM": "gpu", "FILE": "disk", "BLK": "disk", "BLOCK": "disk", "OBJ": "object",
    "CPU": "host", "CUDA": "gpu",
}  # fmt: skip
"""NIXL's kinds of memory, without _SEG -> the tier."""
_FAR = {
    "POSIX": "disk", "GDS": "disk", "GDS_MT": "disk", "HF3FS": "disk", "GUSLI": "disk", "OBJ": "object",
    "AZURE_BLOB": "object",
}  # fmt: skip
"""Backends whose far side is of one kind by what they are."""
_OPS = {"READ": "load", "WRITE": "store"}
_SAYS = ("op", "operation", "direction", "tag")
_STATES = {"DONE": "ok", "ERR": "failed", "PROC": "open"}
_WORD = re.compile(r"[A-Za-z]+")
_OWN = (
    *BELOW, *POSTED, "op", "operation", "direction", "tag", "backend", "state", "request_id", "agent",
    "local", "remote", "remote_agent", "peer", "rank", "exc", "error", "py_us",
)  # fmt: skip
"""Fields that a record may have beside the five."""
_KNOWN = frozenset((*_OWN, *(name for names in SPELLINGS for name in names)))


def numbers(record: Any) -> tuple[Any, ...] | None:
    """The five numbers of a record, wherever in it they are; None when it has not all of them."""
    for place in _places(record):
        for names in SPELLINGS:
            if names[0] in place and all(number(place.get(name)) is not None for name in names):
                return tuple(place[name] for name in names)
    return None


def _places(record: Any) -> Iterator[dict[str, Any]]:
    if isinstance(record, dict):
        yield record
        yield from (below for name in BELOW if isinstance(below := record.get(name), dict))


class Transfers:
    """Takes records, adds a row a transfer."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._offset: int | None = None

    def take(self, value: Any) -> None:
        """One record; what it lacks is null, what is no record is counted."""
        found = numbers(value)
        if found is None:
            self._failed(value)
            return
        start, post, length = (span_ns(part, US) for part in found[:3])
        if start is None or length is None:
            self.rows.refuse("transfers whose times are none", op=_op(value), cause="impossible_time")
            return
        begin = self._begin(start, _posted(value))
        if begin is None:
            self.rows.refuse("transfers whose times are none", op=_op(value), cause="impossible_time")
            return
        outcome = _STATES.get(str(value.get("state", "DONE")), "unknown")
        known = {"post_ns": post, "descriptors": whole(found[4]), "monotonic_ns": start}
        self.rows.add("span", {
            **_row(value), "start_ns": begin, "submit_ns": begin, "bytes": whole(found[3]),
            "outcome": outcome, "end_ns": None if outcome == "open" else begin + length,
            "attributes": attributes(**known, **_said(value)),
        })  # fmt: skip
        self._unread(value)

    def finish(self) -> None:
        """Nothing waits."""

    def _begin(self, start: int, posted: int | None) -> int | None:
        """The start, unix ns: the caller's time, else by the last anchor, else since the machine's start."""
        if posted is not None:
            self._offset = posted - start
            return posted
        if self._offset is None:
            self.rows.remark(SINCE_START)
            return max(start, 1)
        self.rows.remark(BORROWED)
        begin = start + self._offset
        return begin if 0 < begin <= LATEST_TIME_NS else None

    def _failed(self, value: Any) -> None:
        """A record without telemetry: a transfer that failed, or nothing of ours."""
        error = text(at(value, "exc")) or text(at(value, "error"))
        if error is None and at(value, "state") != "ERR":
            self.rows.refuse("records without the five numbers of a transfer")
            return
        posted = _posted(value)
        if posted is None:
            self.rows.refuse("transfers that failed, without a time", op=_op(value), cause="impossible_time")
            return
        self.rows.add("span", {
            **_row(value), "start_ns": posted, "submit_ns": posted, "end_ns": posted, "outcome": "failed",
            "reason": "unknown" if _op(value) else None, "attributes": attributes(**_said(value)),
        })  # fmt: skip
        self._unread(value)

    def _unread(self, record: dict[str, Any]) -> None:
        if unread := [name for name in record if name not in _KNOWN]:
            self.rows.ignore("transfers", unread)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """What a row says whatever became of the transfer."""
    backend, request, op = text(record.get("backend")), text(record.get("request_id")), _op(record)
    near, far = _tier(record, "local"), _tier(record, "remote")
    if far == "unknown":
        far = _FAR.get((backend or "").upper(), "unknown")
    media = (far, near) if op == "load" else (near, far)
    return {
        "op": op, "name": "transfer", "tier_from": media[0] if op else None,
        "tier_to": media[1] if op else None, "request_id": request,
        "id_kind": "internal" if request else None, "attribution": "request" if request else "operation",
        "component": f"nixl.{backend.lower()}" if backend else "nixl", "observer": "worker",
        "evidence": "native", "clock": "host", "rank": whole(record.get("rank")),
    }  # fmt: skip


def _op(record: Any) -> str | None:
    """Which way it went: one word READ or WRITE in what says it; None where none or both are."""
    said = (record.get(name) for name in _SAYS) if isinstance(record, dict) else ()
    found = next((ops for each in said if (ops := _ops(text(each) or ""))), ())
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=256)
def _ops(said: str) -> tuple[str, ...]:
    """The directions that a text names; files say the same few over and over."""
    words = {word.upper() for word in _WORD.findall(said)}
    return tuple(op for word, op in _OPS.items() if word in words)


def _tier(record: dict[str, Any], side: str) -> str:
    kind = (text(record.get(side)) or "").upper().removesuffix("_SEG")
    return TIERS.get(kind, "unknown")


def _posted(record: Any) -> int | None:
    """The caller's unix time in front of the post, ns."""
    found = (time_ns(at(record, name), 1) for name in POSTED)
    return next((time for time in found if time is not None), None)


def _said(record: dict[str, Any]) -> dict[str, Any]:
    peer = record.get("remote_agent") or record.get("peer")
    return {
        "tag": record.get("tag"), "agent": record.get("agent"), "peer": peer,
        "error": record.get("exc") or record.get("error"), "state": record.get("state"),
    }  # fmt: skip
