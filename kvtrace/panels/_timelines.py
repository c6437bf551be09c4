"""The spans of a few requests, fetched once: lanes of their timelines, in ms after each one's arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kvtrace.run import Run

_SLOWEST = """
WITH last AS (
    SELECT max(coalesce(end_ns, start_ns)) AS last_ns FROM span
), ranked AS (
    SELECT
        *, CASE WHEN $by = 'e2e' OR end_ns IS NULL AND first_token_ns IS NULL
            THEN coalesce(end_ns, last_ns) ELSE first_token_ns END AS shown_ns
    FROM request CROSS JOIN last
)
SELECT
    request_id, start_ns, end_ns, first_token_ns, ttft_ns, duration_ns, prompt_tokens, output_tokens, gpu_hit_tokens,
    status, engine, shown_ns - start_ns AS shown_ns, count(*) OVER () AS ranked
FROM ranked
WHERE shown_ns IS NOT NULL
ORDER BY shown_ns - start_ns DESC, request_id
LIMIT $top
"""
"""An unfinished request is ranked by how long it had been open when the run's last record was made."""

_OWN = """
SELECT request_id, op, start_ns, end_ns, reason, outcome, tier_from, tier_to, tokens, bytes, component
FROM transfer WHERE list_contains($requests, request_id)
UNION ALL BY NAME
SELECT request_id, 'queue' AS op, start_ns, end_ns, reason, outcome FROM queue WHERE list_contains($requests, request_id)
UNION ALL BY NAME
SELECT request_id, 'lookup' AS op, start_ns, end_ns, reason, outcome, found_tokens AS tokens, component
FROM lookup WHERE list_contains($requests, request_id)
UNION ALL BY NAME
SELECT request_id, 'hold' AS op, start_ns, end_ns, reason FROM hold WHERE list_contains($requests, request_id)
UNION ALL BY NAME
SELECT request_id, 'wait' AS op, start_ns, end_ns, reason, component FROM wait WHERE list_contains($requests, request_id)
"""

_SHARED = """
SELECT request_id, op, start_ns, end_ns, reason, scheduled_tokens AS tokens
FROM member WHERE op IN ('step', 'wait') AND list_contains($requests, request_id)
"""

_LOOKUPS = """
SELECT request_id, arg_min(found_tokens, start_ns) AS found_tokens, arg_min(requested_tokens, start_ns) AS requested_tokens
FROM lookup WHERE list_contains($requests, request_id) GROUP BY request_id
"""

_MOVED = """
SELECT
    request_id, count(*) FILTER (WHERE op = 'load' AND tier_to = 'gpu') AS loads,
    sum(tokens) FILTER (WHERE op = 'load' AND tier_to = 'gpu')::BIGINT AS loaded_tokens,
    sum(bytes) FILTER (WHERE op = 'load' AND tier_to = 'gpu')::BIGINT AS loaded_bytes
FROM transfer WHERE list_contains($requests, request_id) GROUP BY request_id
"""


def slowest(run: Run, by: str, top: int) -> pl.DataFrame:
    """The slowest requests with what the table says about them, slowest first; null means not observed."""
    first = run.connection().sql(_SLOWEST, params={"by": by, "top": top}).pl()
    for query in (_LOOKUPS, _MOVED):
        more = run.connection().sql(query, params={"requests": first["request_id"].to_list()}).pl()
        first = first.join(more, on="request_id", how="left", maintain_order="left")
    return first


def spans(run: Run, requests: Sequence[str]) -> pl.DataFrame:
    """Every operation of these requests, and every step and wait that names them."""
    import polars as pl  # noqa: PLC0415

    parts = [run.connection().sql(query, params={"requests": list(requests)}).pl() for query in (_OWN, _SHARED)]
    return pl.concat(parts, how="diagonal_relaxed").sort("request_id", "start_ns", "op", "end_ns", nulls_last=True)
