"""The question `eager_vs_lazy`: two runs of one engine, one storing at once and one later.

comparable.py   which runs may stand side by side
measures.py     what is measured of each of them
reusable.py     the share of time in which state is reusable
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.eager_vs_lazy.comparable import require_comparable
from kvtrace.analyses.eager_vs_lazy.measures import measured
from kvtrace.analyses.eager_vs_lazy.reusable import lasted

if TYPE_CHECKING:
    from kvtrace.analyses.eager_vs_lazy.measures import Found
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "measure": pl.String,
        "unit": pl.String,
        "eager": pl.Float64,
        "lazy": pl.Float64,
        "difference": pl.Float64,
        "rests_on": pl.String,
        "eager_rows": pl.Int64,
        "lazy_rows": pl.Int64,
        "basis": pl.String,
    }
)
MEASURES = {
    "writes_per_request": ("writes/request", "requests", "stores that left the GPU and did not fail"),
    "writes_per_s": (
        "writes/s",
        "writes",
        "the same, over the time from the first arrival to the last record",
    ),
    "tokens_per_write": ("tokens", "writes", "mean; null where one of them does not say"),
    "wait_store_ns": ("ns", "requests", "mean exposed wait_store (question exposure, window e2e)"),
    "interference_ns": ("ns", "requests", "mean interference by waits for stores of others (blockers)"),
    "held_wait_ns": ("ns", "requests", "mean wait for GPU blocks that stores held (blockers)"),
    "block_seconds_per_request": ("blocks*s", "requests", "GPU blocks held for stores x time (hold)"),
    "reuse_delay_p50_ns": (
        "ns",
        "requests",
        "median lag_ns (store_lag); negative: reusable before the finish",
    ),
    "reuse_delay_p90_ns": ("ns", "requests", "its 90th percentile"),
    "missed_tokens_per_lookup": ("tokens", "lookups", "missed because a store was not over (missed_by_lag)"),
    "stale_ratio": ("ratio", "stores", "tokens dropped as stale, of all stored, failed or dropped"),
    "never_stored_ratio": ("ratio", "requests", "requests whose state never became reusable (store_lag)"),
    "reusable_time_ratio": ("ratio", "requests", "time reusable, of the time after their finish"),
}
"""Measure -> its unit, what it rests on, and its basis in words."""


def eager_vs_lazy(eager: Run, lazy: Run) -> pl.DataFrame:
    """What does storing lazily save in writes and waits, and what does it cost in reuse?

    A row a measure; two runs without a request give none. Eager stores state as soon as it is computed; lazy
    keeps it in GPU blocks and stores it when they are about to be reused, in batches or beyond a threshold:
    fewer writes of what nobody will read, but a part can go stale (its blocks were reused before it was
    drained), wait to the end of the engine, or come too late for a lookup.

    A write is a store of one request that leaves the GPU; the hop from the host to a disk is none. Means of
    times are over requests whose exposure is exact and not censored. A reuse delay is of requests whose
    stores completed, or were open at the end of the run: these count as later than all others, and a quantile
    that falls on one of them is null. What was never stored has none, and is in never_stored_ratio, which
    leaves out and counts what was open. stale_ratio leaves out what
    was dropped because it was there already. reusable_time_ratio is sum of time reusable / sum of windows: a
    request's window begins at its finish and ends at its engine's last record, or earlier, so that it is no
    longer than the shorter of both runs lasted; in it, state is reusable from the completion (publication) of
    its stores on, or at once where it was there already, to the removal of the last copy of its first key
    where removals were recorded. One whose state was never stored, or whose stores are open, counts with 0,
    one of which that is unknown not at all.

    Both runs must tell the same engine, model, dtype, block and chunk size, parallel layout and version,
    wherever the same source tells them; what only one of them tells is not compared. The work need not be the
    same, but then differences are its as well: play the same requests. One run a side gives no interval.

    Args:
        eager: the run that stored at once
        lazy: the run that stored later

    Columns:
        measure: what was measured
        unit: its unit
        eager: its value in the eager run; null where it was not observed
        lazy: its value in the lazy run; null where it was not observed
        difference: lazy - eager, in the same unit; null unless both are known
        rests_on: what the next two columns count
        eager_rows: how many requests, writes, stores or lookups the eager run's value rests on
        lazy_rows: how many the lazy run's value rests on
        basis: the measure in words, then for each run what was not recorded, or a bound

    Raises:
        NotComparableError: another engine, model, dtype, block or chunk size, parallel layout or version.
        UsageError: the first run stores lazily, or the second is known to store eagerly.
    """
    require_comparable(eager, lazy)
    lengths = [length for length in (lasted(eager), lasted(lazy)) if length is not None]
    if not lengths:
        return pl.DataFrame(schema=COLUMNS)
    found = [measured(run, min(lengths)) for run in (eager, lazy)]
    rows = [_row(measure, found[0][measure], found[1][measure]) for measure in MEASURES]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _row(measure: str, eager: Found, lazy: Found) -> tuple[str | float | None, ...]:
    unit, rests_on, basis = MEASURES[measure]
    difference = None if eager.value is None or lazy.value is None else lazy.value - eager.value
    said = [
        basis,
        *(f"{side}: {found.remark}" for side, found in (("eager", eager), ("lazy", lazy)) if found.remark),
    ]
    return (
        measure, unit, eager.value, lazy.value, difference, rests_on, eager.rows, lazy.rows, "; ".join(said),
    )  # fmt: skip
