"""NIXL's telemetry ring: the file that each agent gets in NIXL_TELEMETRY_DIR, a header and events.

    0   u64 write    where the next event goes, an index into the ring
    8   u64 read     where a reader would go on; events before it were taken by one
    16  u32 version, u32 expected version          4
    24  u64 capacity, u64 capacity - 1             a power of two
    40  u32 type, 4 bytes of anything, u64 value   capacity times

    one transfer:  agent_xfer_post_time  agent_xfer_time  agent_tx_bytes  agent_tx_requests_num

An event has no time, no peer and no id, and two agents' threads may mix theirs: no event says to which
transfer it belongs, so none is put together here. Each is a row of `metric` without a time, a gauge, since
its value is one reading and no total: `nixl_ring.<name>` with the label `event`, its place in the order.
Times are microseconds, sizes bytes, of one request; an error counts 1.

A ring that is full stays as it is: what comes later is neither written nor counted, and one that is just
full looks the same, so that it is an unclean end. What the agent says that it dropped before is a loss too.

The form: recorded here, nixl-cu12 1.5.1. Versions 1 (with a time for each event) to 3 are older than any
wheel that runs here; they are counted, not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.losses import Loss
from kvtrace.sources.stream import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "nixl-ring"
PREFIX = "nixl_ring"
VERSION = 4
SOURCE, PAGE, EVENT = "kvtrace.source", "kvtrace.page", "event"
MAX_BYTES = 64 * MIB
"""A ring of four million events; NIXL's own default has 4,096."""
NAMES = (
    "agent_tx_bytes", "agent_rx_bytes", "agent_tx_requests_num", "agent_rx_requests_num",
    "agent_memory_registered", "agent_memory_deregistered", "agent_xfer_time", "agent_xfer_post_time",
    "agent_err_not_posted", "agent_err_invalid_param", "agent_err_backend", "agent_err_not_found",
    "agent_err_mismatch", "agent_err_not_allowed", "agent_err_repost_active", "agent_err_unknown",
    "agent_err_not_supported", "agent_err_remote_disconnect", "agent_err_canceled", "agent_err_no_telemetry",
    "agent_telemetry_events_dropped",
)  # fmt: skip
"""Names of the types 0 to 20."""
DROPPED = NAMES.index("agent_telemetry_events_dropped")
UNTIMED = "events have no time: what was moved and how long it took is known, when is not"
FULL = "the ring is full: what came later, if anything did, was not written, and nothing counts it"
_HEADER = np.dtype([
    ("write", "<u8"), ("read", "<u8"), ("version", "<u4"), ("expected", "<u4"), ("capacity", "<u8"),
    ("mask", "<u8"),
])  # fmt: skip
_EVENT = np.dtype([("type", "<u4"), ("anything", "<u4"), ("value", "<u8")])
_LAST_VERSION = 64
"""No version is higher: what says so is something else."""
_MAX_CAPACITY = 1 << 32
_MOST_DROPPED = 2**62


def looks_like(head: bytes) -> bool:
    """Whether a file begins with such a header: seven numbers that fit each other."""
    found = _header(head)
    if found is None:
        return False
    capacity, version = int(found["capacity"]), int(found["version"])
    return (
        0 < version == int(found["expected"]) <= _LAST_VERSION
        and 1 < capacity <= _MAX_CAPACITY
        and capacity & (capacity - 1) == 0
        and int(found["mask"]) == capacity - 1
        and max(int(found["write"]), int(found["read"])) < capacity
    )


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The parts of a ring."""
    held = bytearray()
    while len(held) <= MAX_BYTES and (more := stream.read()):
        held += more
    yield from decode(bytes(held), source)
    for item in stream.losses:
        yield Decoded(losses=(Loss(source, "undecodable", item.count, detail=item.detail),))


def decode(content: bytes, source: str) -> Iterator[Decoded]:
    """A ring -> rows of `metric`, and what it lost; bytes that are none are a loss."""
    header = _header(content)
    if header is None or not looks_like(content):
        yield _bad(source, "file that is no ring of NIXL's telemetry")
        return
    if int(header["version"]) != VERSION or len(content) > MAX_BYTES:
        what = f"ring of version {header['version']}; this version reads {VERSION}"
        if len(content) > MAX_BYTES:
            what = f"ring longer than {MAX_BYTES:,} bytes"
        yield _bad(source, what)
        return
    capacity, first = int(header["capacity"]), int(header["read"])
    count = (int(header["write"]) - first) % capacity
    there = min(capacity, (len(content) - _HEADER.itemsize) // _EVENT.itemsize)
    ring = np.frombuffer(content, _EVENT, there, _HEADER.itemsize)
    places = (first + np.arange(count)) % capacity
    kept = places < there
    events = ring[places[kept]]
    known = events["type"] < len(NAMES)
    numbers = np.flatnonzero(kept)[known]
    for at in range(0, len(numbers), ROWS_A_PART):
        part = slice(at, at + ROWS_A_PART)
        yield Decoded({"metric": _rows(events[known][part], numbers[part], source)})
    losses = [
        Loss(source, "undecodable", int((~kept).sum()), detail="events beyond the end of a file that is cut"),
        Loss(source, "undecodable", int((~known).sum()), detail=f"events of a type beyond {len(NAMES) - 1}"),
        Loss(source, "dropped", _dropped(events), detail="events that the agent dropped before the ring"),
        Loss(source, "unclean_end", int(count == capacity - 1), detail=FULL),
    ]
    notes = [UNTIMED] if count else []
    if first:
        notes.append("a reader has taken events out of the ring before: they are not in it")
    yield Decoded(losses=tuple(loss for loss in losses if loss.count), notes=tuple(notes))


def _header(content: bytes) -> np.void | None:
    if len(content) < _HEADER.itemsize:
        return None
    found: np.void = np.frombuffer(content, _HEADER, 1)[0]
    return found


def _rows(events: npt.NDArray[np.void], numbers: npt.NDArray[np.int64], source: str) -> pl.DataFrame:
    """Rows of `metric`; a value of 2^53 and more may be off, as everywhere in that table."""
    names = pl.Series([f"{PREFIX}.{name}" for name in NAMES])
    found = pl.DataFrame({
        "time_ns": pl.Series([None] * len(events), dtype=pl.Int64),
        "name": names.gather(events["type"].astype(np.uint32)),
        "value": events["value"].astype(np.float64),
        "number": numbers,
    })  # fmt: skip
    labels = ((SOURCE, pl.lit(source)), (PAGE, pl.lit("0")), (EVENT, pl.col("number").cast(pl.String)))
    entries = [pl.struct(pl.lit(key).alias("key"), value.alias("value")) for key, value in labels]
    return found.select(
        "time_ns", "name", pl.lit("gauge").alias("kind"), pl.concat_list(entries).alias("labels"), "value",
        pl.lit(None, pl.String).alias("process"),
    )  # fmt: skip


def _dropped(events: npt.NDArray[np.void]) -> int:
    """How many events the agent says that it dropped; a sum that is none (damage) is cut."""
    said = events["value"][events["type"] == DROPPED]
    return int(min(sum(map(int, said)), _MOST_DROPPED))


def _bad(source: str, detail: str) -> Decoded:
    return Decoded(losses=(Loss(source, "undecodable", 1, detail=detail),))
