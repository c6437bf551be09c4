"""What is known of each request of an engine, one row a request, and which of them a counter covers.

queue     remote_kv, lookup, what is left of it   | until the first step that serves it
prefill   first step [==]  [==] last step         | that computes its prompt, before its first token
                        gap
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import table as served_table
from kvtrace.analyses._text import many
from kvtrace.analyses.engine_numbers._number import Cause, in_words, not_measured
from kvtrace.analyses.engine_numbers._reported import Count, Reported
from kvtrace.analyses.hit_funnel import table as funnel_table
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    import duckdb

    from kvtrace.run import Run

_REQUESTS = """
WITH product AS (
    SELECT DISTINCT engine FROM process WHERE product = 'vllm' AND engine IS NOT NULL
), begun AS (
    SELECT request_id, min(start_ns) AS step_ns FROM member
    WHERE op = 'step' AND coalesce(scheduled_tokens, 1) > 0 GROUP BY request_id
), queued AS (
    SELECT q.request_id, count(*) - count(q.end_ns) AS queues_open,
        TRY_CAST(coalesce(sum(q.end_ns::HUGEINT - q.start_ns) FILTER (q.reason = 'remote_kv'), 0) AS BIGINT)
            AS loading_ns,
        TRY_CAST(coalesce(sum(q.end_ns::HUGEINT - q.start_ns) FILTER (q.reason = 'lookup'), 0) AS BIGINT)
            AS looking_ns,
        TRY_CAST(coalesce(sum(q.end_ns::HUGEINT - q.start_ns) FILTER (coalesce(q.reason, '') NOT IN
            ('remote_kv', 'lookup')), 0) AS BIGINT) AS queue_ns
    FROM queue q LEFT JOIN begun b USING (request_id)
    WHERE q.evidence IS DISTINCT FROM 'derived' AND q.start_ns < coalesce(b.step_ns, 9223372036854775807)
    GROUP BY q.request_id
), inside AS (
    SELECT s.process, s.span_id, w.start_ns, least(w.end_ns, s.end_ns) AS stop_ns,
        max(least(w.end_ns, s.end_ns)) OVER (PARTITION BY s.process, s.span_id ORDER BY w.start_ns, w.end_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM wait w ASOF JOIN (SELECT engine, process, span_id, start_ns, end_ns FROM step
        WHERE end_ns IS NOT NULL AND engine IS NOT NULL) s
        ON s.engine = w.engine AND s.start_ns <= w.start_ns
    WHERE w.reason IN ('load', 'lookup', 'lock') AND w.end_ns IS NOT NULL
), waited AS (  -- ranks wait at the same time
    SELECT process, span_id, TRY_CAST(sum(greatest(0,
        stop_ns::HUGEINT - greatest(start_ns, coalesce(before_ns, start_ns)))) AS BIGINT) AS wait_ns
    FROM inside GROUP BY process, span_id
), prefilled AS (
    SELECT m.request_id, TRY_CAST(sum(m.end_ns::HUGEINT - m.start_ns) AS BIGINT) AS steps_ns,
        TRY_CAST(max(m.end_ns)::HUGEINT - min(m.start_ns) - sum(m.end_ns::HUGEINT - m.start_ns) AS BIGINT)
            AS gaps_ns,
        TRY_CAST(coalesce(sum(w.wait_ns), 0) AS BIGINT) AS step_waits_ns
    FROM member m LEFT JOIN waited w ON w.span_id = m.span_id AND w.process IS NOT DISTINCT FROM m.process
        LEFT JOIN request r USING (request_id)
    WHERE m.op = 'step' AND m.phase = 'prefill'
        AND m.start_ns < coalesce(r.first_token_ns, 9223372036854775807)
    GROUP BY m.request_id HAVING count(m.end_ns) = count(*)
), taken AS (
    SELECT request_id, min(start_ns) AS taken_ns FROM queue WHERE reason = 'preempted' GROUP BY request_id
), inquired AS (
    SELECT l.request_id, l.start_ns, coalesce(TRY_CAST(l.attributes['returned_tokens'] AS BIGINT), 0) AS had,
        TRY_CAST(l.attributes['asked_from_tokens'] AS BIGINT) AS asked_from
    FROM span l LEFT JOIN taken t USING (request_id)
    WHERE l.op = 'lookup' AND l.observer = 'scheduler' AND l.request_id IS NOT NULL
        AND l.start_ns < coalesce(t.taken_ns, 9223372036854775807)
), asks AS (
    SELECT request_id, count(*) AS asks, TRY_CAST(sum(had) - max(had) AS BIGINT) AS returned_again,
        TRY_CAST(sum(asked_from) - arg_min(asked_from, start_ns) AS BIGINT) AS hit_again
    FROM inquired GROUP BY request_id
), said AS (
    SELECT request_id, max(TRY_CAST(attributes['preemptions'] AS BIGINT)) AS preemptions,
        TRY_CAST(round(max(TRY_CAST(attributes['gen_ai.latency.time_in_queue'] AS DOUBLE)) * 1e9) AS BIGINT)
            AS told_queue_ns,
        TRY_CAST(round(max(TRY_CAST(attributes['gen_ai.latency.time_in_model_prefill'] AS DOUBLE)) * 1e9)
            AS BIGINT) AS told_prefill_ns
    FROM span WHERE op = 'request' AND request_id IS NOT NULL GROUP BY request_id
)
SELECT v.request_id, v.engine IN (FROM product) AS is_vllm, v.tiered, r.start_ns, r.end_ns, r.status,
    r.ttft_ns, coalesce(r.output_tokens > 0, false) OR r.first_token_ns IS NOT NULL AS has_token,
    b.step_ns IS NOT NULL AS has_step, b.step_ns IS NOT NULL OR v.loads > 0 AS admitted,
    (b.step_ns IS NOT NULL OR v.loads > 0) AND coalesce(a.asks, 0) > 0 AS has_asked,
    1 AS one, r.status IS DISTINCT FROM 'aborted' AS is_counted,
    r.reported_cached_tokens IS NOT NULL AS has_report, r.reported_cached_tokens,
    f.prompt_tokens, f.gpu_hit_tokens, f.found_tokens, f.computed_tokens, f.selected_tokens,
    f.lost_shadowed, f.lost_rounding, f.lost_last_token, f.lost_declined, f.lost_vanished, f.lost_lock,
    f.lost_failed, TRY(f.prompt_tokens - f.gpu_hit_tokens) AS beyond_tokens,
    CASE WHEN f.gpu_hit_tokens IS NULL THEN f.loaded_tokens
        WHEN b.step_ns IS NULL AND q.queues_open = 0 THEN 0
        WHEN r.status = 'error' AND v.bad + v.partly > 0 AND r.first_token_ns IS NULL
            AND coalesce(r.output_tokens, 0) = 0 THEN 0 ELSE f.loaded_tokens END AS used_tokens,
    v.bad + v.partly AS failed_loads, coalesce(a.asks, 0) AS asks,
    coalesce(a.returned_again, 0) AS returned_again, coalesce(a.hit_again, 0) AS hit_again,
    s.preemptions, s.told_queue_ns, s.told_prefill_ns,
    CASE WHEN q.queues_open = 0 THEN q.queue_ns END AS queue_ns, q.loading_ns, q.looking_ns,
    CASE WHEN b.step_ns IS NULL AND q.queues_open = 0 THEN 0 ELSE TRY(p.steps_ns - p.step_waits_ns) END
        AS prefill_ns, p.step_waits_ns, p.gaps_ns
FROM read_parquet($served) v JOIN read_parquet($funnel) f USING (request_id) JOIN request r USING (request_id)
    LEFT JOIN begun b USING (request_id) LEFT JOIN queued q USING (request_id)
    LEFT JOIN prefilled p USING (request_id) LEFT JOIN asks a USING (request_id)
    LEFT JOIN said s USING (request_id)
"""
_WIDE = pl.Int128
"""A sum of what 64 bits hold may be more than they do."""
_PRODUCTS = "SELECT DISTINCT product FROM process WHERE product IS NOT NULL"
_LOST = "SELECT TRY_CAST(sum(count) AS BIGINT) FROM loss WHERE cause <> 'duplicate'"


@dataclass(frozen=True)
class Known:
    """The requests of a run, what its engines counted, and a connection for what else a number needs."""

    requests: pl.DataFrame
    reported: Reported
    products: frozenset[str]
    lost: int
    connection: duckdb.DuckDBPyConnection

    def vllm(self, count: Count | None = None) -> pl.DataFrame:
        """Requests of vLLM that ended while it counted; all that ended where pages have no time."""
        return inside(self.requests.filter(pl.col("is_vllm"), pl.col("end_ns").is_not_null()), count)

    def doubts(self, count: Count | None, *, of: str = "vllm") -> tuple[Cause, ...]:
        """What may make any count of this run differ, by an amount that nobody knows."""
        said = list(count.doubts) if count is not None else []
        if of == "vllm":
            found = under_way(self.requests.filter("is_vllm"), count)
            if found:
                said.append(f"{in_words(found, 'requests')} under way when a page was taken")
            open_ = self.requests.filter(pl.col("is_vllm"), pl.col("end_ns").is_null()).height
            if open_ and not found:
                said.append(f"{many(open_, 'request')} without an end")
            ended = self.reported.count("vllm:request_success_total")
            seen = self.vllm(ended).filter("is_counted").height
            if ended is not None and round(ended.value) != seen:
                said.append(f"vLLM counted {round(ended.value):,} ended requests, the run has {seen:,}")
        if self.lost:
            said.append(lost(self.lost))
        return tuple(Cause(None, text) for text in said)


def known(run: Run) -> Known:
    """Gather it; the connection is the caller's to close."""
    files = {"served": str(served_table(run)), "funnel": str(funnel_table(run))}
    connection = spilling(run)
    rows = pl.DataFrame(connection.sql(_REQUESTS, params=files).to_arrow_table())
    selected, used, last = (
        pl.col(name).cast(_WIDE) for name in ("selected_tokens", "used_tokens", "lost_last_token")
    )
    rows = rows.with_columns(
        unloaded=selected - used - last.fill_null(0),
        cached_tokens=pl.col("gpu_hit_tokens").cast(_WIDE) + used,
    )
    products = {name for (name,) in connection.sql(_PRODUCTS).fetchall()}
    ((gone,),) = connection.sql(_LOST).fetchall()
    return Known(rows, Reported(run), frozenset(products), gone or 0, connection)


def inside(rows: pl.DataFrame, count: Count | None) -> pl.DataFrame:
    """Rows whose end_ns lies between the instants of a count."""
    if count is None or count.to_ns is None:
        return rows
    ended = pl.col("end_ns") <= count.to_ns
    return rows.filter(ended if count.from_ns is None else ended & (pl.col("end_ns") > count.from_ns))


def under_way(rows: pl.DataFrame, count: Count | None) -> int:
    """How many rows one of the two instants cuts."""
    borders = () if count is None else [at for at in (count.from_ns, count.to_ns) if at is not None]
    cut = [
        (pl.col("start_ns") < at) & ((pl.col("end_ns") > at) | pl.col("end_ns").is_null()) for at in borders
    ]
    return rows.filter(pl.any_horizontal(*cut)).height if cut else 0


def summed(rows: pl.DataFrame, column: str, what: str, fact: str) -> tuple[int | None, str]:
    """The sum over these requests, and what it rests on; null where one of them is not known."""
    unknown = rows[column].null_count()
    if unknown or not rows.height:
        return None, not_measured(what, fact, unknown, rows.height)
    return total(rows, column), what


def total(rows: pl.DataFrame, column: str) -> int:
    """The sum of what is known."""
    return int(rows[column].cast(_WIDE).sum() or 0)


def lost(records: int) -> str:
    """Words for records that never came: what was measured may be too little."""
    return f"{many(records, 'record')} lost"
