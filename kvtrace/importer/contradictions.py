"""What one source says is missing from another: spans that were made and never arrived.

LMCache exports in batches, so a killed server loses its last spans without a word. Three things convict it:
a lookup in the hash log without its span, a child whose parent never came, and a gap in the numbers of its
transfers (which overlapping stores of one session leave as well: LMCache keeps one span of them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    import duckdb

_UNSEEN_LOOKUPS = """
WITH spans AS (
    SELECT request_id, count(*) AS spans FROM staged
    WHERE op = 'lookup' AND observer = 'server' AND requested_tokens IS DISTINCT FROM 0 GROUP BY request_id
), lines AS (
    SELECT request_id, count(*) AS lines, min(time_ns) AS low, max(time_ns) AS high FROM asked GROUP BY request_id
), one AS (SELECT CASE WHEN count(DISTINCT process) = 1 THEN any_value(process) END AS process
           FROM staged WHERE op = 'lookup' AND observer = 'server')
SELECT sum(lines - coalesce(spans, 0))::BIGINT AS n, min(low) AS low, max(high) AS high, any_value(one.process) AS process
FROM lines LEFT JOIN spans USING (request_id), one
WHERE lines > coalesce(spans, 0) AND EXISTS (SELECT 1 FROM spans)
"""

_ORPHANS = """
SELECT s.process, count(DISTINCT s.parent_span_id)::BIGINT AS n, min(s.start_ns) AS low, max(s.start_ns) AS high
FROM staged s
WHERE s.observer = 'server' AND s.id_kind = 'internal' AND s.parent_span_id IS NOT NULL
  AND s.parent_span_id NOT IN (SELECT span_id FROM staged WHERE span_id IS NOT NULL AND observer = 'server')
GROUP BY s.process ORDER BY s.process
"""

_GAPS = """
WITH numbered AS (
    SELECT process, try_cast(regexp_extract(transfer_id, '#(\\d+)$', 1) AS BIGINT) AS number, start_ns
    FROM staged WHERE op IN ('load', 'store', 'drop') AND id_kind = 'internal' AND observer = 'server'
)
SELECT process, (max(number) - min(number) + 1 - count(DISTINCT number))::BIGINT AS n,
    min(start_ns) AS low, max(start_ns) AS high
FROM numbered WHERE number IS NOT NULL GROUP BY process
HAVING max(number) - min(number) + 1 > count(DISTINCT number) ORDER BY process
"""


def missing_spans(connection: duckdb.DuckDBPyConnection, source: str) -> list[Loss]:
    """Losses that only a comparison of sources shows."""
    losses = []
    for n, low, high, process in connection.sql(_UNSEEN_LOOKUPS).pl().iter_rows():
        if n:
            detail = "lookups in the hash log without a lookup span: the exporter ended before it sent them"
            losses.append(Loss(source, "unclean_end", n, process, "lookup", low, high, detail))
    for process, n, low, high in connection.sql(_ORPHANS).pl().iter_rows():
        detail = "parents of LMCache's spans that never came"
        losses.append(Loss(source, "unclean_end", n, process, None, low, high, detail))
    for process, n, low, high in connection.sql(_GAPS).pl().iter_rows():
        detail = "numbers missing among LMCache's transfers (stores or retrieves without a span)"
        losses.append(Loss(source, "sequence_gap", n, process, None, low, high, detail))
    return losses
