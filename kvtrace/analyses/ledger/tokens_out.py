"""How long between the tokens of a request? From the ends of the steps that put them out.

    step  |----1----|   |----1----|      |----2----|       one token, one, two at once
                    |------gap----|------2 x gap/2-|       three times between four tokens

A step that puts out several tokens gives each the same share of the time since the step before. Where the
steps put out other than what the request counts, or nobody counts and a record of a step may be lost between
them, a time between two tokens may be that of three: not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.run.derived import derived_folder, files_hash, kept_rows, spilling

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection

    from kvtrace.run import Run

ALGORITHM = "1"
"""Bumped whenever these times of the same run can come out differently."""

PART_ROWS = 8_000_000
"""So many tokens are sorted at a time."""
MOST_AT_ONCE = 64
"""A step that claims to put out more tokens of one request counts as so many times between tokens."""

_TELLERS = """
CREATE OR REPLACE TEMP TABLE teller AS
WITH telling AS (
    SELECT coalesce(engine, process, '') AS engine, process,
        coalesce(observer = 'scheduler', false) AS schedules
    FROM span WHERE op = 'step' AND end_ns >= start_ns AND evidence IS DISTINCT FROM 'predicted' GROUP BY ALL
)
SELECT *, (row_number() OVER (ORDER BY engine, process))::INTEGER AS teller,
    count(*) OVER (PARTITION BY engine, schedules) > 1 AS rivals
FROM telling QUALIFY schedules = bool_or(schedules) OVER (PARTITION BY engine)
"""
"""Who tells the steps of an engine: its scheduler, else its workers. A step that both tell is one."""

_PUT_OUT = """
CREATE OR REPLACE TEMP TABLE put_out AS
SELECT m.request_id, end_ns, m.output_tokens AS tokens, hash(m.request_id) AS place, teller
FROM (
    SELECT s.end_ns, t.teller, unnest(s.members) AS m
    FROM span s JOIN teller t ON t.engine = coalesce(s.engine, s.process, '')
        AND t.process IS NOT DISTINCT FROM s.process
        AND t.schedules = coalesce(s.observer = 'scheduler', false)
    WHERE s.op = 'step' AND s.end_ns >= s.start_ns AND s.evidence IS DISTINCT FROM 'predicted'
)
WHERE m.output_tokens > 0 AND m.request_id IS NOT NULL
"""

_ONE_EACH = """
CREATE OR REPLACE TEMP TABLE put_out AS
WITH told AS (
    SELECT p.request_id, t.engine, teller, sum(p.tokens) AS tokens
    FROM put_out p JOIN teller t USING (teller) WHERE t.rivals GROUP BY ALL
), passed AS (
    SELECT request_id, teller FROM told
    QUALIFY row_number() OVER (PARTITION BY request_id, engine ORDER BY tokens DESC, teller) > 1
)
FROM put_out ANTI JOIN passed USING (request_id, teller)
"""
"""Ranks of one engine run the same steps: of a request's tokens the process counts that told most of them."""

_LOST = """
CREATE OR REPLACE TEMP TABLE lost AS
SELECT t.teller, coalesce(l.from_ns, -1) AS from_ns, coalesce(l.to_ns, 9223372036854775807) AS to_ns
FROM loss l JOIN teller t ON l.process IS NULL OR l.process = t.process
WHERE l.cause IS DISTINCT FROM 'duplicate' AND (l.op IS NULL OR l.op = 'step')
"""

_SERVED = "CREATE OR REPLACE TEMP TABLE served AS SELECT request_id, start_ns, output_tokens FROM request"

_BETWEEN = """
WITH mine AS (
    FROM put_out WHERE place % $parts = $part
), gap AS (
    SELECT request_id, least(tokens, $most) AS tokens,
        (end_ns - lag(end_ns) OVER (PARTITION BY request_id ORDER BY end_ns)) // least(tokens, $most)
            AS gap_ns
    FROM mine
), counted AS (
    SELECT request_id, gap_ns FROM gap WHERE tokens = 1
    UNION ALL SELECT request_id, gap_ns FROM gap, range(tokens) WHERE tokens > 1
), between_tokens AS (
    SELECT request_id, quantile_disc(gap_ns, 0.5) AS p50_ns, quantile_disc(gap_ns, 0.99) AS p99_ns
    FROM counted GROUP BY request_id
), told AS (
    SELECT request_id, teller, sum(tokens) AS tokens, min(end_ns) AS first_ns, max(end_ns) AS last_ns
    FROM mine GROUP BY request_id, teller
), whole AS (
    SELECT t.request_id, min(t.first_ns) AS first_ns, max(t.last_ns) AS last_ns,
        any_value(s.start_ns) AS start_ns,
        coalesce(sum(t.tokens) = any_value(s.output_tokens), true) AS is_whole,
        any_value(s.output_tokens) IS NOT NULL AS is_counted
    FROM told t LEFT JOIN served s USING (request_id) GROUP BY t.request_id
), doubted AS (
    SELECT w.request_id, bool_or(l.to_ns >= w.first_ns) AS between_lost,
        bool_or(l.from_ns < w.first_ns AND l.to_ns >= coalesce(w.start_ns, w.first_ns)) AS first_lost
    FROM whole w JOIN told t USING (request_id)
        JOIN lost l ON l.teller = t.teller AND l.from_ns <= w.last_ns
            AND l.to_ns >= coalesce(least(w.start_ns, w.first_ns), w.first_ns)
    WHERE NOT (w.is_whole AND w.is_counted) GROUP BY w.request_id
)
SELECT request_id, CASE WHEN NOT coalesce(d.first_lost, false) THEN w.first_ns END AS first_out_ns,
    CASE WHEN w.is_whole AND NOT coalesce(d.between_lost, false) THEN b.p50_ns END AS itl_p50_ns,
    CASE WHEN w.is_whole AND NOT coalesce(d.between_lost, false) THEN b.p99_ns END AS itl_p99_ns
FROM whole w JOIN between_tokens b USING (request_id) LEFT JOIN doubted d USING (request_id)
"""


