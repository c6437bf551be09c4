"""Changes that other questions have the numbers for: what each would take off a request's ttft, ns.

recompute   break_even: a load that cost more than computing its tokens is not made
holds       blockers: the parts of queue_capacity that holds are to blame for, less what they hid
stores      missed_by_lag, store_lag: tokens whose store was ready in time, had it not been queued first

Rows: request_id, low, predicted, high (what is saved: low the most); null where it cannot be said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.blockers import shares
from kvtrace.analyses.break_even import lines
from kvtrace.analyses.break_even import table as break_even_table
from kvtrace.analyses.exposure.cache import partition
from kvtrace.analyses.missed_by_lag import missed_by_lag
from kvtrace.analyses.store_lag import store_lag

if TYPE_CHECKING:
    from kvtrace.run import Run

SAVED = pl.Schema({"request_id": pl.String, "low": pl.Int64, "predicted": pl.Int64, "high": pl.Int64})
_HIDDEN = ("load", "load_wait", "lock", "lookup", "store")
_ENGINES = """
SELECT request_id, any_value(engine) AS engine,
    greatest(0, coalesce(arg_min(found_tokens, start_ns), 0)) AS found_tokens
FROM lookup WHERE request_id IS NOT NULL GROUP BY request_id
"""


def better(run: Run, confidence: float) -> pl.DataFrame:
    """The better of load and recompute, for every request that loads."""
    rows = pl.read_parquet(break_even_table(run, confidence=confidence))
    cost, estimate = pl.col("cost_ns"), pl.col("recompute_estimate_ns")
    most = pl.coalesce("cost_high", cost) - pl.coalesce("recompute_low", estimate * 0)
    least = pl.coalesce("cost_low", cost) - pl.coalesce("recompute_high", "cost_high", cost)
    saved = rows.select(
        "request_id",
        predicted=(cost - estimate).clip(0),
        low=pl.min_horizontal(most.clip(0).round(), cost.cast(pl.Float64)),
        high=least.clip(0).round(),
    )
    known = pl.col("predicted").is_not_null()
    return saved.with_columns(
        low=pl.when(known).then(pl.max_horizontal("low", "predicted")),
        high=pl.when(known).then(pl.min_horizontal("high", "predicted")),
    ).select(*(pl.col(name).cast(kind) for name, kind in SAVED.items()))


def freed(run: Run) -> pl.DataFrame:
    """No hold keeps GPU blocks, for every request that waits for some; low: also holds of unknown size."""
    held = (
        pl.scan_parquet(shares(run)).filter(window="ttft").filter(pl.col("class") == "queue_capacity")
        .group_by("request_id")
        .agg(
            pl.col("exposed_ns").sum(),
            unsized_ns=pl.col("overlap_ns").filter(pl.col("exposed_ns").is_null()).sum(),
        )
    )  # fmt: skip
    exposed = pl.scan_parquet(partition(run)).filter(window="ttft").group_by("request_id").agg(
        queued_ns=pl.col("exposed_ns").filter(pl.col("class") == "queue_capacity").sum(),
        hidden_ns=pl.col("hidden_by_queue_ns").filter(pl.col("class").is_in(_HIDDEN)).sum(),
    )  # fmt: skip
    rows = held.join(exposed, on="request_id").collect()
    kept = (pl.col("exposed_ns") - pl.col("hidden_ns")).clip(0)
    most = pl.min_horizontal(pl.col("exposed_ns") + pl.col("unsized_ns"), "queued_ns")
    found = rows.select("request_id", low=most, predicted=kept, high=kept)
    return found.sort("request_id").cast(SAVED)


def eager(run: Run, confidence: float) -> pl.DataFrame:
    """Stores begin when they are decided, for every request that missed tokens by their lag.

    What the tokens would have cost to load is what loaded tokens cost in this run: the median a token, the
    least and the most of a request.
    """
    lagging = store_lag(run).select(
        producer_request_id="request_id", ahead_ns=pl.col("submitted_ns") - pl.col("queued_ns")
    )
    missed = (
        missed_by_lag(run)
        .join(lagging, on="producer_request_id", how="left")
        .filter(pl.col("late_by_ns") <= pl.col("ahead_ns"))
        .group_by("request_id")
        .agg(pl.col("tokens").sum())
        .sort("request_id")
    )
    engines = pl.DataFrame(run.connection().sql(_ENGINES).to_arrow_table())
    missed = missed.join(engines, on="request_id", how="left", maintain_order="left")
    told = lines(run, set(missed["engine"].drop_nulls()))
    costs = _a_token(run, confidence)
    rows = []
    for name, tokens, engine, found in missed.select(
        "request_id", "tokens", "engine", "found_tokens"
    ).iter_rows():
        line = told.get(engine)
        if line is None or costs is None:
            rows.append((name, None, None, None))
            continue
        asked = np.array([[0.0, tokens, tokens * (found + tokens / 2)]])
        estimate = float(line.estimate(asked)[0])
        ends = line.interval(asked, confidence)
        low, high = (estimate, estimate) if ends is None else (float(ends[0][0]), float(ends[1][0]))
        saved = high - costs[0] * tokens, estimate - costs[1] * tokens, low - costs[2] * tokens
        rows.append((name, *(round(value) for value in (max(saved), sorted(saved)[1], min(saved)))))
    return pl.DataFrame(rows, schema=SAVED, orient="row")


def _a_token(run: Run, confidence: float) -> tuple[float, float, float] | None:
    """What a loaded token cost: least, median, most of a request, ns; None where no request says."""
    rows = pl.read_parquet(break_even_table(run, confidence=confidence))
    own = rows.filter(pl.col("exact"), pl.col("used_tokens") > 0, pl.col("cost_ns").is_not_null())
    cost = (own["cost_ns"] / own["used_tokens"]).to_numpy()
    return (float(cost.min()), float(np.median(cost)), float(cost.max())) if cost.size else None
