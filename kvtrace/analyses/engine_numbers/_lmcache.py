"""What LMCache's numbers have in common: the requests that its server answered, and its own copies.

Its server tells the same counters as OTLP metrics (lmcache_mp.lookup_hit) and on a page
(lmcache_mp_lookup_hit_tokens_total); the page's name stands where both are in the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers._known import inside
from kvtrace.analyses.engine_numbers._number import Number, not_reported
from kvtrace.analyses.engine_numbers._vllm import whole

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Cause
    from kvtrace.analyses.engine_numbers._reported import Count

_ANSWERED = """
SELECT request_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
    TRY_CAST(sum(requested_tokens) AS BIGINT) AS asked_tokens,
    TRY_CAST(sum(requested_tokens % chunk) AS BIGINT) AS tail_tokens,
    TRY_CAST(sum(found_tokens // chunk) AS BIGINT) AS found_chunks
FROM lookup CROSS JOIN (SELECT nullif(max(greatest(1, TRY_CAST(value AS BIGINT))), 1) AS chunk FROM identity
    WHERE field = 'chunk_size' HAVING count(DISTINCT value) = 1 OR count(*) = 0)
WHERE starts_with(component, 'lmcache') AND request_id IS NOT NULL AND found_tokens IS NOT NULL
    AND outcome IN ('ok', 'miss', 'partial')
GROUP BY request_id
"""
_COPIES = """
SELECT op, component, start_ns, end_ns, outcome, tier_to, coalesce(tokens, 0) > 0 AS kept,
    coalesce(TRY_CAST(attributes['objects'] AS BIGINT), TRY_CAST(attributes['key_count'] AS BIGINT)) AS chunks
FROM span
WHERE op IN ('load', 'store', 'drop') AND observer = 'server' AND starts_with(component, 'lmcache')
    AND end_ns IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY op, coalesce(transfer_id, span_id::VARCHAR), component
    ORDER BY start_ns) = 1
"""


def answered(known: Known, count: Count | None) -> pl.DataFrame:
    """The requests whose lookup LMCache's server answered while it counted, with what became of them."""
    asked = pl.DataFrame(known.connection.sql(_ANSWERED).to_arrow_table())
    facts = known.requests.drop("start_ns", "end_ns")
    return inside(asked.join(facts, on="request_id", how="left", maintain_order="left"), count)


def copies(known: Known, count: Count | None) -> pl.DataFrame:
    """What its server copied and dropped while it counted."""
    return inside(pl.DataFrame(known.connection.sql(_COPIES).to_arrow_table()), count)


def present(known: Known) -> bool:
    """Whether the run has anything of LMCache's server."""
    return "lmcache" in known.products | known.reported.products()


def number(
    known: Known, count: Count | None, name: str, unit: str, measured: tuple[int | None, str], requests: int,
    causes: tuple[Cause, ...],
) -> list[Number]:  # fmt: skip
    """One of its numbers beside what was measured."""
    value, basis = measured
    return [
        Number(
            "lmcache", name if count is None else count.name, unit,
            None if count is None else whole(count.value), value,
            basis if count is not None else f"{not_reported(name)}; {basis}", requests,
            (*causes, *known.doubts(count, of="lmcache")),
        )
    ]  # fmt: skip
