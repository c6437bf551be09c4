"""Tables of an export -> what is held of them.

Columns differ between versions: each query asks for all, and what is not there is None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.nsight.database import BROKEN
from kvtrace.sources.profiled.names import named, range_name
from kvtrace.sources.records import LATEST_TIME_NS, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.sources.nsight.database import Database
    from kvtrace.sources.profiled.held import Held
    from kvtrace.sources.records import Rows

    _Step = Callable[[Database, Held, Rows], None]

PUSH_POP, START_END, DOMAIN = 59, 60, 75
"""Kinds of NVTX events; START_END may begin in one thread and end in another."""
PEER = 10
KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    PEER: "PtoP",
}  # fmt: skip
"""CUPTI's numbers of a copy's way, where the export has no labels of its own."""
OPERATORS = "ranges of PyTorch's operators (emit_nvtx) are not kept"
LONG = "ranges without a name, or with one too long to be one, are left out"
OPEN = "ranges that had not ended are left out"
_EMITTED = re.compile(r", (?:seq|op_id) = \d+")
_TID_BITS = 24
_TID = (1 << _TID_BITS) - 1
_COPIES = "SELECT * FROM CUPTI_ACTIVITY_KIND_MEMCPY"
_CALLS = """SELECT c.*, s.value AS call FROM CUPTI_ACTIVITY_KIND_RUNTIME c JOIN StringIds s ON s.id = c.nameId
WHERE s.value LIKE '%emcpy%' OR s.value LIKE '%GraphLaunch%'"""
_RANGES = """SELECT n.*, s.value AS string FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
WHERE n.eventType IN (?, ?, ?)"""
_OLD_RANGES = "SELECT * FROM NVTX_EVENTS WHERE eventType IN (?, ?, ?)"
_LOST = "SELECT text FROM DIAGNOSTIC_EVENT WHERE text LIKE 'Not all %events might have been collected%'"


def gather(db: Database, held: Held, rows: Rows) -> None:
    """Take what an export has; a table that cannot be read is a loss, and the others stay."""
    steps: dict[str, _Step] = {
        "TARGET_INFO_SESSION_START_TIME": _anchor,
        "TARGET_INFO_SYSTEM_ENV": _host,
        "CUPTI_ACTIVITY_KIND_MEMCPY": _copies,
        "CUPTI_ACTIVITY_KIND_RUNTIME": _calls,
        "NVTX_EVENTS": _ranges,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _graphs,
        "CUPTI_ACTIVITY_KIND_KERNEL": _kernels,
        "DIAGNOSTIC_EVENT": _lost,
    }
    known = [table for table in steps if table in db.tables]
    if not known:
        rows.refuse("databases without tables of Nsight Systems")
    for table in known:
        try:
            steps[table](db, held, rows)
        except BROKEN:
            rows.refuse(f"tables that cannot be read to their end: {table}")


def _anchor(db: Database, held: Held, rows: Rows) -> None:
    found = {
        value for (value,) in db.rows("SELECT * FROM TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
        if isinstance(value, int) and 0 < value <= LATEST_TIME_NS
    }  # fmt: skip
    if len(found) == 1:
        held.offset_ns = found.pop()
    elif found:
        rows.remark("beginnings of the session that contradict each other", len(found))


def _host(db: Database, held: Held, rows: Rows) -> None:  # noqa: ARG001 - all steps look alike
    query = "SELECT * FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    found = {text(value) for (value,) in db.rows(query, ("value",))} - {None}
    if len(found) == 1:
        held.host = found.pop()


def _labels(db: Database, table: str, query: str) -> dict[int, str]:
    if table not in db.tables:
        return {}
    return {
        number: label for number, label in db.rows(query, ("id", "label"))
        if isinstance(number, int) and text(label) is not None
    }  # fmt: skip


def _copies(db: Database, held: Held, rows: Rows) -> None:
    ways = KINDS | _labels(db, "ENUM_CUDA_MEMCPY_OPER", "SELECT * FROM ENUM_CUDA_MEMCPY_OPER LIMIT 999")
    media = _labels(db, "ENUM_CUDA_MEM_KIND", "SELECT * FROM ENUM_CUDA_MEM_KIND LIMIT 999")
    wanted = (
        "start", "end", "bytes", "copyKind", "srcKind", "dstKind", "deviceId", "srcDeviceId", "dstDeviceId",
        "streamId", "correlationId", "globalPid", "graphNodeId",
    )  # fmt: skip
    for row in db.rows(_COPIES, wanted):
        start, end, size, kind, origin, goal, device, from_device, to_device, stream, asked, pid, node = row
        times = _times(start, end, rows)
        if times is None:
            continue
        name = f"Memcpy {ways.get(kind, 'of an unknown kind')}"
        if origin in media and goal in media:
            name += f" ({media[origin]} -> {media[goal]})"
        peers = kind == PEER and to_device is not None
        held.copies.add(
            (
                *times, _count(size), name, _device(to_device if peers else device),
                _device(from_device) if peers else None, _text(stream), _count(asked),
                _number(pid), _text(node) if node else None, _pid(pid),
            ),
            rows,
        )  # fmt: skip


def _calls(db: Database, held: Held, rows: Rows) -> None:
    for start, call, asked, where in db.rows(_CALLS, ("start", "call", "correlationId", "globalTid")):
        correlation, place = _count(asked), _number(where)
        if not isinstance(start, int) or start < 0 or correlation is None or place is None:
            rows.refuse("calls without a time, a thread or a correlation id")
            continue
        held.calls.add((start, text(call), correlation, place & ~_TID, str(place & _TID), _pid(place)), rows)


def _ranges(db: Database, held: Held, rows: Rows) -> None:
    """Ranges of threads, and of processes; domains are told by events of their own."""
    query = _RANGES if "StringIds" in db.tables else _OLD_RANGES
    wanted = ("start", "end", "eventType", "text", "string", "globalTid", "domainId")
    domains: dict[tuple[int | None, Any], str | None] = {}
    for _, _, _, own, string, where, domain in db.rows(query, wanted, (DOMAIN, DOMAIN, DOMAIN)):
        if len(domains) < 4096:
            domains[_pid(where), domain] = text(own) or text(string)
    for start, end, kind, own, string, where, domain in db.rows(
        query, wanted, (PUSH_POP, START_END, PUSH_POP)
    ):
        name = range_name(own) or range_name(string)
        if name is None:
            rows.remark(LONG)
        elif _EMITTED.search(name) and named(name) is None:
            rows.remark(OPERATORS)
        elif end is None:
            rows.remark(OPEN)
        elif (times := _times(start, end, rows)) is not None:
            place = _number(where) if kind == PUSH_POP else None
            thread = None if place is None else str(place & _TID)
            said = domains.get((_pid(where), domain))
            held.ranges.add((*times, name, thread, _pid(where), said), rows)


def _graphs(db: Database, held: Held, rows: Rows) -> None:  # noqa: ARG001 - all steps look alike
    query = "SELECT count(*) AS graphs, sum(end - start) AS ns FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    for graphs, ns in db.rows(query, ("graphs", "ns")):
        if graphs:
            rows.remark(
                f"CUDA graphs traced as a whole ({ns or 0:,} ns): their copies are in no table", graphs
            )


def _kernels(db: Database, held: Held, rows: Rows) -> None:  # noqa: ARG001 - all steps look alike
    query = "SELECT count(*) AS kernels FROM CUPTI_ACTIVITY_KIND_KERNEL"
    for (kernels,) in db.rows(query, ("kernels",)):
        if kernels:
            rows.remark("kernels are not kept", kernels)


def _lost(db: Database, held: Held, rows: Rows) -> None:  # noqa: ARG001 - all steps look alike
    for (said,) in db.rows(_LOST, ("text",)):
        rows.refuse(str(said)[:200], cause="dropped")


def _times(start: Any, end: Any, rows: Rows) -> tuple[int, int] | None:
    """A start and an end; both 0 is how CUPTI says that it could not tell them."""
    if not isinstance(start, int) or not isinstance(end, int) or start < 0 or start == end == 0:
        rows.refuse("events without a time", cause="impossible_time")
    elif end < start:
        rows.refuse("events that end before they begin", cause="negative_duration")
    else:
        return start, end
    return None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _text(value: Any) -> str | None:
    return None if value is None else text(str(value))


def _device(value: Any) -> str | None:
    return f"cuda:{value}" if isinstance(value, int) and value >= 0 else None


def _pid(value: Any) -> int | None:
    return value >> _TID_BITS & _TID if isinstance(value, int) else None
