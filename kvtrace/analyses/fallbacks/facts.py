"""What is known of each request that an external tier could have served, as SQL over the nouns.

asked      one row a request of an engine with an external tier, and its engine
admitted   its first admission: when, which tokens were there, which were computed again later
inquired   its inquiries: what was found first, whether one ended in time
moved      its loads: how many ended well, how many did not, and why
waited     the union of lookups, loads (submit to usable) and lock waits
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import duckdb

_ENDS = """
CREATE OR REPLACE TEMP TABLE process_end AS
WITH record AS (
    SELECT process, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
    FROM span WHERE process IS NOT NULL GROUP BY process
    UNION ALL SELECT process, last_ns FROM process WHERE process IS NOT NULL
)
SELECT process, max(last_ns) AS last_ns FROM record GROUP BY process
"""

_PROMPT_STEPS = """
CREATE OR REPLACE TEMP TABLE prompt_step AS
WITH membership AS (
    SELECT engine, start_ns, end_ns, unnest(members) AS m FROM span
    WHERE op = 'step' AND (end_ns IS NULL OR end_ns >= start_ns)
)
SELECT
    r.request_id, s.engine, s.start_ns, s.end_ns, m.computed_before AS before, r.prompt_tokens,
    CASE WHEN m.computed_before + m.scheduled_tokens > r.prompt_tokens
        THEN r.prompt_tokens - m.computed_before
        WHEN m.computed_before IS NOT NULL AND r.prompt_tokens IS NOT NULL THEN m.scheduled_tokens
        WHEN m.phase = 'prefill' THEN m.scheduled_tokens END AS tokens
FROM membership s JOIN request r ON s.m.request_id = r.request_id
WHERE ($only IS NULL OR list_contains($only, r.request_id))
    AND CASE WHEN m.computed_before IS NOT NULL AND r.prompt_tokens IS NOT NULL
        THEN m.computed_before < r.prompt_tokens ELSE m.phase = 'prefill' END
"""
"""Which steps computed which part of a prompt; what lies beyond the prompt is output."""

_ENGINES = """
CREATE OR REPLACE TEMP TABLE asked AS
WITH stepped AS (
    SELECT request_id, arg_min(engine, start_ns) AS engine FROM prompt_step GROUP BY request_id
), scheduled AS (
    SELECT request_id, arg_min(engine, start_ns) AS engine FROM span
    WHERE op IN ('queue', 'lookup') AND observer = 'scheduler' AND request_id IS NOT NULL
    GROUP BY request_id
), placed AS (
    SELECT r.*, coalesce(s.engine, q.engine, r.engine) AS own_engine
    FROM request r LEFT JOIN stepped s USING (request_id) LEFT JOIN scheduled q USING (request_id)
), named AS (
    SELECT engine, request_id, identity_id, op FROM span
    WHERE op IN ('lookup', 'health') OR identity_id IS NOT NULL
), told AS (
    SELECT engine FROM named WHERE op IN ('lookup', 'health')
    UNION SELECT p.own_engine FROM named n JOIN placed p USING (request_id) WHERE n.op = 'lookup'
    UNION SELECT n.engine FROM named n JOIN identity i USING (identity_id) WHERE n.engine <> i.identity_id
    UNION SELECT any_value(own_engine) FROM placed
        WHERE EXISTS (SELECT 1 FROM identity WHERE identity_id NOT IN (
            SELECT engine FROM span WHERE engine IS NOT NULL))
        HAVING count(DISTINCT own_engine) = 1
)
SELECT *, own_engine IS NOT NULL AND own_engine IN (SELECT engine FROM told) AS tiered FROM placed
WHERE ($everyone OR tiered) AND ($only IS NULL OR list_contains($only, request_id))
"""
"""An identity under an engine's own name is that of its GPU cache and says nothing of another tier."""

