"""NIXL's telemetry of each transfer, as its callers keep it: the answers of get_xfer_telemetry(), as JSON.

    {"telemetry": {"startTime": 1208912483, "postDuration": 1515, "xferDuration": 193346,
                   "totalBytes": 4194304, "descCount": 4},
     "t0_ns": 1795963913748482998, "tag": "UCX_WRITE", "state": "DONE", "backend": "UCX"}

    t0_ns, the caller's clock |
    startTime                  |------ postDuration ------|
                               |-------------- xferDuration --------------|      one row

One list of such objects, or one object a line; the five numbers may stand beside the rest, or below
`telemetry`, `xfer_telemetry` or `stats`; start_time_us, post_duration_us, ... as NIXL's C and Rust bindings
call them are the same. All times are microseconds.

* READ brings bytes to the agent that asks: a load; WRITE sends them away: a store. The direction is said by
  `op`, `operation` or `direction`, else by a part of `tag`; a row of unknown direction has no op.
* time: startTime is of the monotonic clock. A record with the caller's unix time before the post (`t0_ns`,
  `posted_ns` or `submit_ns`) begins there: both clocks were read microseconds apart. One without goes by the
  last such pair of the file; in a file without any, rows count from the machine's start, put at 1970, and
  a note says so: distances between them are right, the date is not.
* tiers: the backend says whether the far side is a file (POSIX, GDS) or an object store; what UCX and others
  reach, and the near side, is not said: unknown, unless the record names both (`local`, `remote`).
* a transfer that failed has no telemetry: with the caller's time it is a row, without it is a loss.

The five numbers: recorded here, nixl-cu12 1.5.1 (UCX loopback and POSIX files), written by a script of ours;
the other spelling is read from NIXL's public C header.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from kvtrace.sources.nixl_transfers.taking import SPELLINGS, Transfers, numbers
from kvtrace.sources.records import first_values, parse, read_lines
from kvtrace.sources.stream import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

__all__ = ["FORMAT", "looks_like", "read"]

FORMAT = "nixl-transfers"
MAX_BYTES = Limits().max_message_bytes
_LIST = re.compile(rb'\s*\[\s*\{[^\[\]]{0,8192}?"(?:startTime|start_time_us)"\s*:')


def looks_like(head: bytes) -> bool:
    """Whether the first records of a file have the five numbers of a transfer."""
    if head.lstrip().startswith(b"["):
        return bool(_LIST.match(head)) and any(
            all(b'"%s"' % name.encode() in head for name in names) for names in SPELLINGS
        )
    return any(numbers(value) is not None for value in first_values(head))


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; a list is one document, of which up to MAX_BYTES are read."""
    del options
    taker, first = Transfers(source), stream.read()
    if first.lstrip().startswith(b"["):
        yield from _document(first, stream, taker)
    else:
        yield from read_lines(cast("Stream", _Again(first, stream)), taker)


class _Again:
    """A stream whose first bytes were looked at."""

    def __init__(self, first: bytes, stream: Stream) -> None:
        self._first, self._stream = first, stream
        self.losses = stream.losses

    def read(self) -> bytes:
        found, self._first = self._first, b""
        return found or self._stream.read()


def _document(first: bytes, stream: Stream, taker: Transfers) -> Iterator[Decoded]:
    held, rows = bytearray(first), taker.rows
    while len(held) <= MAX_BYTES and (more := stream.read()):
        held += more
    for item in stream.losses:
        rows.refuse(item.detail, count=item.count)
    value = parse(bytes(held)) if len(held) <= MAX_BYTES else None
    if not isinstance(value, list):
        rows.refuse(f"list that is no JSON, or longer than {MAX_BYTES:,} bytes")
        value = []
    for record in value:
        taker.take(record)
        if rows.full:
            yield rows.part()
    taker.finish()
    yield rows.end()
