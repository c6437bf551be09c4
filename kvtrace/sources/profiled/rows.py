"""Held copies and ranges -> rows of `span`, in parts.

* a copy: op, tiers by its name; clock gpu; submit_ns is the call that asked for it, null where the clocks of
  host and device disagree on which was first; process is the caller's
* a range: op null, clock host; kept because a trace without a device has nothing else, and to see the scopes
* times are unix ns; without an anchor they are null, and `trace_start_ns`, `trace_end_ns` in the attributes
  keep the trace's own clock
* span_id is a digest of what the row says and of how many before it say the same: two copies of one moment
  are two rows, and one trace read twice is one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.schema.tables import MEMBER
from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.profiled.digests import span_ids
from kvtrace.sources.profiled.hops import hop
from kvtrace.sources.profiled.joining import launched, scopes, segments, with_scopes
from kvtrace.sources.records import LATEST_TIME_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvtrace.sources.profiled.held import Held
    from kvtrace.sources.profiled.names import Named
    from kvtrace.sources.records import Rows

AMBIGUOUS = "copies whose correlation id calls of several threads have: not joined to any"
IN_GRAPHS = "copies inside CUDA graphs, which are launched as a whole: no request is named"
CLOCKS = "copies that began before they were asked for, by the trace's clocks: submit_ns is null"
OWN = "ranges of kvtrace's own: the recording that made them holds their copies too; import one of the two"
NO_ANCHOR = "rows without unix times: nothing in the trace says what its clock counts from"
IMPOSSIBLE = "times outside of what is believed"
MOST_PROCESSES = 1000
_COPY_SAID = {
    "correlation": "correlation", "launch": "launch", "thread": "thread", "from_device": "from_device",
    "cuda_graph": "cuda_graph",
}  # fmt: skip
_RANGE_SAID = {"thread": "thread", "domain": "domain"}
_CLOCK_SAID = {"trace_start_ns": "began", "trace_end_ns": "ended"}
_MEMBER = pl.List(pl.Struct({c.name: pl.String if c.type == "string" else pl.Int64 for c in MEMBER}))
_SCOPE: dict[str, pl.DataType | type[pl.DataType]] = {
    "scope": pl.Int32, "request_id": pl.String, "several": pl.Boolean, "scope_op": pl.String,
}  # fmt: skip
MEMBERS_A_PART = 500_000
"""About how many members all rows of a part have together."""


def parts(held: Held, rows: Rows) -> Iterator[Decoded]:
    """The rows of a trace; what was counted on the way is in `rows`."""
    copies, ranges = held.copies.frame(), held.ranges.frame()
    known = scopes(ranges["name"].unique(maintain_order=True))
    found = launched(copies, held.calls.frame())
    found = with_scopes(found, segments(ranges, known))
    _remark(rows, AMBIGUOUS, found["ambiguous"])
    _remark(rows, IN_GRAPHS, found["graph"])
    _remark(rows, OWN, ranges["name"].is_in([name for name, scope in known.items() if scope.own]))
    table = _scope_table(known)
    several = _members(known)
    yield from _sliced(_copies(found, table, held, rows), several, _COPY_SAID, held, rows)
    yield from _sliced(_ranges(ranges, known, table), several, _RANGE_SAID, held, rows)
    yield Decoded(processes=tuple(_processes(held, found, ranges)))


def _processes(held: Held, found: pl.DataFrame, ranges: pl.DataFrame) -> Iterator[dict[str, str | None]]:
    """The processes that were traced, where the trace names their host."""
    pids = pl.concat([found["process"], found["seen_in"], ranges["process"]]).drop_nulls().unique().sort()
    for pid in pids.head(MOST_PROCESSES) if held.host else ():
        yield {"process": f"{held.host}/{pid}", "engine": None, "host": held.host, "role": "worker",
               "product": None, "version": None, "instrument": held.profiler}  # fmt: skip


def _remark(rows: Rows, words: str, of_which: pl.Series) -> None:
    count = int(of_which.sum())
    if count:
        rows.remark(words, count)


def _scope_table(known: Mapping[str, Named]) -> pl.DataFrame:
    listed = []
    for number, scope in enumerate(known.values()):
        one = scope.requests[0] if len(scope.requests) == 1 else None
        listed.append((number, one, one is None, scope.op))
    return pl.DataFrame(listed, schema=_SCOPE, orient="row")


def _members(known: Mapping[str, Named]) -> pl.DataFrame:
    """The members of each scope that has several."""
    listed = [
        (number, [{"request_id": each} for each in scope.requests])
        for number, scope in enumerate(known.values()) if len(scope.requests) > 1
    ]  # fmt: skip
    return pl.DataFrame(listed, schema={"scope": pl.Int32, "members": _MEMBER}, orient="row")


def _attribution() -> pl.Expr:
    named = pl.when(pl.col("request_id").is_not_null()).then(pl.lit("request"))
    return named.when(pl.col("several")).then(pl.lit("operation")).otherwise(pl.lit("aggregate"))


def _copies(found: pl.DataFrame, table: pl.DataFrame, held: Held, rows: Rows) -> pl.DataFrame:
    """Copies in our words, times still the trace's own."""
    names = found["name"].unique()
    hops = pl.DataFrame(
        [(name, *hop(name)) for name in names.to_list()],
        schema=dict.fromkeys(("name", "op", "tier_from", "tier_to"), pl.String), orient="row",
    )  # fmt: skip
    found = found.join(hops, on="name", how="left", maintain_order="left", nulls_equal=True)
    found = found.join(table, on="scope", how="left", maintain_order="left")
    late = (pl.col("launch_ns") > pl.col("start_ns")).fill_null(value=False)
    _remark(rows, CLOCKS, found.select(late).to_series())
    stays = (pl.col("tier_from") == "gpu") & (pl.col("tier_to") == "gpu")
    processes = held.calls.frame()["process"].drop_nulls().unique()
    only = int(processes[0]) if processes.len() == 1 else None
    return found.with_columns(
        op=pl.when(stays).then("scope_op").otherwise("op"),
        submit_ns=pl.when(late).then(None).otherwise("launch_ns"),
        process=pl.coalesce("process", "seen_in", pl.lit(only, pl.Int64)),
        cuda_graph=pl.when("graph").then(pl.lit("true")),
        clock=pl.lit("gpu"), observer=pl.lit("worker"), outcome=pl.lit("ok"),
        attribution=_attribution(),
    )  # fmt: skip


