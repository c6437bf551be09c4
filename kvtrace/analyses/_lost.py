"""Of which requests can a record be missing? A loss says when it was at the earliest and at the latest.

    request   |---- r0 ----|        |---- r1 ----|
    loss                        |--- 3 loads ---|          r1 may have loaded more; of r0 nothing is missing

A loss without times can be of any request, and so can any loss of a request without times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import NO_LOSS

if TYPE_CHECKING:
    import duckdb

_LOST = """
WITH gap AS (
    SELECT count, coalesce(from_ns, -9223372036854775808) AS from_ns,
        coalesce(to_ns, 9223372036854775807) AS to_ns
    FROM loss
    WHERE cause IS DISTINCT FROM $no_loss AND count > 0 AND (list_contains($ops, op) OR op IS NULL AND (
        NOT $tellers OR process IS NULL OR process IN (
            SELECT process FROM span WHERE list_contains($ops, op) AND process IS NOT NULL)))
), served AS (
    SELECT request_id, coalesce(start_ns, -9223372036854775808) AS start_ns,
        CASE WHEN start_ns IS NOT NULL THEN CASE WHEN $first_token AND ttft_ns >= 0
            THEN TRY(start_ns + ttft_ns) ELSE end_ns END END AS end_ns
    FROM read_parquet($served)
)
SELECT s.request_id, sum(g.count)::DOUBLE AS missing
FROM served s JOIN gap g
    ON g.from_ns <= coalesce(s.end_ns, 9223372036854775807) AND g.to_ns >= s.start_ns
GROUP BY s.request_id
"""


def lost(
    connection: duckdb.DuckDBPyConnection,
    served: str,
    ops: tuple[str, ...],
    *,
    first_token: bool = False,
    tellers: bool = False,
) -> pl.DataFrame:
    """(request_id, lost): "3 records missing" of these operations, or of unknown ones, in its life.

    Requests of which nothing is missing have no row. `first_token`: only until its first token, if known.
    `tellers`: what a process lost is of these operations only where it records them.
    """
    params = {
        "no_loss": NO_LOSS, "ops": list(ops), "served": served, "first_token": first_token,
        "tellers": tellers,
    }  # fmt: skip
    found = pl.DataFrame(connection.sql(_LOST, params=params).to_arrow_table())
    counts = found["missing"].unique().to_list()
    said = {count: f"{many(int(count), 'record')} missing" for count in counts}
    told = pl.col("missing").replace_strict(said, default=None, return_dtype=pl.String)
    return found.select("request_id", lost=told)
