"""Which requests of a run were blended: reused state of chunks that are no prefix, so that it is not exact.

Who says so: a row of op `blend` that used something, or LMCache's server (component lmcache.blend) that gave
a request chunks beyond its prefix. Of a server that was started to blend and said no more, nothing is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from kvtrace.run import Run

_BLENDED = """
WITH exact AS (
    SELECT request_id FROM span
    WHERE op = 'lookup' AND component = 'lmcache.blend' AND request_id IS NOT NULL
        AND attributes['non_prefix_hit_tokens'] IS NOT NULL
    GROUP BY request_id HAVING max(TRY_CAST(attributes['non_prefix_hit_tokens'] AS BIGINT)) = 0
)
SELECT request_id,
    TRY_CAST(sum(found_tokens) FILTER (op = 'blend') AS BIGINT) AS found_tokens,
    TRY_CAST(sum(TRY_CAST(attributes['recomputed_tokens'] AS BIGINT)) FILTER (op = 'blend') AS BIGINT)
        AS recomputed_tokens
FROM span
WHERE request_id IS NOT NULL
    AND coalesce(outcome, 'ok') NOT IN ('skipped', 'miss', 'failed', 'timeout', 'cancelled')
    AND (op = 'blend' AND coalesce(tokens, 1) > 0
        OR op = 'load' AND component = 'lmcache.blend' AND request_id NOT IN (FROM exact))
GROUP BY request_id ORDER BY request_id
"""
UNVERIFIED = (
    "unverified: state of chunks that are no prefix is not exact, so neither are hits, loads and room saved; "
    "kvtrace analyze blend RUN --pairs FILE --thresholds FILE compares with a full computation"
)


def blended(run: Run) -> pl.DataFrame:
    """A row a request: request_id, found_tokens and recomputed_tokens where its blend rows tell them."""
    return pl.DataFrame(run.connection().sql(_BLENDED).to_arrow_table())


def may_blend(run: Run) -> bool:
    """Whether a cache server of the run was started to blend, by its own settings."""
    engines = run.meta.get("engines")
    entries = engines.values() if isinstance(engines, dict) else engines or ()
    return any(isinstance(facts, dict) and "blend" in str(facts.get("server_mode")) for facts in entries)
