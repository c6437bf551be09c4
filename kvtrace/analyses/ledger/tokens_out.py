"""How long between the tokens of a request? From the ends of the steps that put them out.

    step  |----1----|   |----1----|      |----2----|       one token, one, two at once
                    |------gap----|------2 x gap/2-|       three times between four tokens

A step that puts out several tokens gives each the same share of the time since the step before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

PART_ROWS = 8_000_000
"""So many tokens are sorted at a time."""
MOST_AT_ONCE = 64
"""A step that claims to put out more tokens of one request counts as so many times between tokens."""

_PUT_OUT = """
CREATE OR REPLACE TEMP TABLE put_out AS
SELECT m.request_id, end_ns, m.output_tokens AS tokens, hash(m.request_id) AS place
FROM (SELECT end_ns, unnest(members) AS m FROM span WHERE op = 'step' AND end_ns >= start_ns)
WHERE m.output_tokens > 0 AND m.request_id IS NOT NULL
"""

_BETWEEN = """
WITH gap AS (
    SELECT request_id, end_ns, least(tokens, $most) AS tokens,
        (end_ns - lag(end_ns) OVER (PARTITION BY request_id ORDER BY end_ns)) // least(tokens, $most)
            AS gap_ns
    FROM put_out WHERE place % $parts = $part
), counted AS (
    SELECT request_id, end_ns, gap_ns FROM gap WHERE tokens = 1
    UNION ALL SELECT request_id, end_ns, gap_ns FROM gap, range(tokens) WHERE tokens > 1
)
SELECT request_id, min(end_ns) AS first_out_ns, quantile_disc(gap_ns, 0.5) AS itl_p50_ns,
    quantile_disc(gap_ns, 0.99) AS itl_p99_ns
FROM counted GROUP BY request_id
"""


def tokens_out(run: Run) -> pl.DataFrame:
    """(request_id, first_out_ns, itl_p50_ns, itl_p99_ns) of every request that a step put out a token of."""
    connection = spilling(run)
    try:
        connection.execute(_PUT_OUT)
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
