"""LMCache's storage trace (`lmcache server --trace-level storage`, .lct): what was asked of its storage.

Frames of a 4-byte big-endian length and msgpack; the first is a header, the others are calls:

    reserve_write            reserved   the keys that a store wants room for
    finish_write             written    they are readable
    submit_prefetch_task     locked     a request's keys, num_kv_readers locks each; also its request_key rows
    read_prefetched_results  accessed   on entry; its exit is no row: what it frees it does not tell
    finish_read_prefetched   unlocked   read_locks locks of each key

The trace is of calls, not of results: every row has the reason `asked`. A key that was to be locked or
reserved may have been missing, or there already; one that was to be released may have been released before.
cache_salt is lost by LMCache itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.lmcache_storage_trace.calls import Calls
from kvtrace.sources.lmcache_storage_trace.frames import LENGTH_BYTES, frames
from kvtrace.sources.lmcache_storage_trace.records import MAGIC
from kvtrace.sources.stream import Limits, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "lmcache-storage-trace"
_MARK = b"\xa5magic\xc4\x04" + MAGIC


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is a storage trace: its first frame is a header."""
    return 0x80 <= (head[LENGTH_BYTES : LENGTH_BYTES + 1] or b"\0")[0] <= 0x8F and _MARK in head[:256]


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The rows of a trace in parts; losses and remarks come with the last.

    Raises:
        InputError: its first frame is no header.
    """
    del options
    calls = Calls(source)
    for frame in frames(stream, Limits()):
        if isinstance(frame, Undecodable):
            calls.lost(frame)
        else:
            calls.add(frame)
            if len(calls.blocks) >= ROWS_A_PART:
                yield calls.take()
    yield calls.end()
