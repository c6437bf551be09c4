"""Logs of Mooncake's master and clients (glog, on stderr or in its files), for those who have nothing else.

    I1130 08:11:24.094185 32159 master_admin_service.cpp:301] Master Admin Metrics: role=leader, ...
    W1130 08:11:15.526088 32176 client_service.cpp:1890] Failed to start put operation for key=k due to ...

    records.py   a line -> its time, its place in the code, its message
    meaning.py   what a message means

* the summaries that both write every few seconds: as mooncake_summary reads pages, with their time
* what a transfer engine moved since its last such record (MC_TE_METRIC): `mooncake_transfer_engine.<what>`,
  bytes a second (its MB is 1024 * 1024), tasks, and which share of them took how many microseconds
* a put that found no room: a `store` that failed, no_room, and the key's `block` row
* what the master evicted: an `evict` of so many keys, reason capacity: it evicts when memory is short
* clients that were lost, segments that came and went: rows without op, named as the log names the action

Times: glog writes month and day, newer versions the year as well, and no zone. A year is taken as engine_logs
does: the latest that the file's own date allows, then the nearest; a time is taken as UTC. Both are said.

Rows are points: the log says when something was over. All lines above but those of lost segments are recorded
here, mooncake-transfer-engine-non-cuda 0.3.13.post1; years and older summaries are from public logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.mooncake_log.meaning import Meaning
from kvtrace.sources.mooncake_log.records import is_others, record
from kvtrace.sources.mooncake_summary import LONGEST_LINE_BYTES
from kvtrace.sources.records import lines_of
from kvtrace.sources.stream import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

__all__ = ["FORMAT", "looks_like", "read"]

FORMAT = "mooncake-log"


def looks_like(head: bytes) -> bool:
    """Whether Mooncake has records among the first lines; a log in which an engine has some is that one's."""
    found = False
    for line in head.split(b"\n"):
        if is_others(line):
            return False
        seen = record(line)
        found = found or (seen is not None and seen.is_mooncake)
    return found


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a log."""
    del options
    meaning = Meaning(source, getattr(stream, "written_ns", None))
    for line in lines_of(stream, meaning.rows, Limits(max_message_bytes=LONGEST_LINE_BYTES)):
        meaning.take(line)
        if meaning.rows.full:
            yield meaning.rows.part()
    meaning.finish()
    yield Decoded(processes=meaning.processes())
    yield meaning.rows.end()
