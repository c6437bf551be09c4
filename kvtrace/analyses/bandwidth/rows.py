"""Which transfers can be measured, and which of them saw the copy itself?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from kvtrace.run import Run

PATH = ("tier_from", "tier_to", "component")

MEASURED = "measured"
_SEEN = """
SELECT
    tier_from, tier_to, component, start_ns, end_ns, bytes,
    -- Only workers and servers stand beside a copy; of one that says no observer the words hold:
    -- start_ns..end_ns is the copy. An L2 of LMCache tells submit and complete, whoever listens; a worker
    -- that saw no more than that says so in `times`.
    coalesce(observer IN ('client', 'scheduler', 'api', 'router'), false)
        OR coalesce(starts_with(component, 'lmcache.l2') AND clock IS DISTINCT FROM 'gpu', false)
        OR coalesce(name = 'mp.retrieve', false)
        OR coalesce(starts_with(attributes['times'], 'submit_to'), false) AS includes_queue,
    CASE
        WHEN evidence = 'predicted' THEN 'forecast'
        WHEN end_ns IS NULL OR outcome = 'open' THEN 'open'
        WHEN outcome NOT IN ('ok', 'unknown') THEN 'not ok'
        WHEN bytes IS NULL THEN 'bytes not observed'
        WHEN bytes <= 0 THEN 'no bytes'
        WHEN end_ns::HUGEINT - start_ns NOT BETWEEN 1 AND 9007199254740992 THEN 'no time'
        ELSE 'measured'
    END AS kind
FROM transfer
WHERE $engine IS NULL OR engine = $engine
"""


def seen(run: Run, engine: str | None = None) -> pl.DataFrame:
    """Every transfer: path, includes_queue, start_ns, end_ns, bytes, and its `kind`: measured, or why not."""
    found = pl.DataFrame(run.connection().sql(_SEEN, params={"engine": engine}).to_arrow_table())
    return found.cast(dict.fromkeys(("start_ns", "end_ns", "bytes"), pl.Int64))


def measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Of those seen the measured ones, by path, size and time."""
    kept = rows.filter(pl.col("kind") == MEASURED).drop("kind")
    return kept.sort(*PATH, "includes_queue", "bytes", "start_ns", "end_ns", nulls_last=True)


def left_out(rows: pl.DataFrame) -> dict[str, int]:
    """Why a transfer is not measured -> how many, in words' order."""
    kinds = rows.filter(pl.col("kind") != MEASURED).group_by("kind").len()
    return dict(sorted(kinds.iter_rows()))
