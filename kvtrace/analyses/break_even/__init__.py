"""The question `break_even`: was each load worth it?

loads.py      bytes that arrived, and what their hops take at least, at the speeds this run measured
costs.py      what the request waited for them: exposed where that is exact, else estimated
steps.py      the prefill steps of each engine
recompute.py  the lines through them: what computing the same tokens would have taken, and its error
judging.py    both side by side: worth, not_worth, unclear, and the words for it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._lost import lost
from kvtrace.analyses._served import ALGORITHM as SERVED
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.bandwidth.rows import measured, seen
from kvtrace.analyses.break_even.costs import WAITED, costed, exposed
from kvtrace.analyses.break_even.judging import estimated, judged
from kvtrace.analyses.break_even.loads import bounds, hops, moved, paths
from kvtrace.analyses.break_even.recompute import Recompute, fitted
from kvtrace.analyses.break_even.steps import prefill_steps
from kvtrace.analyses.exposure.cache import ALGORITHM as EXPOSURE
from kvtrace.analyses.exposure.cache import partition
from kvtrace.analyses.hit_funnel import ALGORITHM as FUNNEL
from kvtrace.analyses.hit_funnel import table as funnel_table
from kvtrace.errors import UsageError
from kvtrace.run.derived import derived_folder, files_hash, published, spilling

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from kvtrace.run import Run

__all__ = ["ALGORITHM", "COLUMNS", "FACTS", "INTERVALS", "break_even", "lines", "table"]

ALGORITHM = "3"
"""Bumped whenever the answer for the same run can come out differently."""

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "useful_bytes": pl.Int64,
        "moved_bytes": pl.Int64,
        "load_lower_bound_pipelined_ns": pl.Int64,
        "load_lower_bound_serial_ns": pl.Int64,
        "cost_ns": pl.Int64,
        "recompute_estimate_ns": pl.Int64,
        "saved_ns": pl.Int64,
        "verdict": pl.String,
        "basis": pl.String,
    }
)
INTERVALS = ("cost_low", "cost_high", "recompute_low", "recompute_high")
"""Kept beside the columns: the ends of both intervals, ns; null where an end is not known."""
FACTS = pl.Schema({"engine": pl.String, "used_tokens": pl.Int64, "exact": pl.Boolean})
"""Kept as well: its engine, the loaded tokens that were used, whether its partition is exact."""


def break_even(run: Run, *, confidence: float = 0.95, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    """Was each load worth it: did it cost less than computing the same tokens would have?

    A row a request that loads state at its first admission, in the order of arrival. Handoffs are no choice
    between loading and computing, and forecasts no loads: neither has a row. A load that failed has: it was
    waited for, and nothing of it was used.

    The cost is what the request waited for its loads until its first token: exposed load, load_wait, lookup,
    lock and the engine's waits for those (see `exposure`), where that partition is exact; what was hidden
    behind compute or a full queue costs nothing. Else it is load_lower_bound_pipelined_ns plus its lookups.
    Where a record of these can be missing it cost at least so much: not_worth can be said, worth cannot.

    The estimate of computing the tokens that were loaded instead is fitted from the engine's own prefill
    steps: fixed + tokens + pairs that attention meets, by median regression, its error (one prediction at
    `confidence`, by bootstrap) in `basis`. Waits inside steps are no computing; steps that overlap count one
    after the other. An engine whose prefill steps all have one size, or of which fewer than three are known,
    gives no estimate, one of fewer than six no error. Where more tokens were loaded than any step computed
    (and steps were not as full as they can be) it is an extrapolation, and `basis` says so.

    Bounds of a load: latency + bytes / bandwidth of each hop, at the speeds that `bandwidth` measured in this
    run, never on paper (the path's median time where times do not grow with bytes); times that include a
    queue are no speed of a path. 4 GiB at 25 GiB/s are 160 ms, at
    25 GB/s 172 ms; 1 GiB = 2^30 bytes, 1 GB = 10^9.

    Args:
        run: the run
        confidence: of both intervals, between 0.5 and 1
        requests: only these; none named: all

    Columns:
        request_id: the request
        useful_bytes: bytes of the tokens that were used, at the bytes a token that moved; 0 where none was
            used; null where the used or the moved are not known, or a handoff came with them
        moved_bytes: bytes that reached the GPU, in whole chunks; null where a load does not say
        load_lower_bound_pipelined_ns: the slowest hop, ns: as quick as the loads can be when hops overlap;
            null where a hop has no bytes or its path no measured speed
        load_lower_bound_serial_ns: the sum of the hops, ns: one after the other
        cost_ns: what the request waited for its loads, ns; null where neither was seen
        recompute_estimate_ns: what computing the tokens that were used would have taken, ns, to the
            microsecond; 0 where none was used; null where it cannot be estimated
        saved_ns: recompute_estimate_ns - cost_ns, ns; negative: the load cost more
        verdict: worth: the upper end of the cost is below the lower end of the estimate; not_worth: the lower
            end of the cost is above the upper end of the estimate; else unclear
        basis: what cost and estimate rest on, in words; of unclear what is missing

    Raises:
        UsageError: `confidence` is not between 0.5 and 1.
    """
    rows = pl.scan_parquet(table(run, confidence=confidence))
    if requests:
        rows = rows.filter(pl.col("request_id").is_in(list(requests)))
    return rows.select(list(COLUMNS)).collect()


def table(run: Run, *, confidence: float = 0.95) -> Path:
    """The cached rows of a run as a Parquet file: the columns, INTERVALS and FACTS."""
    if not 0.5 <= confidence < 1:
        raise UsageError(f"break_even: confidence must be at least 0.5 and below 1, not {confidence}.")
    key = files_hash(run, ALGORITHM, SERVED, FUNNEL, EXPOSURE, repr(confidence))
    target = derived_folder(run) / f"break_even-{key}.parquet"
    if not target.exists():
        rows = _rows(run, confidence)
        with published(target) as partial:
            rows.write_parquet(partial)
    return target


def lines(run: Run, engines: set[str]) -> dict[str, Recompute]:
    """Engine -> the lines through its prefill steps, of these; those whose steps tell none are not in it."""
    connection = spilling(run)
    try:
        return _lines(connection, engines)
    finally:
        connection.close()


def _lines(connection: duckdb.DuckDBPyConnection, engines: set[str]) -> dict[str, Recompute]:
    found = (
        (engine, fitted(steps))
        for engine, steps in sorted(prefill_steps(connection).items())
        if engine in engines
    )
    return {engine: line for engine, line in found if line is not None}


def _rows(run: Run, confidence: float) -> pl.DataFrame:
    served = served_table(run)
    funnel = pl.scan_parquet(funnel_table(run)).select(
        "request_id", "gpu_hit_tokens", "loaded_tokens", "computed_tokens"
    )
    known = pl.scan_parquet(served).select(
        "request_id", "engine", "again_ns", "start_ns", "ttft_ns", "handoffs", "lookup_wait_ns"
    )
    connection = spilling(run)
    try:
        found = hops(connection, str(served))
        rows = known.join(funnel, on="request_id", how="left", maintain_order="left").collect()
        rows = rows.join(moved(found), on="request_id", maintain_order="left")
        for other in (
            bounds(found, paths(measured(seen(run)), confidence)),
            exposed(connection, partition(run)),
            lost(connection, str(served), WAITED, first_token=True),
        ):
            rows = rows.join(other, on="request_id", how="left", maintain_order="left")
        engines = set(rows.filter(pl.col("loaded_tokens") > 0)["engine"].drop_nulls())
        told = _lines(connection, engines)
    finally:
        connection.close()
    rows = rows.with_columns(
        preempted=pl.col("again_ns") < pl.col("start_ns") + pl.col("ttft_ns").fill_null(2**62)
    )
    limits = _most_tokens(run)
    rows = judged(estimated(costed(rows), told, limits, confidence), told, limits, confidence)
    return rows.select(
        *(pl.col(name).cast(kind) for name, kind in COLUMNS.items()),
        *(pl.col(name).cast(pl.Float64) for name in INTERVALS),
        *(pl.col(name).cast(kind) for name, kind in FACTS.items()),
    )


def _most_tokens(run: Run) -> dict[str, int]:
    """Engine -> tokens that a step may compute at most, as its configuration says."""
    engines = run.meta.get("engines")
    told = engines.items() if isinstance(engines, dict) else ()
    found = {
        name: str(config.get("max_num_batched_tokens")) for name, config in told if isinstance(config, dict)
    }
    return {name: int(text) for name, text in found.items() if text.isdecimal() and 0 < int(text) < 2**31}
