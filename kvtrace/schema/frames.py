"""The spool: one append-only file a process, frames of columns, made with the standard library alone.

    SPOOL   frame frame frame ...                      RUN/spool/<boot id>-<pid>-<start_ns>.kvspool
    FRAME   magic  kind  length  crc32  payload        FRAME_HEAD, then `length` bytes
            4      u8    u32     u32

The checksum covers kind, length and payload. The first byte of the magic, 0xff, occurs in no UTF-8 text, so
no text that comes from outside can look like a frame where a reader searches for the next one after damage.
Everything is little-endian and unaligned. Payloads by kind:

    HEADER  JSON, the first frame of every spool: HEADER_FIELDS
    SHAPE   JSON {"number", "table", "part", "columns": [...], "constants": {...}}: defines a kind of row,
            before its first ROWS in each epoch; columns may also be attributes.<key>, found_by_tier.<tier>
    WORDS   epoch u32, first u32, count u32 (WORDS_HEAD), count byte lengths u32, then the texts in UTF-8.
            Texts are numbered in the order of their first use; an epoch's numbers begin at 0 and are
            forgotten when the next epoch begins: neither side keeps the names of a million requests
    ROWS    shape u32, epoch u32, rows u32, columns u32, first_row u64, written_ns i64 (ROWS_HEAD), then
            the columns
    FACTS   JSON: everything `describe` has said so far; the last one counts
    ANCHOR  monotonic i64, unix i64 (ANCHOR_PAIR): one at the start and one a minute, to measure drift
    IDLE    JSON {"written_ns"}: the first flush that found nothing after one that did; all that was recorded
            until then is in the spool
    END     JSON {"rows", "written_ns"}: the closing mark, nothing follows

`first_row` is how many rows the process had put into ROWS frames before, in an earlier spool too;
`written_ns` the monotonic time at which the flush began, the same for all frames of a flush: a reader takes a
flush as a whole. Times inside rows are raw monotonic nanoseconds.

A column is COLUMN_HEAD (kind u8, length u32) and `length` bytes, n being the number of rows:

    NULL      nothing: every value is missing
    INT       n int64, no value is missing
    INT_NULL  n int64, MISSING_INT where a value is missing
    FLOAT     n bytes 1 or 0 (0 = missing), n float64
    BOOL      n bytes 0, 1 or 2 (2 = missing)
    TEXT      n int32: numbers of the epoch's texts, -1 = missing
    MIXED     n bytes (one of MIXED_*), n int32: texts of values of several types, or of integers that
              64 bits do not hold
    MEMBERS   n int32 lengths (-1 = missing), then five columns over all members of the frame: request
              ids, phases, scheduled tokens, output tokens, computed before

Order: rows of one shape from one thread stay in order. Between shapes, and between threads, it is kept only
from flush to flush (FLUSH_S), so what updates one column of one operation twice must be one shape.
"""

from __future__ import annotations

import struct
from zlib import crc32

FORMAT = 1
"""Format version, in every header."""
SUFFIX = ".kvspool"
MAGIC = b"\xffKV\x01"
FRAME_HEAD = struct.Struct("<4sBII")
_CHECKED = struct.Struct("<BI")
MAX_PAYLOAD_BYTES = 1 << 28
"""No frame is longer: a larger length is damage."""
MAX_ROWS = 1 << 16
MAX_MEMBERS = 1 << 20
"""Nor has any more rows, or members of all its rows together: a column of nothing but gaps takes no bytes."""
MAX_TEXTS = 1 << 22
"""Nor has an epoch more texts."""
FLUSH_S = 0.5
"""Seconds between two flushes: what a killed process loses at most, and the time it takes to write it."""

HEADER, SHAPE, WORDS, ROWS, FACTS, ANCHOR, END, IDLE = range(1, 9)
KINDS: dict[int, str] = {
    HEADER: "header", SHAPE: "shape", WORDS: "words", ROWS: "rows", FACTS: "facts", ANCHOR: "anchor",
    END: "end", IDLE: "idle",
}  # fmt: skip
PARTS: tuple[str, ...] = ("whole", "open", "update", "close")
"""`whole` = a finished row; the others are facts about one operation that lasts, tied by span_id."""
HEADER_FIELDS: dict[str, str] = {
    "format": "FORMAT",
    "schema": "version of the words",
    "kvtrace": "version of kvtrace",
    "run_id": "KVTRACE_RUN_ID, null when not given",
    "pid": "process id in its own namespace",
    "ppid": "its parent's, likewise",
    "start_ticks": "field 22 of /proc/PID/stat: tells it from a later process of the same id; null = unknown",
    "pid_namespace": "what /proc/self/ns/pid says",
    "time_namespace": "what /proc/self/ns/time says: monotonic clocks are comparable only inside one",
    "boot_id": "boot id of the machine",
    "host": "host.name of OTEL_RESOURCE_ATTRIBUTES, else the name of the machine",
    "start_ns": "monotonic time at which recording began",
    "anchor": "[monotonic ns, unix ns] by which all times of this spool become unix times",
    "anchor_source": "run = KVTRACE_ANCHOR, own = taken by this process because there was none",
    "prefix": "the upper 23 bits of every span id of this process",
    "program": "name of argv[0], without its folder",
    "python": "version of Python",
}
"""Every field of a header, and its meaning."""

WORDS_HEAD = struct.Struct("<III")
ROWS_HEAD = struct.Struct("<IIIIQq")
COLUMN_HEAD = struct.Struct("<BI")
ANCHOR_PAIR = struct.Struct("<qq")

NULL, INT, INT_NULL, FLOAT, BOOL, TEXT, MIXED, MEMBERS = range(8)
MISSING_INT = -(1 << 63)
MIXED_NULL, MIXED_INT, MIXED_FLOAT, MIXED_BOOL, MIXED_TEXT = range(5)
MEMBER_COLUMNS = 5

ID_SHIFT = 40
"""A span id = prefix << ID_SHIFT | counter; the prefix has PREFIX_BITS bits."""
PREFIX_BITS = 23
MAX_TEXT = 64 * 1024
"""Characters of one text; a longer one is cut and ends in CUT."""
CUT = "...[cut]"


def frame(kind: int, payload: bytes) -> bytes:
    """One whole frame."""
    length = len(payload)
    return FRAME_HEAD.pack(MAGIC, kind, length, checksum(kind, payload)) + payload


def checksum(kind: int, payload: bytes | memoryview) -> int:
    """The crc32 of a frame: over kind, length and payload."""
    return crc32(payload, crc32(_CHECKED.pack(kind, len(payload))))
