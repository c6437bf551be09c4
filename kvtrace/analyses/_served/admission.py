"""Who asked, of which engine, and what its first admission found there and computed, as SQL.

    prompt  |== GPU hit ==|== loaded ==|== computed ==|   before = where the first step of it begins
                                       ^before

subject      every id that a request, lookup, load, route or request key names
prompt_step  which steps computed which part of whose prompt
asked        the subjects that are asked about, each with its engine
admitted     the first admission; what its steps scheduled twice, and what later ones scheduled
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_SUBJECT = """
CREATE OR REPLACE TEMP TABLE subject AS
WITH named AS (
    SELECT request_id, members FROM span WHERE op IN ('lookup', 'load', 'route')
), seen AS (
    SELECT request_id FROM request
    UNION SELECT request_id FROM named
    UNION SELECT unnest(list_transform(members, lambda m: m.request_id)) FROM named WHERE len(members) > 0
    UNION SELECT request_id FROM request_key
)
SELECT
    s.request_id, r.request_id IS NOT NULL AS is_request, r.start_ns, r.end_ns,
    CASE WHEN r.evidence IS DISTINCT FROM 'predicted' THEN r.ttft_ns END AS ttft_ns,
    CASE WHEN r.evidence IS DISTINCT FROM 'predicted' THEN r.status END AS status,
    r.process, r.engine, r.prompt_tokens, r.gpu_hit_tokens, r.selected_tokens, r.reported_cached_tokens
FROM seen s LEFT JOIN request r USING (request_id)
WHERE s.request_id IS NOT NULL
"""

_PROMPT_STEPS = """
CREATE OR REPLACE TEMP TABLE prompt_step AS
WITH membership AS (
    SELECT engine, start_ns, end_ns, unnest(members) AS m FROM span
    WHERE op = 'step' AND (end_ns IS NULL OR end_ns >= start_ns) AND evidence IS DISTINCT FROM 'predicted'
)
SELECT
    r.request_id, s.engine, s.start_ns, s.end_ns, m.computed_before AS before, r.prompt_tokens,
    TRY(CASE WHEN m.computed_before + m.scheduled_tokens > r.prompt_tokens
        THEN r.prompt_tokens - m.computed_before
        WHEN m.computed_before IS NOT NULL AND r.prompt_tokens IS NOT NULL THEN m.scheduled_tokens
        WHEN m.phase = 'prefill' THEN m.scheduled_tokens END) AS tokens
FROM membership s JOIN subject r ON s.m.request_id = r.request_id
WHERE ($only IS NULL OR list_contains($only, r.request_id))
    AND CASE WHEN m.computed_before IS NOT NULL AND r.prompt_tokens IS NOT NULL
        THEN m.computed_before < r.prompt_tokens ELSE m.phase = 'prefill' END
"""
"""Which steps computed which part of a prompt; what lies beyond the prompt is output."""

_ASKED = """
CREATE OR REPLACE TEMP TABLE asked AS
WITH stepped AS (
    SELECT request_id, arg_min(engine, start_ns) AS engine FROM prompt_step GROUP BY request_id
), scheduled AS (
    SELECT request_id, arg_min(engine, start_ns) AS engine FROM span
    WHERE op IN ('queue', 'lookup') AND observer = 'scheduler' AND request_id IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
    GROUP BY request_id
), placed AS (
    SELECT r.*, coalesce(s.engine, q.engine, r.engine) AS own_engine
    FROM subject r LEFT JOIN stepped s USING (request_id) LEFT JOIN scheduled q USING (request_id)
), named AS (
    SELECT engine, request_id, identity_id, op FROM span
    WHERE op IN ('lookup', 'health') OR identity_id IS NOT NULL
), told AS (
    SELECT engine FROM named WHERE op IN ('lookup', 'health')
    UNION SELECT p.own_engine FROM named n JOIN placed p USING (request_id) WHERE n.op = 'lookup'
    UNION SELECT n.engine FROM named n JOIN identity i USING (identity_id) WHERE n.engine <> i.identity_id
    UNION SELECT any_value(own_engine) FROM placed
        WHERE is_request AND EXISTS (SELECT 1 FROM identity WHERE identity_id NOT IN (
            SELECT engine FROM span WHERE engine IS NOT NULL))
        HAVING count(DISTINCT own_engine) = 1
)
SELECT *, own_engine IS NOT NULL AND own_engine IN (SELECT engine FROM told) AS tiered,
    row_number() OVER () AS number
FROM placed
WHERE $only IS NULL OR list_contains($only, request_id)
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
        AND (q.reason = 'preempted' OR q.attempt > 1) AND q.evidence IS DISTINCT FROM 'predicted'
    GROUP BY q.request_id
), placed AS (
    SELECT p.*, b.admitted_ns, a.again_ns, a.again_ns IS NULL OR p.start_ns < a.again_ns AS first
    FROM prompt_step p JOIN began b USING (request_id) LEFT JOIN again a USING (request_id)
), laid AS (
    SELECT *, max(TRY(before + tokens)) OVER (PARTITION BY request_id, first ORDER BY before, tokens
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM placed
)
SELECT
    request_id, any_value(admitted_ns) AS admitted_ns, any_value(again_ns) AS again_ns,
    CASE WHEN count(before) FILTER (first) = count(*) FILTER (first) THEN min(before) FILTER (first) END
        AS surely_before,
    TRY_CAST(CASE WHEN count(tokens) FILTER (first) = count(*) FILTER (first)
        THEN sum(tokens) FILTER (first) END AS BIGINT) AS scheduled,
    TRY_CAST(coalesce(sum(greatest(0, least(tokens, reached - before))) FILTER (
        first AND reached IS NOT NULL AND before IS NOT NULL AND tokens IS NOT NULL), 0) AS BIGINT) AS twice,
    TRY_CAST(CASE WHEN count(tokens) FILTER (NOT first) = count(*) FILTER (NOT first)
        THEN coalesce(sum(tokens) FILTER (NOT first), 0) END AS BIGINT) AS later
FROM laid GROUP BY request_id
"""
"""A step that failed is scheduled again inside the same admission: those tokens count once as computed."""


def admit(connection: duckdb.DuckDBPyConnection, only: tuple[str, ...]) -> None:
    """Make the four tables; `only` these requests, or all."""
    chosen = {"only": list(only) or None}
    connection.execute(_SUBJECT)
    connection.execute(_PROMPT_STEPS, chosen)
    connection.execute(_ASKED, chosen)
    connection.execute(_ADMITTED)
