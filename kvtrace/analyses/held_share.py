"""The question `held_share`: how much of the GPU pool do transfers keep, over time?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.analyses.hold import LASTING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run import Run

COLUMNS = pl.Schema({"time_ns": pl.Int64, "blocks": pl.Int64, "pool_blocks": pl.Int64, "share": pl.Float64})
_POOL = ("num_gpu_blocks", "pool_blocks")

_ROWS = """
, change AS (
    SELECT engine, start_ns AS time_ns, coalesce(blocks, 0) AS blocks, (blocks IS NULL)::INT AS unknown
    FROM lasting
    UNION ALL
    SELECT engine, stop_ns, -coalesce(blocks, 0), -(blocks IS NULL)::INT FROM lasting
    WHERE stop_ns IS NOT NULL
), at_once AS (
    SELECT time_ns, sum(blocks) AS blocks, sum(unknown) AS unknown
    FROM change WHERE $engine IS NULL OR engine = $engine GROUP BY time_ns
), summed AS (
    SELECT time_ns, sum(blocks) OVER running AS blocks, sum(unknown) OVER running AS unknown,
    FROM at_once WINDOW running AS (ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
), told AS (
    SELECT time_ns, CASE WHEN unknown = 0 THEN blocks END::BIGINT AS blocks FROM summed
)
SELECT time_ns, blocks FROM told WINDOW in_time AS (ORDER BY time_ns)
QUALIFY row_number() OVER in_time = 1 OR blocks IS DISTINCT FROM lag(blocks) OVER in_time
ORDER BY time_ns
"""
_ENGINES = """
SELECT DISTINCT engine FROM hold WHERE engine IS NOT NULL AND ($engine IS NULL OR engine = $engine)
"""


def held_share(run: Run, *, engine: str | None = None) -> pl.DataFrame:
    """How many GPU blocks do transfers keep from being reused, and which share of the pool is that?

    A row at every time at which the number changes; it holds until the next row. An open hold counts to its
    process's last record, where it leaves the sum. While a hold lasts whose blocks nobody counted, the
    number is null.

    Args:
        run: the run
        engine: only this one; without it the sum over all engines that hold blocks, and over their pools

    Columns:
        time_ns: since when, unix ns
        blocks: GPU blocks held
        pool_blocks: GPU blocks of the pool (run.json: engines, num_gpu_blocks); null when it is not known
        share: blocks / pool_blocks; null when either is
    """
    connection = run.connection()
    rows = pl.DataFrame(connection.sql(LASTING + _ROWS, params={"engine": engine}).to_arrow_table())
    engines = [name for (name,) in connection.sql(_ENGINES, params={"engine": engine}).fetchall()]
    pool = pool_blocks(run.meta, engines)
    found = rows.with_columns(pool_blocks=pl.lit(pool, pl.Int64))
    share = pl.when(pl.col("pool_blocks") > 0).then(pl.col("blocks") / pl.col("pool_blocks"))
    return found.with_columns(share=share).select(list(COLUMNS)).cast(COLUMNS)


def pool_blocks(meta: dict[str, Any], engines: list[str]) -> int | None:
    """GPU blocks of these engines together; None when one of them is not known."""
    known = dict(_pools(meta.get("engines") or {}))
    sizes = [known.get(name) for name in engines]
    if len(known) == 1 and len(engines) == 1 and sizes == [None]:  # told under another name of the engine
        sizes = [*known.values()]
    found = [size for size in sizes if size is not None]
    return sum(found) if found and len(found) == len(sizes) else None


def _pools(engines: Any) -> Iterator[tuple[str, int]]:
    """(engine, GPU blocks) of run.json's engines, whether they are a list or an object by name."""
    entries = engines.items() if isinstance(engines, dict) else ((None, entry) for entry in engines)
    for name, facts in entries:
        if not isinstance(facts, dict):
            continue
        config = facts.get("config")
        places = [config, facts] if isinstance(config, dict) else [facts]
        size = next((place[key] for place in places for key in _POOL if place.get(key) is not None), None)
        own = name or facts.get("engine") or facts.get("name")
        if own is not None and size is not None and str(size).isdecimal():
            yield str(own), int(size)
