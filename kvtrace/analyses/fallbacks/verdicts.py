"""What became of the cache's offer: every verdict as a condition on the facts; the first that holds wins.

hung > failed > cancelled > recompute_after_timeout > recompute_degraded > admission_fallback
> recompute_after_failure > partial > recompute_after_preemption > noop > loaded > declined > shadowed
> miss
"""

from __future__ import annotations

import polars as pl

from kvtrace.analyses._served import measured

VERDICTS = (
    "hung", "failed", "cancelled", "recompute_after_timeout", "recompute_degraded", "admission_fallback",
    "recompute_after_failure", "partial", "recompute_after_preemption", "noop", "loaded", "declined",
    "shadowed", "miss",
)  # fmt: skip


def _sure(condition: pl.Expr) -> pl.Expr:
    """What is not known does not hold."""
    return condition.fill_null(value=False)


def conditions() -> dict[str, pl.Expr]:
    """Verdict -> when it holds, on a frame of `measured`."""
    loaded, usable, found, gpu_hit = (pl.col(name) for name in ("loaded", "usable", "found", "gpu_hit"))
    bad = pl.col("bad") > 0
    arrived = (pl.col("good") > 0) | (pl.col("partly") > 0)
    some = pl.when(loaded.is_not_null()).then(loaded > 0).otherwise(arrived)
    by_tokens = pl.when(loaded.is_not_null() & usable.is_not_null()).then(loaded < usable)
    # what a lower tier had and did not deliver was never selected: by its tokens a load of the rest is whole
    undelivered, unplaced = pl.col("undelivered"), pl.col("unplaced")
    short = pl.coalesce(by_tokens, bad | (pl.col("partly") > 0)) | undelivered
    whole = some & ~short
    known_hit = gpu_hit.is_not_null() & found.is_not_null()
    unselected = pl.when(pl.col("selected").is_not_null()).then(pl.col("selected") == 0)
    asked_none = pl.coalesce(unselected, pl.col("loads") == 0)
    timed_out = pl.col("lookup_timed_out") | pl.col("load_timed_out")
    held = {
        "hung": pl.col("end_ns").is_null(),
        "failed": pl.col("status") == "error",
        "cancelled": pl.col("status") == "aborted",
        "recompute_after_timeout": timed_out & ~whole,
        "recompute_degraded": pl.col("health").is_not_null() & ~pl.col("reached"),
        "admission_fallback": (pl.col("no_room") > 0) & ~whole | unplaced,
        "recompute_after_failure": (bad | undelivered) & ~some,
        "partial": some & short,
        "recompute_after_preemption": pl.col("preempted") & (pl.col("later").fill_null(1) > 0),
        "noop": pl.col("noop"),
        "loaded": whole,
        "declined": known_hit & (found > gpu_hit) & asked_none,
        "shadowed": known_hit & (found > 0) & (found <= gpu_hit),
    }
    held = {name: _sure(condition) for name, condition in held.items()}
    # an engine that records its own inquiries and made none did not ask; where only the cache records them,
    # nobody knows
    silent = (pl.col("inquiries") == 0) & pl.col("asks_itself")
    empty = _sure(found == 0) | pl.col("below_chunk") | silent
    rest = ("noop", "loaded", "partial", "declined", "shadowed", "recompute_after_failure")
    nothing = ~pl.any_horizontal(*(held[name] for name in rest))
    elsewhere = timed_out | held["recompute_degraded"] | unplaced
    return held | {"miss": empty & nothing & ~elsewhere}


def judged(facts: pl.DataFrame) -> pl.DataFrame:
    """The facts with `verdict` (null: what was recorded does not tell) and `also` (the others that hold)."""
    flags = {name: f"holds_{name}" for name in VERDICTS}  # some facts are named as a verdict
    held = {flags[name]: condition for name, condition in conditions().items()}
    flagged = measured(facts).with_columns(**held)
    first = pl.coalesce(*(pl.when(pl.col(flag)).then(pl.lit(name)) for name, flag in flags.items()))
    names = [
        pl.when(pl.col(flag) & (pl.lit(name) != pl.col("verdict"))).then(pl.lit(name))
        for name, flag in flags.items()
    ]
    every = flagged.with_columns(verdict=first)
    return every.with_columns(
        also=pl.concat_str(*names, separator=", ", ignore_nulls=True),
        expected_tokens=pl.when(pl.col("undelivered") | pl.col("unplaced"))
        .then(pl.max_horizontal("expected_tokens", "promised_tokens"))
        .otherwise("expected_tokens"),
        reason=_reason(),
    ).drop(*flags.values())


def _reason() -> pl.Expr:
    """What the operation that decided gave as its reason; a miss gets its own later."""
    verdict = pl.col("verdict")
    by_load = pl.when(pl.col("load_timed_out") & ~pl.col("lookup_timed_out"))
    return (
        pl.when(verdict == "recompute_after_timeout")
        .then(by_load.then("load_reason").otherwise("lookup_reason"))
        .when(verdict == "recompute_degraded").then("health")
        .when(verdict == "admission_fallback").then(pl.lit("no_room"))
        .when(verdict.is_in(["recompute_after_failure", "partial"]))
        .then(pl.coalesce("load_reason", "undelivered_reason"))
        .when(verdict == "miss").then(pl.lit("unknown"))
    )  # fmt: skip
