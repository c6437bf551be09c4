"""Changes that other questions have the numbers for: what each would take off a request's ttft, ns.

recompute   break_even: a load that cost more than computing its tokens is not made
holds       blockers: the parts of queue_capacity that holds are to blame for, where nothing else went on
stores      missed_by_lag: tokens whose store was ready in time, had it not been queued first

Rows: request_id, low, predicted, high (what is saved: low the most); null where it cannot be said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.blockers import shares, shares_alone
from kvtrace.analyses.break_even import lines
from kvtrace.analyses.break_even import table as break_even_table
from kvtrace.analyses.exposure.cache import partition
from kvtrace.analyses.missed_by_lag import missed_keys

if TYPE_CHECKING:
    from kvtrace.run import Run

SAVED = pl.Schema({"request_id": pl.String, "low": pl.Int64, "predicted": pl.Int64, "high": pl.Int64})
_ASKED = """
WITH asked AS (
    SELECT request_id, any_value(engine) AS engine,
        greatest(0, coalesce(arg_min(found_tokens, start_ns), 0)) AS found_tokens
    FROM lookup WHERE request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted' GROUP BY request_id
)
SELECT a.*, greatest(found_tokens, gpu_hit_tokens) AS had_tokens, gpu_hit_tokens IS NOT NULL AS hit_known
FROM asked a LEFT JOIN request r ON r.request_id = a.request_id
    AND r.evidence IS DISTINCT FROM 'predicted'
"""
"""had_tokens: what the request had without its lookup's misses, found outside the GPU or there already."""


def better(run: Run, confidence: float) -> pl.DataFrame:
    """The better of load and recompute, for every request that loads; null where a cost has no upper end."""
    rows = pl.read_parquet(break_even_table(run, confidence=confidence))
    cost, estimate = pl.col("cost_ns"), pl.col("recompute_estimate_ns")
    most = pl.col("cost_high") - pl.coalesce("recompute_low", estimate * 0)
    least = pl.coalesce("cost_low", cost) - pl.coalesce("recompute_high", "cost_high")
    saved = rows.select(
        "request_id",
        predicted=pl.when(pl.col("cost_high").is_not_null()).then((cost - estimate).clip(0)),
        low=pl.min_horizontal(most.clip(0).round(), cost.cast(pl.Float64)),
        high=least.clip(0).round(),
    )
    known = pl.col("predicted").is_not_null()
    return saved.with_columns(
        low=pl.when(known).then(pl.max_horizontal("low", "predicted")),
        high=pl.when(known).then(pl.min_horizontal("high", "predicted")),
    ).select(*(pl.col(name).cast(kind) for name, kind in SAVED.items()))


def freed(run: Run) -> pl.DataFrame:
    """No hold keeps GPU blocks, for every request that waits for some; low: nothing went on behind them.

    Of time in which a transfer of its own went on, or in which it is not known who was to blame, nothing is
    said to be gone.
    """

    def blamed(rows: pl.LazyFrame) -> pl.LazyFrame:
        exposed = pl.col("exposed_ns")
        return (
            rows.filter(window="ttft").filter(pl.col("class") == "queue_capacity").group_by("request_id")
            .agg(exposed.sum(), exposed.is_null().any().alias("unsure"),
                 unsized_ns=pl.col("overlap_ns").filter(exposed.is_null()).sum())
        )  # fmt: skip

    alone = blamed(shares_alone(run).lazy()).select(
        "request_id", "unsure", alone_ns=pl.when(~pl.col("unsure")).then("exposed_ns")
    )
    queued = pl.scan_parquet(partition(run)).filter(window="ttft").group_by("request_id").agg(
        queued_ns=pl.col("exposed_ns").filter(pl.col("class") == "queue_capacity").sum(),
    )  # fmt: skip
    held = blamed(pl.scan_parquet(shares(run))).drop("unsure").join(queued, on="request_id")
    rows = held.join(alone, on="request_id", how="left").collect()
    kept = pl.when(pl.col("unsure").is_null()).then(0).otherwise("alone_ns")
    most = pl.min_horizontal(pl.col("exposed_ns") + pl.col("unsized_ns"), "queued_ns")
    found = rows.select("request_id", low=most, predicted=kept, high=kept)
    return found.sort("request_id").cast(SAVED)


def _in_time(run: Run) -> pl.DataFrame:
    """Tokens of the requests whose stores would have been over in time, from the first miss on."""
    prompt = ["request_id", "key_space"]
    missed = missed_keys(run).sort(*prompt, "place")
    late = (pl.col("late_by_ns") > pl.col("ahead_ns")).fill_null(value=True)
    ready = missed.filter(late.cast(pl.Int64).cum_sum().over(prompt) == 0)
    each = ready.group_by(prompt).agg(pl.col("tokens").sum())
    return each.group_by("request_id").agg(pl.col("tokens").max()).sort("request_id")


def eager(run: Run, confidence: float) -> pl.DataFrame:
    """Stores begin when they are decided, for every request that missed tokens by their lag.

    What lay in GPU blocks anyway was not computed, and is not saved. What the tokens would have cost to load
    is what loaded tokens cost in this run: the median a token, the least and the most of a request.
    """
    asked = pl.DataFrame(run.connection().sql(_ASKED).to_arrow_table())
    missed = _in_time(run).join(asked, on="request_id", how="left", maintain_order="left")
    computed = pl.col("tokens") + pl.col("found_tokens") - pl.col("had_tokens")
    missed = missed.with_columns(pl.min_horizontal("tokens", computed.clip(0))).filter(pl.col("tokens") > 0)
    told = lines(run, set(missed["engine"].drop_nulls()))
    costs = _a_token(run, confidence)
    rows = []
    for name, tokens, engine, had, hit_known in missed.select(
        "request_id", "tokens", "engine", "had_tokens", "hit_known"
    ).iter_rows():
        line = told.get(engine)
        if line is None or costs is None or not hit_known:
            rows.append((name, None, None, None))
            continue
        asking = np.array([[0.0, tokens, tokens * (had + tokens / 2)]])
        estimate = float(line.estimate(asking)[0])
        ends = line.interval(asking, confidence)
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