def _ranges(ranges: pl.DataFrame, known: Mapping[str, Named], table: pl.DataFrame) -> pl.DataFrame:
    """Ranges in our words, times still the trace's own."""
    numbers = pl.DataFrame(
        list(zip(known, range(len(known)), strict=True)), schema={"name": pl.String, "scope": pl.Int32},
        orient="row",
    )  # fmt: skip
    found = ranges.join(numbers, on="name", how="left", maintain_order="left")
    return found.join(table, on="scope", how="left", maintain_order="left").with_columns(
        clock=pl.lit("host"), attribution=_attribution()
    )


_COLUMNS = (
    "op", "name", "request_id", "start_ns", "end_ns", "submit_ns", "tier_from", "tier_to", "bytes", "outcome",
    "process", "observer", "rank", "device", "stream", "clock", "attribution", "evidence", "span_id",
    "members", "attributes",
)  # fmt: skip
_SAME = (
    "name",
    "start_ns",
    "end_ns",
    "process",
    "device",
    "stream",
    "correlation",
    "thread",
    "bytes",
    "rank",
)


def _sliced(
    frame: pl.DataFrame, several: pl.DataFrame, said: Mapping[str, str], held: Held, rows: Rows
) -> Iterator[Decoded]:
    """Parts of bounded size, with unix times where the trace has an anchor."""
    frame = _timed(frame, held, rows)
    host = held.host
    process = pl.format("{}/{}", pl.lit(host), "process") if host else pl.lit(None, pl.String)
    frame = frame.with_columns(
        pid=pl.col("process").cast(pl.String), process=process, rank=pl.lit(held.rank, pl.Int64),
        evidence=pl.lit("native"),
    )  # fmt: skip
    same = [name for name in (*_SAME, "pid") if name in frame.columns]
    frame = frame.with_columns(span_id=span_ids(frame.select(same)))
    entries = {**said, **_CLOCK_SAID, "pid": "pid"}
    most = several["members"].list.len().max() if several.height else 0
    size = min(ROWS_A_PART, MEMBERS_A_PART // most) if isinstance(most, int) and most else ROWS_A_PART
    for part in frame.iter_slices(size):
        found = part.with_columns(_attributes(part, entries))
        found = found.join(several, on="scope", how="left", maintain_order="left")
        yield Decoded({"span": found.select(name for name in _COLUMNS if name in found.columns)})


def _timed(frame: pl.DataFrame, held: Held, rows: Rows) -> pl.DataFrame:
    """Unix times where there is an anchor, else none; rows with times that no clock shows are counted."""
    times = [name for name in ("start_ns", "end_ns", "submit_ns") if name in frame.columns]
    if held.offset_ns is None:
        if frame.height:
            rows.remark(NO_ANCHOR, frame.height)
        frame = frame.with_columns(began="start_ns", ended="end_ns")
        return frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in times)
    frame = frame.with_columns(
        *(pl.col(name) + held.offset_ns for name in times),
        began=pl.lit(None, pl.Int64), ended=pl.lit(None, pl.Int64),
    )  # fmt: skip
    believed = pl.all_horizontal(
        pl.col(name).is_between(1, LATEST_TIME_NS).fill_null(value=True) for name in times
    )
    kept = frame.filter(believed)
    rows.refuse(IMPOSSIBLE, cause="impossible_time", count=frame.height - kept.height)
    return kept


def _attributes(frame: pl.DataFrame, entries: Mapping[str, str]) -> pl.Series:
    """What has no column of its own, by key and where it stands; built as arrays, not a row at a time."""
    texts = [frame[column].cast(pl.String) for column in entries.values()]
    order = np.arange(frame.height * len(texts)).reshape(len(texts), frame.height).T
    values = pl.concat([pl.Series([], dtype=pl.String), *texts]).gather(order.ravel())
    keys = pl.Series(list(entries), dtype=pl.String).gather(np.tile(np.arange(len(texts)), frame.height))
    there = values.is_not_null()
    counts = there.to_numpy().reshape(frame.height, len(texts)).sum(axis=1)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    held = [column.filter(there).to_arrow().cast(pa.string()) for column in (keys, values)]
    lists = pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(held, ["key", "value"]))
    return pl.Series("attributes", lists)
