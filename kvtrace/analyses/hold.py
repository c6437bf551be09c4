"""The question `hold`: what a transfer costs in GPU blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "blocks": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "block_seconds": pl.Float64,
        "reason": pl.String,
        "transfer_id": pl.String,
    }
)

LASTING = """
WITH record AS (
    SELECT process, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
    FROM span WHERE process IS NOT NULL GROUP BY process
    UNION ALL SELECT process, last_ns FROM process WHERE process IS NOT NULL
), process_end AS (
    SELECT process, max(last_ns) AS last_ns FROM record GROUP BY process
), lasting AS (
    SELECT h.*, CASE WHEN coalesce(h.end_ns, p.last_ns) >= h.start_ns THEN coalesce(h.end_ns, p.last_ns) END
        AS stop_ns
    FROM hold h LEFT JOIN process_end p USING (process)
    WHERE h.end_ns IS NULL OR h.end_ns >= h.start_ns
)
"""
"""Holds with stop_ns: their end, of an open one the last record of its process (null: process unknown)."""

_ROWS = """
SELECT request_id, blocks, start_ns, end_ns,
    blocks * ((stop_ns::HUGEINT - start_ns) / 1e9) AS block_seconds, reason, transfer_id
FROM lasting ORDER BY start_ns, request_id, transfer_id, span_id
"""


def hold(run: Run) -> pl.DataFrame:
    """What does each transfer cost in GPU blocks that nobody else can use?

    A row a hold: from the moment a request no longer needs its blocks itself (or a connector takes a
    reference) to the moment they are free. An open hold has no end, and counts to its process's last
    record. One whose end lies before its start is set aside.

    Columns:
        request_id: whose state is being moved
        blocks: GPU blocks whose last reference this hold is; of two holds the earlier has them
        start_ns: since when, unix ns
        end_ns: until when, unix ns; null while open
        block_seconds: blocks x time; of an open hold to its process's last record
        reason: load, store or unknown
        transfer_id: ties it to the transfer that needs the blocks
    """
    rows = run.connection().sql(LASTING + _ROWS).to_arrow_table()
    return pl.DataFrame(rows).cast(COLUMNS)