_ADMITTED = """
CREATE OR REPLACE TEMP TABLE admitted AS
WITH began AS (
    SELECT request_id, min(start_ns) AS admitted_ns FROM prompt_step GROUP BY request_id
), again AS (
    SELECT q.request_id, min(q.start_ns) AS again_ns
    FROM span q JOIN began b USING (request_id)
    WHERE q.op IN ('queue', 'lookup') AND q.start_ns >= b.admitted_ns
        AND (q.reason = 'preempted' OR q.attempt > 1)
    GROUP BY q.request_id
)
SELECT
    s.request_id, any_value(b.admitted_ns) AS admitted_ns, any_value(a.again_ns) AS again_ns,
    min(s.before) FILTER (first) AS before,
    CASE WHEN count(s.before) FILTER (first) = count(*) FILTER (first) THEN min(s.before) FILTER (first) END
        AS surely_before,
    CASE WHEN count(s.tokens) FILTER (first) = count(*) FILTER (first) THEN sum(s.tokens) FILTER (first) END
        AS computed,
    CASE WHEN count(s.tokens) FILTER (NOT first) = count(*) FILTER (NOT first)
        THEN coalesce(sum(s.tokens) FILTER (NOT first), 0) END AS later
FROM (
    SELECT p.*, a.again_ns IS NULL OR p.start_ns < a.again_ns AS first
    FROM prompt_step p LEFT JOIN again a USING (request_id)
) s JOIN began b USING (request_id) LEFT JOIN again a USING (request_id)
GROUP BY s.request_id
"""

_INQUIRED = """
CREATE OR REPLACE TEMP TABLE inquired AS
WITH mine AS (
    SELECT * EXCLUDE (request_id, members), unnest(list_distinct(list_append(
        list_transform(coalesce(members, []), lambda m: m.request_id), request_id))) AS request_id
    FROM span WHERE op = 'lookup'
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY request_id
        ORDER BY observer IS DISTINCT FROM 'scheduler', coalesce(attempt, 1), start_ns, span_id) AS place
    FROM mine WHERE request_id IN (SELECT request_id FROM asked)
)
SELECT
    request_id, count(*) AS inquiries, min(start_ns) AS asked_ns,
    arg_min(found_tokens, place) FILTER (outcome IS DISTINCT FROM 'skipped') AS found,
    bool_or(coalesce(outcome = 'timeout', false) OR coalesce(reason = 'timeout', false)) AS timed_out,
    bool_or(coalesce(outcome IN ('ok', 'miss', 'partial'), found_tokens IS NOT NULL)) AS reached,
    bool_or(coalesce(outcome = 'open', false) OR end_ns IS NULL) AS unanswered,
    arg_min(reason, place) FILTER (reason IS NOT NULL) AS reason,
    bool_or(coalesce(reason = 'below_chunk', false)) AS below_chunk
FROM ranked GROUP BY request_id
"""

_MOVED = """
CREATE OR REPLACE TEMP TABLE moved AS
SELECT
    request_id, count(*) AS loads,
    count(*) FILTER (coalesce(outcome, 'ok') = 'ok' AND end_ns IS NOT NULL AND tier_to IN ('gpu', 'unknown'))
        AS good,
    count(*) FILTER (outcome IN ('failed', 'timeout', 'cancelled') AND reason IS DISTINCT FROM 'no_room')
        AS bad,
    count(*) FILTER (outcome = 'partial') AS partly,
    count(*) FILTER (reason = 'no_room') AS no_room,
    bool_or(coalesce(outcome = 'timeout', false) OR coalesce(reason = 'timeout', false)) AS timed_out,
    arg_min(reason, start_ns) FILTER (reason IS NOT NULL) AS reason
FROM transfer WHERE op = 'load' AND request_id IN (SELECT request_id FROM asked) GROUP BY request_id
"""

_WAITED = """
CREATE OR REPLACE TEMP TABLE waited AS
WITH own AS (
    SELECT request_id, members, process, start_ns, end_ns FROM span WHERE op IN ('lookup', 'lock_wait')
    UNION ALL
    SELECT request_id, members, process, coalesce(submit_ns, start_ns), coalesce(usable_ns, end_ns)
    FROM copy WHERE op = 'load'
), each AS (
    SELECT process, start_ns, end_ns, unnest(list_distinct(list_append(
        list_transform(coalesce(members, []), lambda m: m.request_id), request_id))) AS request_id
    FROM own WHERE end_ns IS NULL OR end_ns >= start_ns
), clipped AS (
    SELECT
        e.request_id, greatest(e.start_ns, r.start_ns) AS s,
        least(coalesce(e.end_ns, p.last_ns, r.end_ns), coalesce(r.end_ns, o.last_ns, e.end_ns)) AS e
    FROM each e JOIN asked r USING (request_id) LEFT JOIN process_end p ON e.process = p.process
    LEFT JOIN process_end o ON r.process = o.process
    WHERE r.start_ns IS NOT NULL
), reached AS (
    SELECT request_id, s, e, max(e) OVER (
        PARTITION BY request_id ORDER BY s, e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM clipped WHERE e > s
)
SELECT request_id, sum(greatest(0, e - greatest(s, coalesce(before, s))))::BIGINT AS waited_ns
FROM reached GROUP BY request_id
"""

