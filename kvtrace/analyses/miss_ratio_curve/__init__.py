"""The question `miss_ratio_curve`: how much would be hit if a tier were larger, or smaller?

accesses.py    who asked for which keys in which order, and where such keys lie
distances.py   what size of an LRU each access needs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.miss_ratio_curve.accesses import accesses, places
from kvtrace.analyses.miss_ratio_curve.distances import needed
from kvtrace.errors import UsageError
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

__all__ = ["COLUMNS", "miss_ratio_curve"]

COLUMNS = pl.Schema(
    {
        "tier": pl.String,
        "component": pl.String,
        "key_space": pl.String,
        "tenant": pl.String,
        "capacity_keys": pl.Int64,
        "capacity_tokens": pl.Int64,
        "capacity_bytes": pl.Int64,
        "requests": pl.Int64,
        "asked_keys": pl.Int64,
        "hit_keys": pl.Int64,
        "asked_tokens": pl.Int64,
        "hit_tokens": pl.Int64,
        "miss_ratio": pl.Float64,
    }
)
_MOST = float(2**63 - 1024)
_ORDER = ("tier", "component", "key_space", "tenant", "capacity_keys")


def miss_ratio_curve(run: Run, *, points: int = 64) -> pl.DataFrame:
    """How many of the tokens that were asked for would a tier hold, at every capacity that it could have?

    The keys that requests asked for (their first inquiry, in the order of time) are played to an LRU of every
    size at once: its stack distance says which is the smallest that has a key. A hit is the beginning of a
    prompt that is there whole; a request uses all of its keys, its last first, when it asks, so that state is
    there at once (a store that lags would hit less: `missed_by_lag`). Nothing is there at the beginning, and
    nothing goes but for room: no TTL, no locks. The last row of a curve is a cache that never evicts, in
    keys the hit of `ideal_hit_ratio` (but for tenants, who do not share there).

    All tiers in which events brought keys of the key space have the same curve in keys, each in its own
    bytes; where no event said a place, tier is null. It is that of the tier alone, as one cache for all
    engines. Behind an LRU of C1 keys whose evictions it takes, a tier of C2 adds hits(C1 + C2) - hits(C1).
    Tenants share the room: rows of one capacity may be summed over them.

    Args:
        run: the run
        points: at most so many capacities a key space, evenly by their logarithm; the first at which anything
            is hit and the last always

    Columns:
        tier: physical medium in which keys of this key space lie; null when no event tells
        component: the product's own name of the part
        key_space: what the keys are: producer:algorithm:model
        tenant: whose requests: the digest of a cache salt; null for requests without one
        capacity_keys: keys that the cache may hold, of all tenants together
        capacity_tokens: tokens in so many keys, by the mean of all that were asked for; null when one of
            them does not say its tokens
        capacity_bytes: bytes of so many keys, by the mean of those whose bytes this tier's events say; null
            when none says
        requests: requests that asked
        asked_keys: keys that they asked for
        hit_keys: keys of hits
        asked_tokens: tokens of the keys that they asked for; null when one of them does not say its tokens
        hit_tokens: tokens of hits
        miss_ratio: 1 - hit_tokens / asked_tokens

    Raises:
        UsageError: `points` is below 2.
    """
    if points < 2:
        raise UsageError(f"miss_ratio_curve: points must be at least 2, not {points}.")
    connection = spilling(run)
    try:
        rows, owners = accesses(connection)
        held = places(connection)
    finally:
        connection.close()
    if rows.is_empty():
        return COLUMNS.to_frame()
    curve = _curve(_reached(rows), owners, points)
    placed = curve.join(held, on="key_space", how="left", nulls_equal=True)
    bytes_ = _whole(pl.col("capacity_keys") * pl.col("key_bytes"))
    named = placed.with_columns(capacity_bytes=bytes_)
    return named.select(list(COLUMNS)).cast(COLUMNS).sort(_ORDER, nulls_last=False)


def _reached(rows: pl.DataFrame) -> pl.DataFrame:
    """A row an access: whose, of which key and tokens, and from which capacity on it is hit (null: never)."""
    turn, key, position = (rows[name].to_numpy() for name in ("turn", "key", "position"))
    capacity = needed(turn, key, position)
    found = rows.select("owner", "key", "tokens", capacity=pl.Series(capacity))
    return found.with_columns(pl.when(pl.col("capacity") <= rows.height).then("capacity"))


def _curve(reached: pl.DataFrame, owners: pl.DataFrame, points: int) -> pl.DataFrame:
    """A row an owner and capacity of its key space."""
    spaced = reached.lazy().join(owners.lazy().select("owner", "space"), on="owner")
    known = pl.col("tokens").null_count() == 0
    tokens = pl.col("tokens").cast(pl.Float64)
    of_keys = spaced.unique(["owner", "key"]).group_by("space").agg(
        distinct=pl.len(), key_tokens=pl.when(known).then(tokens.mean())
    )  # fmt: skip
    asked = spaced.group_by("owner").agg(
        asked_keys=pl.len(), asked_tokens=_whole(pl.when(known).then(tokens.sum())), known=known
    )
    steps = (
        spaced.filter(pl.col("capacity").is_not_null())
        .group_by("space", "owner", "capacity").agg(keys=pl.len(), tokens=tokens.sum())
        .sort("owner", "capacity")
        .with_columns(pl.col("keys", "tokens").cum_sum().over("owner")).collect()
    )  # fmt: skip
    grid = _grid(steps, of_keys.collect(), points)
    wanted = grid.join(owners, on="space").sort("owner", "capacity_keys")
    hits = wanted.join_asof(
        steps.drop("space").with_columns(pl.col("capacity").set_sorted()), left_on="capacity_keys",
        right_on="capacity", by="owner", strategy="backward", check_sortedness=False,
    )  # fmt: skip
    told = hits.join(asked.collect(), on="owner").with_columns(
        hit_keys=pl.col("keys").fill_null(0),
        hit_tokens=_whole(pl.when("known").then(pl.col("tokens").fill_null(0.0))),
        capacity_tokens=_whole(pl.col("capacity_keys") * pl.col("key_tokens")),
    )
    ratio = 1 - pl.col("hit_tokens") / pl.when(pl.col("asked_tokens") > 0).then("asked_tokens")
    return told.with_columns(miss_ratio=ratio)


def _grid(steps: pl.DataFrame, of_keys: pl.DataFrame, points: int) -> pl.DataFrame:
    """The capacities of each key space at which something changes; of many, evenly many by logarithm."""
    found = []
    for space, distinct, key_tokens in of_keys.sort("space").iter_rows():
        every = np.unique(steps.filter(pl.col("space") == space)["capacity"].to_numpy())
        if every.size >= points:
            even = np.geomspace(every[0], every[-1], points - 1)
            every = every[np.unique(np.searchsorted(every, even * (1 + 1e-12), side="right") - 1)]
        chosen = np.union1d(every, [distinct]).astype(np.int64)
        found.append(pl.DataFrame({"space": space, "capacity_keys": chosen, "key_tokens": key_tokens},
            schema_overrides={"space": of_keys.schema["space"], "key_tokens": pl.Float64}))  # fmt: skip
    return pl.concat(found)


def _whole(value: pl.Expr) -> pl.Expr:
    """A sum as a whole number; null where 64 bits do not hold it."""
    return pl.when(value < _MOST).then(value.round()).cast(pl.Int64)
