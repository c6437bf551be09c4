"""The question `whatif`: what would change?

asked.py      options -> changes, with the assumption in words or with why nothing can be replayed
changes.py    what is shortened, and by how much
tails.py      intervals of a block: what is left of them, and the tails that are gone
replay.py     the partition again without the tails: what of each ttft is gone
others.py     changes that other questions have the numbers for
quantiles.py  quantiles, and how far a repeat may lie from them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from kvtrace.analyses.exposure.cache import prepare
from kvtrace.analyses.whatif import asked, others
from kvtrace.analyses.whatif.changes import Change, Shorter
from kvtrace.analyses.whatif.quantiles import SHARES, interval, quantile
from kvtrace.analyses.whatif.replay import HIGH, LOW, PREDICTED, Saved, replay
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "change": pl.String,
        "quantile": pl.Float64,
        "requests": pl.Int64,
        "changed": pl.Int64,
        "ttft_ns": pl.Int64,
        "predicted_ns": pl.Int64,
        "low_ns": pl.Int64,
        "high_ns": pl.Int64,
        "left_out": pl.Int64,
        "left_out_why": pl.String,
        "evidence": pl.String,
        "assumption": pl.String,
    }
)


def whatif(
    run: Run,
    *,
    path: str | None = None,
    bandwidth_factor: float | None = None,
    latency_ns: int | None = None,
    lookup_ns: int | None = None,
    choose: Literal["better"] | None = None,
    without: Literal["failures"] | None = None,
    holds: Literal["freed"] | None = None,
    stores: Literal["eager"] | None = None,
    requests: tuple[str, ...] = (),
    confidence: float = 0.95,
) -> pl.DataFrame:
    """What would change in the time to the first token, if something cost less?

    A prediction, never a result: a row a change and quantile (0.5, 0.9, 0.99). Every option that is named
    is a change by itself (a path with both of its options is one); none named: each path that was seen with
    twice its bandwidth, lookups that take no time, no failures, the better of load and recompute, holds
    freed, eager stores.

    Copies and lookups are replayed on the partition of `exposure`: the tail of the shortened interval goes,
    and an instant of it is gone where nothing else of the request was going on. Time that was hidden gives
    nothing: computing, queue_capacity, waits for something else, another hop, a lock, a lookup that does not
    enclose the load, stay where they were. What merely waits for the shortened interval (load_wait, a queue
    for a transfer or without a known reason, the engine's wait for it) goes with it. No request is admitted
    in the middle of a step of others, which stay where they were in time; a request that would come into
    another step than it did is taken to make it no longer. So no parallelism comes in that the run did not
    show.

    Only requests whose partition is exact and whose first token was seen are replayed, and the measured
    quantile is of the same ones; the others are counted. The interval is for the same quantile of one repeat
    of as many requests. Its lower end takes the lowest replays (whoever waited behind a shortened copy of
    another moves with it, steps of others hold nobody up, queues of other reasons end too), its upper
    end the highest (nobody else moves, nothing but waits for it by name ends with it); both are then widened
    by what the quantile of two repeats differs by in `confidence` of all pairs, drawn from these requests
    (see quantiles.py). A machine that is another one between two runs is not in it.

    Args:
        run: the run
        path: whose copies change, e.g. host:gpu; alone: twice its bandwidth
        bandwidth_factor: by which the time of a copy beyond the path's measured latency is divided, at least
            1; inf: it takes no time
        latency_ns: added to every copy of the path, ns, below 0: -15000000 takes 15 ms off each
        lookup_ns: what a lookup takes at most, ns
        choose: better: a load that cost more than computing its tokens (break_even) is not made
        without: failures: lookups that timed out answer like the others, loads that failed take no time
        holds: freed: no GPU block is kept for a transfer (blockers)
        stores: eager: a store begins when it is decided (missed_by_lag, store_lag)
        requests: quantiles over these alone; none named: all
        confidence: of the interval, between 0.5 and 1

    Columns:
        change: what costs less
        quantile: which quantile of the ttft; the value of a request (nearest rank)
        requests: how many requests were replayed
        changed: how many of them the change is about
        ttft_ns: measured quantile of these requests, ns; null where none was replayed
        predicted_ns: predicted quantile, ns; null where nothing that could change was recorded
        low_ns: lower end of the interval, ns; null where the prediction is, of fewer than 6 requests, and
            of a quantile beyond which none of them lies (0.99 of fewer than 100)
        high_ns: upper end, ns; null likewise
        left_out: how many requests were not replayed
        left_out_why: why, in words with counts
        evidence: predicted
        assumption: what is taken to be so, in words; of what was not recorded, what would record it

    Raises:
        UsageError: an option cannot be replayed, or `confidence` is not between 0.5 and 1.
    """
    if not 0.5 <= confidence < 1:
        raise UsageError(f"whatif: confidence must be at least 0.5 and below 1, not {confidence}.")
    wanted = asked.changes(
        run,
        asked.Options(
            path=path, bandwidth_factor=bandwidth_factor, latency_ns=latency_ns, lookup_ns=lookup_ns,
            choose=choose, without=without, holds=holds, stores=stores,
        ),
    )  # fmt: skip
    prepared = prepare(run)
    told = prepared.table.select(
        "request_id",
        ttft_ns=pl.col("token_ns") - pl.col("start_ns"),
        exact=pl.col("ttft_exact").fill_null(value=False),
    )
    if requests:
        told = told.with_columns(asked=pl.col("request_id").is_in(list(requests)))
    else:
        told = told.with_columns(asked=pl.lit(value=True))
    shorter = [one for one in wanted if isinstance(one, Shorter) and not one.unseen]
    saved = dict(zip([one.name for one in shorter], replay(prepared, shorter), strict=True))
    rows: list[tuple[Any, ...]] = []
    for change in wanted if told["asked"].any() else ():
        found = saved.get(change.name)
        one = _of_others(run, change, confidence) if found is None else _replayed(found)
        rows += _rows(change, told, one, confidence)
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _replayed(found: Saved) -> pl.DataFrame:
    """In the order of the requests."""
    low, predicted, high = (found.ns[mode] for mode in (LOW, PREDICTED, HIGH))
    return pl.DataFrame({"low": low, "predicted": predicted, "high": high, "changed": found.changed})


def _of_others(run: Run, change: Change, confidence: float) -> pl.DataFrame | None:
    """By request; None where nothing was recorded that could change."""
    if change.unseen:
        return None
    if change.name == asked.BETTER:
        return others.better(run, confidence)
    return others.freed(run) if change.name == asked.FREED else others.eager(run, confidence)


def _rows(
    change: Change, asked_of: pl.DataFrame, saved: pl.DataFrame | None, confidence: float
) -> list[tuple[Any, ...]]:
    """The quantiles of one change."""
    if saved is None:
        known = asked_of.with_columns(low=0, predicted=0, high=0, changed=pl.lit(value=False))
    elif "request_id" in saved.columns:
        known = asked_of.join(
            saved.with_columns(changed=pl.lit(value=True)), on="request_id", how="left", maintain_order="left"
        ).with_columns(pl.col("changed").fill_null(value=False))
        unchanged = ~pl.col("changed")
        known = known.with_columns(
            pl.when(unchanged).then(0).otherwise(name).alias(name) for name in ("low", "predicted", "high")
        )
    else:
        known = pl.concat([asked_of, saved], how="horizontal")
    known = known.filter("asked")
    used, why = _used(known)
    ttft = used["ttft_ns"].to_numpy()
    low, predicted, high = (
        np.maximum(0, ttft - used[name].to_numpy()) for name in ("low", "predicted", "high")
    )
    rows: list[tuple[Any, ...]] = []
    for share in SHARES:
        measured = quantile(np.sort(ttft), share) if ttft.size else None
        told: tuple[int | None, ...] = (None, None, None)
        if ttft.size and saved is not None:
            ends = interval(low, predicted, high, share, confidence) or (None, None)
            told = (quantile(np.sort(predicted), share), *ends)
        counts = used.height, int(used["changed"].sum())
        left_out = known.height - used.height, why
        rows.append((change.name, share, *counts, measured, *told, *left_out, "predicted", _words(change)))
    return rows


def _words(change: Change) -> str:
    return f"Cannot be said: {change.unseen}." if change.unseen else change.assumption


def _used(known: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Requests that were replayed, and why the others were not."""
    tokenless = known["ttft_ns"].is_null()
    upper = ~known["exact"] & ~tokenless
    silent = known["predicted"].is_null() & ~tokenless & ~upper
    reasons = (
        (tokenless.sum(), "without a first token"),
        (
            upper.sum(),
            "with bound upper: their steps were not recorded (kvtrace run does that), or records were lost",
        ),
        (silent.sum(), "what the change would save cannot be estimated"),
    )
    why = "; ".join(f"{count} {reason}" for count, reason in reasons if count)
    return known.filter(~(tokenless | upper | silent)), why
