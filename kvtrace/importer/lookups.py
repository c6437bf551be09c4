"""Lookups of LMCache's server that came twice: as spans of its own tracing, and from its event bus.

bus     [---------)   [----      (its end was dropped)       recorded inside: knows the attempt
span    [---------)   [-----)                                exported: knows the trace

One inquiry is one row with an op: the bus's, unless it has no end and the span has one. The other stays in
`span` without an op, and is counted as `duplicate`. They are the same when they are of one server, request
and name, in the order of time (matching.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from kvtrace.importer.matching import matched
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from kvtrace.importer.facts import Facts

_INQUIRY = ("request_id", "name", "engine")


def once(
    facts: Facts, extra: npt.NDArray[np.int64]
) -> tuple[pl.DataFrame, npt.NDArray[np.int64], list[Loss]]:
    """The servers' lookups that count, rows (sorted) that are none of their own, and losses that say so.

    `extra` are rows that count no more.
    """
    lookups = facts.table("lookups").filter(~pl.col("row").is_in(pl.Series(extra).implode()))
    timed = lookups.select("row", *_INQUIRY, "end_ns", "trace_id", at="row", time_ns="start_ns")
    timed = timed.drop_nulls("request_id")
    is_span = pl.col("trace_id").is_not_null()
    pairs = matched(timed.filter(is_span), timed.filter(~is_span), _INQUIRY)
    ends = timed.select("row", "end_ns")
    both = pairs.join(ends, left_on="at", right_on="row").join(
        ends, left_on="own", right_on="row", suffix="_own"
    )
    only_span_ends = pl.col("end_ns_own").is_null() & pl.col("end_ns").is_not_null()
    told = both.select(row=pl.when(only_span_ends).then("own").otherwise("at"))
    repeats = lookups.join(told, on="row", how="semi")
    detail = "lookups that the server's event bus and its spans told"
    losses = [
        Loss(JOIN, "duplicate", count, process, "lookup", low, high, detail)
        for process, count, low, high in repeats.group_by("process")
        .agg(pl.len(), low=pl.min("start_ns"), high=pl.max("start_ns"))
        .sort("process")
        .iter_rows()
    ]
    return lookups.join(told, on="row", how="anti"), np.sort(repeats["row"].to_numpy()), losses
