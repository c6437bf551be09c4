"""What is measured of each run, with what it rests on: a number, of how many, and a remark.

writes      how often, how much, how much of it came too late
waits       what requests waited for others' stores and theirs
delays      when state became reusable
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.blockers import blockers
from kvtrace.analyses.eager_vs_lazy.reusable import lasted, reusable_share, still_open
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.hold import hold
from kvtrace.analyses.missed_by_lag import missed_by_lag
from kvtrace.analyses.store_lag import store_lag
from kvtrace.analyses.store_lag.stores import MOVING, WAITING
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run


@dataclass(frozen=True)
class Found:
    """A measure of one run; null with a remark that says what was not recorded."""

    value: float | None
    rows: int | None
    remark: str | None = None


NO_STORES = Found(None, 0, "stores were not recorded (LMCache --enable-tracing, or kvtrace run)")
NO_WAITS = Found(None, 0, "no wait of the engine was recorded (kvtrace run)")
NO_STEPS = Found(None, 0, "steps were not recorded, so no exposure is exact (kvtrace run)")
NO_HOLDS = Found(None, 0, "no hold of GPU blocks was recorded (kvtrace run; some connectors keep none)")
NO_KEYS = Found(None, 0, "the keys that lookups asked for were not recorded (kvtrace run -- lmcache server)")
NO_DROPS = Found(None, 0, "nobody recorded which stores were dropped (kvtrace run)")
NO_END = Found(None, 0, "of no request it is known when its stores were complete")
NO_FATE = Found(None, 0, "it is known of no request whether its state was stored")

_WRITES = """
WITH told AS (
    SELECT count(*) FILTER (good) AS writes, count(tokens) FILTER (good) AS sized,
        sum(tokens) FILTER (good)::DOUBLE AS written,
        count(*) FILTER (NOT (op = 'drop' AND coalesce(reason = 'duplicate', false))) AS decided,
        count(tokens) FILTER (NOT (op = 'drop' AND coalesce(reason = 'duplicate', false))) AS decided_sized,
        sum(tokens) FILTER (NOT (op = 'drop' AND coalesce(reason = 'duplicate', false)))::DOUBLE AS deciding,
        coalesce(sum(tokens) FILTER (op = 'drop' AND reason = 'stale'), 0)::DOUBLE AS stale,
        count(*) FILTER (NOT only_drops) AS seen
    FROM moving
)
SELECT *, (SELECT count(*) FROM waiting) AS waited,
    EXISTS (FROM span WHERE op = 'drop' OR (op = 'store' AND evidence = 'shim')) AS drops_seen,
    EXISTS (FROM loss WHERE cause <> 'duplicate' AND (op IS NULL OR op IN ('store', 'drop'))) AS lossy