def table(run: Run) -> Path:
    """The cached rows of `tokens_out` as a Parquet file."""
    target = derived_folder(run) / f"tokens_out-{files_hash(run, ALGORITHM)}.parquet"
    return kept_rows(target, lambda: tokens_out(run))


def tokens_out(run: Run) -> pl.DataFrame:
    """(request_id, first_out_ns, itl_p50_ns, itl_p99_ns) of every request that a step put out a token of.

    Null where a record that may be lost would change it.
    """
    connection = spilling(run)
    try:
        _prepare(connection)
        ((rows,),) = connection.sql("SELECT count(*) FROM put_out").fetchall()
        parts = rows // PART_ROWS + 1
        return pl.concat(
            pl.DataFrame(
                connection.sql(
                    _BETWEEN, params={"parts": parts, "part": part, "most": MOST_AT_ONCE}
                ).to_arrow_table()
            )
            for part in range(parts)
        )
    finally:
        connection.close()


_ALL_BETWEEN = """
WITH gap AS (
    SELECT request_id, least(tokens, $most) AS tokens,
        (end_ns - lag(end_ns) OVER (PARTITION BY request_id ORDER BY end_ns)) // least(tokens, $most)
            AS gap_ns
    FROM put_out WHERE request_id IN (SELECT request_id FROM whole)
), counted AS (
    SELECT gap_ns, sum(tokens)::BIGINT AS tokens FROM gap WHERE gap_ns IS NOT NULL GROUP BY gap_ns
), ranked AS (
    SELECT gap_ns, sum(tokens) OVER (ORDER BY gap_ns ROWS UNBOUNDED PRECEDING)::BIGINT AS up_to FROM counted
), total AS (
    SELECT sum(tokens)::BIGINT AS n FROM counted
)
SELECT share, min(gap_ns) FROM ranked, total, (SELECT unnest($shares) AS share)
WHERE up_to >= greatest(1, n - floor(n - n * share)) GROUP BY share
"""
"""As quantile_disc, which holds every time in memory; counts by length spill."""
_REQUESTS = """
SELECT count(*) FROM (
    SELECT 1 FROM put_out WHERE request_id IN (SELECT request_id FROM whole)
    GROUP BY request_id HAVING count(*) > 1
)
"""
_WHOLE = """
CREATE OR REPLACE TEMP TABLE whole AS
SELECT request_id FROM read_parquet($ledger) WHERE itl_p50_ns IS NOT NULL
"""


def between_tokens(run: Run, shares: tuple[float, ...], ledger: Path) -> tuple[list[int | None], int]:
    """Quantiles over all times between tokens of a run, and of how many requests they are.

    ledger: its rows as a file; only requests whose times are known there count.
    """
    connection = spilling(run)
    try:
        _prepare(connection)
        connection.execute(_WHOLE, {"ledger": str(ledger)})
        return quantiles(connection, shares)
    finally:
        connection.close()


def quantiles(connection: DuckDBPyConnection, shares: tuple[float, ...]) -> tuple[list[int | None], int]:
    """Of the times between the tokens in `put_out` of the requests in `whole`, and how many these are."""
    params = {"most": MOST_AT_ONCE, "shares": list(shares)}
    found: dict[float, int] = dict(connection.sql(_ALL_BETWEEN, params=params).fetchall())
    ((requests,),) = connection.sql(_REQUESTS).fetchall()
    return [found.get(share) for share in shares], requests


def _prepare(connection: DuckDBPyConnection) -> None:
    """The temporary tables: who tells of steps, and which tokens these put out."""
    for statement in (_TELLERS, _PUT_OUT, _LOST, _SERVED):
        connection.execute(statement)
    if connection.sql("SELECT 1 FROM teller WHERE rivals LIMIT 1").fetchall():
        connection.execute(_ONE_EACH)
