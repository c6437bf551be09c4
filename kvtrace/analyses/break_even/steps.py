"""Which prefill steps did each engine run, and how long did it compute in each?

    step   |------- 1 -------|
    step            |------- 2 ------|     counts from the end of 1: they run one after the other
    wait         |--|                      not computing: taken out of 1
    rank 1  |------- 1 -------|            the same members while 1 runs: it is 1, as another rank saw it

tokens = those that the step computes, of all its members. work = the pairs of tokens that attention meets:
of t tokens after c others t * (c + t / 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.bandwidth.sharing import busy

if TYPE_CHECKING:
    import duckdb
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_STEPS = """
WITH told AS (
    SELECT coalesce(engine, process) AS engine, start_ns, end_ns, members,
        CASE WHEN observer = 'scheduler' THEN 0 ELSE 1 END AS preference
    FROM span
    WHERE op = 'step' AND end_ns >= start_ns AND start_ns >= 0 AND evidence IS DISTINCT FROM 'predicted'
), chosen AS (
    SELECT * FROM told QUALIFY preference = min(preference) OVER (PARTITION BY engine)
), once AS (
    SELECT * FROM chosen QUALIFY start_ns >= coalesce(max(end_ns) OVER (
        PARTITION BY engine, hash(members) ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start_ns)
), ordered AS (
    SELECT *, max(end_ns) OVER (PARTITION BY engine ORDER BY start_ns, end_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM once
)
SELECT engine, greatest(start_ns, coalesce(before_ns, start_ns)) AS start_ns, end_ns,
    list_sum(list_transform(members, lambda m: m.scheduled_tokens::DOUBLE)) AS tokens,
    list_sum(list_transform(members, lambda m:
        m.scheduled_tokens::DOUBLE * (m.computed_before::DOUBLE + m.scheduled_tokens::DOUBLE / 2))) AS work
FROM ordered
WHERE end_ns > coalesce(before_ns, start_ns)
    AND len(list_filter(members, lambda m: coalesce(m.phase = 'prefill', m.scheduled_tokens > 1))) > 0
    AND len(list_filter(members, lambda m:
        coalesce(m.scheduled_tokens < 0 OR m.computed_before < 0, true))) = 0
ORDER BY engine, start_ns, end_ns
"""

_WAITS = """
SELECT coalesce(engine, process) AS engine, start_ns, end_ns FROM span
WHERE op = 'wait' AND end_ns > start_ns AND start_ns >= 0
ORDER BY engine, start_ns
"""


def prefill_steps(connection: duckdb.DuckDBPyConnection) -> dict[str, pl.DataFrame]:
    """Engine -> its steps that computed prompt tokens: took_ns, tokens, work.

    Left out are steps of which a member does not say its tokens or what was there before them.
    """
    steps = pl.DataFrame(connection.sql(_STEPS).to_arrow_table())
    waits = pl.DataFrame(connection.sql(_WAITS).to_arrow_table())
    found = {}
    for (engine,), mine in steps.filter(pl.col("engine").is_not_null()).group_by("engine"):
        stalls = waits.filter(pl.col("engine") == engine)
        start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        took = (end - start) - _stalled(start, end, stalls)
        known = mine.select("tokens", "work", took_ns=took)
        found[str(engine)] = known.filter(pl.col("took_ns") > 0, pl.col("tokens") > 0)
    return found


def _stalled(start: Integers, end: Integers, waits: pl.DataFrame) -> Integers:
    """For how long of each step the engine was inside a wait, ns."""
    if not waits.height:
        return np.zeros(len(start), np.int64)
    begin, stop = busy(waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy())
    before = np.r_[0, np.cumsum(stop - begin)]

    def until(at: Integers) -> Integers:
        place = np.searchsorted(begin, at, side="right")
        inside = np.minimum(at, stop[np.maximum(place - 1, 0)]) - begin[np.maximum(place - 1, 0)]
        return np.where(place > 0, before[np.maximum(place - 1, 0)] + inside, 0)

    return until(end) - until(start)
