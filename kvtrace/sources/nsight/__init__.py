"""Nsight Systems exports (`nsys export --type sqlite`), plain or compressed: copies, and who asked for them.

    CUPTI_ACTIVITY_KIND_MEMCPY        a copy                        database.py    reading without trust
    CUPTI_ACTIVITY_KIND_RUNTIME       a call, by its name           gathering.py   tables -> what is held
    NVTX_EVENTS                       push/pop: a range of a thread; start/end: of a process, joins nothing
    ../profiled                       what is held -> rows of `span`, and how a copy comes to its request

Time: nanoseconds since the session began, which TARGET_INFO_SESSION_START_TIME.utcEpochNs gives in unix time;
without it times are null. Nsight Systems has brought the times of the device to the host's clock.

A globalTid is a pid and a tid, 24 bits each, below what tells machines apart; a copy's globalPid is the same
without the tid, and correlation ids count within it. process: `host/pid` where TARGET_INFO_SYSTEM_ENV names
the host, else null.

With --cuda-graph-trace=graph a graph is one row of CUPTI_ACTIVITY_KIND_GRAPH_TRACE and its copies are in no
table: counted in a note. With =node they are copies with a graphNodeId.

The form is known from NVIDIA's documents of the export and from scripts and tests that others publish; no
export could be made here.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kvtrace.sources.nsight.database import BROKEN, Database, on_disk
from kvtrace.sources.nsight.gathering import gather
from kvtrace.sources.profiled.held import Held
from kvtrace.sources.profiled.rows import parts
from kvtrace.sources.records import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "nsight-sqlite"
_MAGIC = b"SQLite format 3\0"
_TABLES = (
    b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS", b"ENUM_NSYS_EVENT", b"META_DATA_EXPORT", b"TARGET_INFO_SESSION",
)  # fmt: skip


def looks_like(head: bytes) -> bool:
    """Whether a file begins as an SQLite database that has tables of an export."""
    return head.startswith(_MAGIC) and any(name in head for name in _TABLES)


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The parts of an export."""
    rows, held = Rows(source), Held(FORMAT)
    with on_disk(stream) as path:
        _gather(path, held, rows)
    for loss in stream.losses:
        rows.refuse(loss.detail, count=loss.count)
    yield from parts(held, rows)
    yield rows.end()


def _gather(path: Path, held: Held, rows: Rows) -> None:
    with closing(Database(path)) as database:
        try:
            database.open()
        except BROKEN:
            rows.refuse("files that are no SQLite database, or damaged")
        else:
            gather(database, held, rows)