FROM told
"""
_COUNTS = """
SELECT (SELECT count(*) FROM wait) AS waits, (SELECT count(*) FROM hold) AS holds
"""
_ASKED = """
SELECT count(DISTINCT request_id) FROM lookup
WHERE found_tokens IS NOT NULL AND request_id IN (SELECT request_id FROM request_key)
"""


def measured(run: Run, horizon_ns: int) -> dict[str, Found]:
    """Every measure of one run; horizon_ns: how long after its finish a request is looked at at most."""
    lag = store_lag(run)
    return writes(run, lag) | waits(run, lag) | delays(run, lag, horizon_ns)


def writes(run: Run, lag: pl.DataFrame) -> dict[str, Found]:
    """How often and how much was stored, and how much of it came too late; lag: the rows of `store_lag`."""
    connection = spilling(run)
    try:
        connection.execute(MOVING)
        connection.execute(WAITING)
        (told,) = connection.sql(_WRITES).pl().to_dicts()
    finally:
        connection.close()
    count, seen, requests = told["writes"], told["seen"] + told["waited"] > 0, lag.height
    if not seen:
        return dict.fromkeys(
            ("writes_per_request", "writes_per_s", "tokens_per_write", "stale_ratio"), NO_STORES
        )
    lossy = "records of stores were lost: at least" if told["lossy"] else None
    duration_ns = lasted(run)
    sized = count > 0 and told["sized"] == count
    whole = told["decided"] > 0 and told["decided_sized"] == told["decided"] and told["drops_seen"]
    return {
        "writes_per_request": Found(count / requests if requests else None, requests, lossy),
        "writes_per_s": Found(count / duration_ns * 1e9 if duration_ns else None, count, lossy),
        "tokens_per_write": Found(told["written"] / count if sized else None, count),
        "stale_ratio": Found(told["stale"] / told["deciding"], told["decided"], lossy and "records were lost")
        if whole and told["deciding"]
        else NO_DROPS,
    }


def waits(run: Run, lag: pl.DataFrame) -> dict[str, Found]:
    """Means over requests whose exposure is exact: what an upper bound would say is no measure."""
    (counts,) = run.connection().sql(_COUNTS).pl().to_dicts()
    whole = exposure(run, window="e2e").filter(~pl.col("censored"))
    exact = whole.filter(bound="exact")
    requests = exact["request_id"].n_unique()
    found = dict.fromkeys(("wait_store_ns", "interference_ns", "held_wait_ns"), NO_STEPS)
    if requests:
        blamed = (
            blockers(run).filter(reason="store").join(exact.select("request_id").unique(), on="request_id")
        )
        others = blamed.filter(pl.col("class") == "interference")["exposed_ns"]
        own = exact.filter(pl.col("class") == "wait_store")["exposed_ns"]
        held = blamed.filter(pl.col("class") == "queue_capacity")["exposed_ns"]
        unknown = Found(None, requests, "of a wait for held blocks it is unknown how many were lacking")
        found = {
            "wait_store_ns": _mean(own, requests) if counts["waits"] else NO_WAITS,
            "interference_ns": _mean(others, requests) if counts["waits"] else NO_WAITS,
            "held_wait_ns": NO_HOLDS if not counts["holds"]
            else unknown if held.null_count() else _mean(held, requests),
        }  # fmt: skip
    kept = hold(run).filter(reason="store")["block_seconds"]
    blocks = _mean(kept, lag.height) if lag.height and not kept.null_count() else NO_HOLDS
    return found | {"block_seconds_per_request": blocks if counts["holds"] else NO_HOLDS}


def delays(run: Run, lag: pl.DataFrame, horizon_ns: int) -> dict[str, Found]:
    """When state became reusable, and for how much of the time after."""
    ((asked,),) = run.connection().sql(_ASKED).fetchall()
    late = missed_by_lag(run)["tokens"]
    known = asked > 0 and not late.null_count()
    unended = lag.join(still_open(run, lag), on="request_id", how="semi")
    unsure = unended["never_stored"].null_count()
    fates = lag["never_stored"].drop_nulls().cast(pl.Int64)
    share, requests, ends_known = reusable_share(run, horizon_ns, lag)
    upper = (
        f"removals were recorded for {ends_known} of {requests} requests, of the others it is an upper bound"
    )
    more = f"{unsure} more whose stores were open at the end" if unsure else None
    return {
        "reuse_delay_p50_ns": _delay(lag["lag_ns"], unended["lag_ns"].null_count(), 50),
        "reuse_delay_p90_ns": _delay(lag["lag_ns"], unended["lag_ns"].null_count(), 90),
        "missed_tokens_per_lookup": _mean(late, asked) if known else NO_KEYS,
        "never_stored_ratio": _mean(fates, len(fates), more) if len(fates) else _said(NO_FATE, more),
        "reusable_time_ratio": NO_FATE
        if share is None
        else Found(share, requests, upper if ends_known < requests else None),
    }


def _delay(values: pl.Series, unended: int, percent: int) -> Found:
    """The smallest delay that at least so many percent of all are not above.

    unended: requests whose stores were open at the end, which count as later than all; where it is one of
    these that has the place, it is not known.
    """
    after = values.drop_nulls().sort()
    every = len(after) + unended
    if not every:
        return NO_END
    place = -(-every * percent // 100)
    remark = (
        f"stores of {unended} of {every} requests were open at the end: later than all" if unended else None
    )
    return Found(float(after[place - 1]) if place <= len(after) else None, every, remark)


def _said(found: Found, more: str | None) -> Found:
    """With a second remark."""
    return Found(found.value, found.rows, f"{found.remark}; {more}" if more else found.remark)


def _mean(values: pl.Series, rows: int, remark: str | None = None) -> Found:
    """Over all, those without any of it included."""
    return Found(float(values.sum()) / rows, rows, remark)
