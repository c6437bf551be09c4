"""The slowest requests, or one; and every span that serves them, each fetched in one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.panels._hops import hops
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kvtrace.run import Run

_SLOWEST = """
WITH last AS (
    SELECT start_ns < $dated_ns AS is_dateless, max(coalesce(end_ns, start_ns)) AS last_ns
    FROM span GROUP BY is_dateless
), asked AS MATERIALIZED (
    SELECT *, evidence IS NOT DISTINCT FROM 'predicted' AS is_predicted FROM request
), meant AS (
    FROM asked WHERE NOT is_predicted OR NOT EXISTS (FROM asked WHERE NOT is_predicted)
), timed AS (
    SELECT
        *, TRY(coalesce(end_ns, last_ns) - start_ns) AS e2e_ns,
        CASE WHEN end_ns IS NULL AND first_token_ns IS NULL THEN TRY(last_ns - start_ns)
            ELSE ttft_ns END AS waited_ns
    FROM meant JOIN last ON (start_ns < $dated_ns) IS NOT DISTINCT FROM is_dateless
), ended AS (
    SELECT request_id, row_number() OVER (ORDER BY e2e_ns DESC, request_id) AS place
    FROM (
        SELECT request_id, e2e_ns FROM timed WHERE $by <> 'ttft' AND e2e_ns IS NOT NULL
        ORDER BY e2e_ns DESC, request_id LIMIT $top
    )
), started AS (
    SELECT request_id, row_number() OVER (ORDER BY waited_ns DESC, request_id) AS place
    FROM (
        SELECT request_id, waited_ns FROM timed WHERE $by <> 'e2e' AND waited_ns IS NOT NULL
        ORDER BY waited_ns DESC, request_id LIMIT $top
    )
)
SELECT
    request_id, start_ns, end_ns, first_token_ns, ttft_ns, duration_ns, prompt_tokens, output_tokens,
    gpu_hit_tokens, status, engine, e2e_ns AS shown_ns, ended.place AS e2e_place, started.place AS ttft_place,
    (SELECT count(*) FROM meant) AS ranked
FROM timed LEFT JOIN ended USING (request_id) LEFT JOIN started USING (request_id)
WHERE ended.place IS NOT NULL OR started.place IS NOT NULL
ORDER BY e2e_place NULLS LAST, ttft_place
"""
"""An unfinished request is ranked by how long it had been open at the last record of its clock; rows of
1970 have one without a date. Forecasts are ranked where nothing happened."""

_OWN = """
SELECT request_id, op, start_ns, end_ns, reason, outcome, found_tokens AS tokens, component
FROM span WHERE op IN ('queue', 'lookup', 'hold', 'wait') AND list_contains($requests, request_id)
"""

_SHARED = """
SELECT request_id, op, start_ns, end_ns, reason, scheduled_tokens AS tokens
FROM member WHERE op IN ('step', 'wait') AND list_contains($requests, request_id)
"""

_LOOKUPS = """
SELECT
    request_id, arg_min(found_tokens, start_ns) AS found_tokens,
    arg_min(requested_tokens, start_ns) AS requested_tokens
FROM lookup WHERE list_contains($requests, request_id) GROUP BY request_id
"""

_MOVED = """
SELECT request_id, count(*) AS loads, sum(tokens)::DOUBLE AS loaded_tokens
FROM transfer WHERE op = 'load' AND tier_to = 'gpu' AND list_contains($requests, request_id)
GROUP BY request_id
"""


def slowest(run: Run, by: str, top: int) -> pl.DataFrame:
    """The requests slowest to the end, to the first token or both, with what the table says about them."""
    connection = run.connection()
    found: pl.DataFrame = connection.sql(
        _SLOWEST, params={"by": by, "top": top, "dated_ns": FIRST_DATE_NS}
    ).pl()
    requests = found["request_id"].to_list()
    for query in (_LOOKUPS, _MOVED):
        more = connection.sql(query, params={"requests": requests}).pl()
        found = found.join(more, on="request_id", how="left", maintain_order="left")
    return found


_ONE = """
SELECT
    request_id, start_ns, end_ns, first_token_ns, ttft_ns, duration_ns, status,
    coalesce(end_ns, (SELECT max(coalesce(end_ns, start_ns)) FROM span))
        - CASE WHEN start_ns < 0 THEN 0 ELSE start_ns END AS shown_ns
FROM request WHERE request_id = $request AND start_ns IS NOT NULL
"""

_WAITED_MOST = """
SELECT t.request_id
FROM transfer t JOIN request r USING (request_id)
WHERE r.start_ns IS NOT NULL
GROUP BY t.request_id
ORDER BY
    sum(coalesce(t.usable_ns, t.end_ns, t.start_ns)::HUGEINT - coalesce(t.submit_ns, t.start_ns))
        FILTER (WHERE t.op = 'load') DESC NULLS LAST,
    t.request_id
LIMIT 1
"""


def one(run: Run, request: str) -> pl.DataFrame:
    """One request as `slowest` gives it, without ranks; no row where it has no start."""
    found: pl.DataFrame = run.connection().sql(_ONE, params={"request": request}).pl()
    return found


def waited_most(run: Run) -> str | None:
    """The request whose loads took longest from asked for to usable; without loads one that has a store."""
    found = run.connection().sql(_WAITED_MOST).fetchall()
    return str(found[0][0]) if found else None


def spans(run: Run, requests: Sequence[str]) -> pl.DataFrame:
    """Every operation of these requests, transfers as hops (_hops), and every step and wait with them."""
    import polars as pl

    connection = run.connection()
    parts = [connection.sql(query, params={"requests": list(requests)}).pl() for query in (_OWN, _SHARED)]
    rows: pl.DataFrame = pl.concat([hops(run, requests), *parts], how="diagonal_relaxed")
    order = ("request_id", "start_ns", "op", "end_ns", "tier_from", "tier_to")
    return rows.sort(*order, nulls_last=True)
