"""The question `waste`: which bytes moved or lay in a tier for nothing?

stored.py   what was stored, and never read
loaded.py   what was loaded, and recomputed, loaded twice, or not needed because chunks are whole
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import measured
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.waste.loaded import LOADED
from kvtrace.analyses.waste.stored import stored
from kvtrace.run.derived import spilling
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.run import Run

__all__ = ["COLUMNS", "parts", "waste"]

_NUMBERS = (
    "stored_objects", "stored_bytes", "never_read_objects", "never_read_bytes", "gone_unread_bytes", "loads",
    "loaded_bytes", "judged_requests", "judged_bytes", "judged_tokens", "recomputed_bytes",
    "recomputed_tokens", "twice_bytes", "twice_tokens", "rounding_bytes", "rounding_tokens",
)  # fmt: skip
COLUMNS = pl.Schema([("tier", pl.String), ("component", pl.String), *((name, pl.Int64) for name in _NUMBERS)])

_ROWS = """
WITH written AS (
    SELECT tier, component, CASE WHEN count(bytes) = count(*) THEN TRY_CAST(sum(bytes) AS BIGINT) END AS bytes
    FROM hop WHERE op = 'store' GROUP BY tier, component
), place AS (
    SELECT tier, component FROM stored UNION SELECT tier, component FROM hop
)
SELECT p.tier, p.component, s.* EXCLUDE (tier, component, stored_bytes),
    coalesce(s.stored_bytes, w.bytes) AS stored_bytes, l.* EXCLUDE (tier, component)
FROM place p
LEFT JOIN stored s ON s.tier = p.tier AND s.component IS NOT DISTINCT FROM p.component
LEFT JOIN written w ON w.tier = p.tier AND w.component IS NOT DISTINCT FROM p.component
LEFT JOIN loaded l ON l.tier = p.tier AND l.component IS NOT DISTINCT FROM p.component
ORDER BY list_position($tiers, p.tier), p.component NULLS FIRST
"""
_PARTS = """
SELECT request_id, moved::BIGINT AS moved, TRY_CAST(recomputed AS BIGINT) AS recomputed,
    TRY_CAST(twice AS BIGINT) AS twice, rounding::BIGINT AS rounding, token_bytes
FROM judged WHERE list_contains($requests, request_id) ORDER BY request_id
"""


def waste(run: Run) -> pl.DataFrame:
    """Which bytes were stored and never read, or loaded and then recomputed, loaded twice or not needed?

    A row a tier and component outside the GPU, the tier being that which the state was stored in or loaded
    from. Null: not observed.

    Never read: brought by an event and not read before it went, or before the recording ended. Only where
    somebody records reads: LMCache's server recorded from inside, its storage trace and its L2 adapters,
    Mooncake's client; a copy further down is no read. In a tier that processes share (peers, object stores,
    a pool of clients) another one's read is one too. Lost records make it an upper bound.

    What became of a load is judged a request at a time, of the loads of its first admission that reached the
    GPU: where the GPU hit, what was selected, moved and used are known (judged_requests) and
    one place alone served it. Recomputed: selected and moved, and
    computed all the same, or used and computed again after a preemption. Twice: brought again by a later
    load of the same request; or loaded while another request of the engine, which had loaded the same key
    before, was still running and held it. Rounding: moved because chunks are whole: what the GPU held
    already, the last token of a prompt, what lies beyond what the scheduler wanted. A byte may be in two of
    them. Their bytes are the request's bytes a token times the tokens.

    Columns:
        tier: physical medium; unknown when nobody said
        component: the product's own name of the part
        stored_objects: objects that were brought, one a key, rank and object group, each time anew
        stored_bytes: their bytes; where events do not say them those of the stores into this tier
        never_read_objects: objects of these that nobody read
        never_read_bytes: their bytes
        gone_unread_bytes: the part of never_read_bytes that is gone: the rest may be read yet
        loads: loads out of this tier that succeeded, at least in part
        loaded_bytes: their bytes
        judged_requests: requests whose loads are judged: the following are theirs; 0 for a tier whose loads
            do not reach the GPU
        judged_bytes: bytes of their first admission's loads
        judged_tokens: tokens of these
        recomputed_bytes: of these loaded and then recomputed
        recomputed_tokens: tokens of these
        twice_bytes: of these loaded twice; null where keys of such a request were not recorded
        twice_tokens: tokens of these
        rounding_bytes: of these moved because chunks are whole
        rounding_tokens: tokens of these
    """
    rows = _answered(run, _ROWS, {"tiers": list(TIERS)})
    return rows.select(list(COLUMNS)).cast(COLUMNS)


def parts(run: Run, requests: Sequence[str]) -> pl.DataFrame:
    """What became of the loads of each of these requests, of those that `waste` judges.

    (request_id, moved, recomputed, twice, rounding): tokens; twice is null where keys were not recorded.
    token_bytes is what one of them weighs, null where a load did not say its bytes.
    """
    return _answered(run, _PARTS, {"requests": list(requests)})


def _answered(run: Run, query: str, params: dict[str, list[str]]) -> pl.DataFrame:
    """A query of the tables of loaded.py."""
    facts = measured(pl.read_parquet(served_table(run))).filter(pl.col("loads") > 0)
    wanted = facts.select(
        "request_id", "engine", "end_ns", "again_ns", "gpu_hit", "loaded", "usable", "moved", "later"
    )
    connection = spilling(run)
    try:
        connection.register("wanted", wanted.to_arrow())
        connection.register("stored", stored(connection).to_arrow())
        for statement in LOADED:
            connection.execute(statement)
        return pl.DataFrame(connection.sql(query, params=params).to_arrow_table())
    finally:
        connection.close()