_AGAIN = """
CREATE OR REPLACE TEMP TABLE computed_again AS
WITH chosen AS (
    SELECT s.request_id, s.start_ns AS s, coalesce(s.end_ns, s.start_ns) AS e
    FROM prompt_step s JOIN admitted a USING (request_id) JOIN asked r USING (request_id)
    WHERE s.start_ns >= a.again_ns OR s.before < r.gpu_hit_tokens + r.selected_tokens
), reached AS (
    SELECT request_id, s, e, max(e) OVER (
        PARTITION BY request_id ORDER BY s, e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM chosen
)
SELECT request_id, sum(greatest(0, e - greatest(s, coalesce(before, s))))::BIGINT AS recompute_ns
FROM reached GROUP BY request_id
"""

_FACTS = """
WITH told AS (
    SELECT request_id, bool_or(op = 'queue' AND coalesce(reason = 'preempted', false)) AS preempted,
        bool_or(op = 'blend' AND (coalesce(tokens, -1) = 0 OR coalesce(outcome IN ('skipped', 'miss'), false))
            AND coalesce(found_tokens, 1) > 0) AS noop,
        max(end_ns) FILTER (op = 'queue') AS left_queue_ns
    FROM span WHERE op IN ('queue', 'blend') AND request_id IS NOT NULL GROUP BY request_id
), known AS (
    SELECT
        r.request_id, r.own_engine AS engine, r.tiered, r.start_ns, r.end_ns, r.status, r.prompt_tokens,
        r.gpu_hit_tokens AS gpu_hit, r.selected_tokens AS selected, i.found, i.asked_ns,
        coalesce(a.admitted_ns, t.left_queue_ns, r.start_ns) AS admitted_ns,
        coalesce(a.surely_before, r.prompt_tokens - a.computed) - r.gpu_hit_tokens AS loaded,
        a.computed, a.later, coalesce(i.inquiries, 0) AS inquiries,
        coalesce(i.timed_out, false) AS lookup_timed_out,
        coalesce(i.reached, false) AS reached, coalesce(i.unanswered, false) AS unanswered,
        i.reason AS lookup_reason, coalesce(i.below_chunk, false) AS below_chunk,
        coalesce(m.loads, 0) AS loads, coalesce(m.good, 0) AS good, coalesce(m.bad, 0) AS bad,
        coalesce(m.partly, 0) AS partly, coalesce(m.no_room, 0) AS no_room,
        coalesce(m.timed_out, false) AS load_timed_out, m.reason AS load_reason,
        coalesce(w.waited_ns, 0) AS waited_ns, coalesce(c.recompute_ns, 0) AS recompute_ns,
        coalesce(t.preempted, false) AS preempted, coalesce(t.noop, false) AS noop
    FROM asked r LEFT JOIN admitted a USING (request_id) LEFT JOIN inquired i USING (request_id)
    LEFT JOIN moved m USING (request_id) LEFT JOIN waited w USING (request_id)
    LEFT JOIN computed_again c USING (request_id) LEFT JOIN told t USING (request_id)
), unwell AS (
    SELECT k.request_id, arg_min(h.reason, h.start_ns) AS health
    FROM known k JOIN span h ON h.engine = k.engine
    LEFT JOIN process_end p ON h.process = p.process
    WHERE h.op = 'health' AND h.reason IN ('degraded', 'down') AND h.start_ns <= k.admitted_ns
        AND coalesce(h.end_ns, p.last_ns + 1, 9223372036854775807) > k.admitted_ns
    GROUP BY k.request_id
)
SELECT k.*, u.health FROM known k LEFT JOIN unwell u USING (request_id) ORDER BY k.start_ns, k.request_id
"""


def facts(
    connection: duckdb.DuckDBPyConnection, only: tuple[str, ...] = (), *, everyone: bool = False
) -> pl.DataFrame:
    """One row a request whose engine has an external tier, or everyone (`only` these, or all)."""
    connection.execute(_ENDS)
    connection.execute(_PROMPT_STEPS, {"only": list(only) or None})
    connection.execute(_ENGINES, {"only": list(only) or None, "everyone": everyone})
    for statement in (_ADMITTED, _INQUIRED, _MOVED, _WAITED, _AGAIN):
        connection.execute(statement)
    return pl.DataFrame(connection.sql(_FACTS).to_arrow_table())
