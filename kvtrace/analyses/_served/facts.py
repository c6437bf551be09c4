"""All that is known of how each request was served, one row a request; cached for a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served.admission import admit
from kvtrace.analyses._served.loads import move
from kvtrace.analyses._served.offers import inquire
from kvtrace.analyses._served.times import last
from kvtrace.run.derived import derived_folder, files_hash, published, spilling
from kvtrace.run.kept import is_large

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from kvtrace.run import Run

ALGORITHM = "6"
"""Bumped whenever the facts of the same run can come out differently."""

_KEPT = (
    """
CREATE TABLE kept_copy AS SELECT
    op, request_id, transfer_id, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to, component,
    purpose, tokens, bytes, outcome, reason, process, observer, members, NULL::VARCHAR AS run_id,
    NULL::VARCHAR AS name, NULL::VARCHAR AS state_kind, NULL::BIGINT AS blocks, NULL::BIGINT AS attempt,
    NULL::VARCHAR AS engine, evidence, NULL::VARCHAR AS trace_id,
    NULL::UBIGINT AS span_id, NULL::UTINYINT AS bucket,
    NULL::BIGINT AS queued_ns, NULL::VARCHAR AS identity_id, NULL::VARCHAR AS clock,
    NULL::VARCHAR AS attribution, CASE WHEN attributes['usable_tokens'] IS NOT NULL
        THEN MAP {'usable_tokens': attributes['usable_tokens']} END AS attributes
FROM copy""",
    "DROP VIEW copy",
    "ALTER TABLE kept_copy RENAME TO copy",
)
"""This noun is dear and read several times: where it is not kept (kvtrace/run/kept.py) its view makes way,
in a database of our own, for a table of what the noun transfer and we need of it."""

_FACTS = """
WITH told AS (
    SELECT request_id, bool_or(op = 'queue' AND coalesce(reason = 'preempted', false)) AS preempted,
        bool_or(op = 'blend' AND (coalesce(tokens, -1) = 0 OR coalesce(outcome IN ('skipped', 'miss'), false))
            AND coalesce(found_tokens, 1) > 0) AS noop,
        max(end_ns) FILTER (op = 'queue') AS left_queue_ns,
        bool_or(op = 'lock_wait' AND coalesce(outcome IN ('failed', 'timeout', 'cancelled'), false))
            AS refused
    FROM span WHERE op IN ('queue', 'blend', 'lock_wait') AND request_id IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted' GROUP BY request_id
), granule AS (
    SELECT identity_id, min(TRY_CAST(value AS BIGINT)) AS block FROM identity
    WHERE field = 'block_size' AND TRY_CAST(value AS BIGINT) > 0 GROUP BY identity_id
), only_one AS (
    SELECT CASE WHEN count(DISTINCT block) = 1 THEN any_value(block) END AS block FROM granule
), keyed AS (
    SELECT request_id, min(time_ns) AS key_ns FROM request_key GROUP BY request_id
), joined AS (
    SELECT
        r.*, i.* EXCLUDE (request_id, inquiries, timed_out, reason), a.* EXCLUDE (request_id),
        coalesce(i.inquiries, 0) AS inquiries, i.timed_out AS lookup_late, i.reason AS lookup_reason,
        coalesce(m.loads, 0) AS loads, coalesce(m.good, 0) AS good, coalesce(m.bad, 0) AS bad,
        coalesce(m.partly, 0) AS partly, coalesce(m.undone, 0) AS undone, coalesce(m.no_room, 0) AS no_room,
        m.timed_out AS load_late,
        m.reason AS load_reason, m.tried, coalesce(m.handoffs, 0) AS handoffs,
        coalesce(m.reuses, 0) AS reuses,
        coalesce(m.vanished, 0) AS vanished, coalesce(m.broken, 0) AS broken,
        coalesce(m.unlocked, 0) AS unlocked, coalesce(t.refused, false) AS refused,
        r.selected_tokens = 0 OR (i.answerer IN (SELECT process FROM telling)) AS surely_none,
        m.moved AS moved_seen, m.loaded_bytes AS bytes_seen, o.visible, o.routed_ns,
        coalesce(g.block, n.block) AS block, s.store_completed_ns, s.first_stored_ns,
        coalesce(s.stores, 0) AS stores, w.* EXCLUDE (engine),
        l.* EXCLUDE (number), c.recompute_ns,
        coalesce(t.preempted, false) AS preempted, coalesce(t.noop, false) AS noop, t.left_queue_ns, k.key_ns
    FROM asked r LEFT JOIN admitted a USING (request_id) LEFT JOIN inquired i USING (request_id)
    LEFT JOIN moved m USING (request_id) LEFT JOIN routed o USING (request_id)
    LEFT JOIN stored s USING (request_id) LEFT JOIN lasted l USING (number)
    LEFT JOIN computed_again c USING (request_id) LEFT JOIN told t USING (request_id)
    LEFT JOIN keyed k USING (request_id) LEFT JOIN watched w ON coalesce(r.own_engine, '') = w.engine
    LEFT JOIN granule g ON g.identity_id = r.own_engine CROSS JOIN only_one n
), moved_known AS (
    SELECT *, CASE WHEN loads > 0 THEN moved_seen WHEN surely_none THEN 0 END AS moved,
        CASE WHEN loads > 0 THEN bytes_seen WHEN surely_none THEN 0 END AS loaded_bytes,
        scheduled - twice AS computed,
        CASE WHEN selected_tokens IS NOT NULL THEN greatest(selected_tokens, tried) END AS selected,
        CASE WHEN admitted_ns IS NULL AND selected_tokens IS NULL AND reported_cached_tokens >= gpu_hit_tokens
            THEN reported_cached_tokens END AS told_before
    FROM joined
), hit AS (
    SELECT *, coalesce(gpu_hit_tokens,
        CASE WHEN loads = 0 AND moved = 0 THEN reported_cached_tokens END) AS gpu_hit
    FROM moved_known
), known AS (
    SELECT
        request_id, own_engine AS engine, is_request, tiered, start_ns, end_ns, ttft_ns, status,
        prompt_tokens, gpu_hit, selected, found, coalesce(beyond, false) AS beyond, visible, asked_ns,
        coalesce(least(asked_ns, routed_ns), start_ns, key_ns) AS first_asked_ns,
        coalesce(admitted_ns, left_queue_ns, start_ns) AS admitted_ns,
        coalesce(surely_before, prompt_tokens - computed, told_before) - gpu_hit AS loaded,
        computed, later + twice AS later, moved, loaded_bytes, handoffs, reuses, block,
        vanished, unlocked, broken, refused, again_ns, inquiries,
        coalesce(lookup_late, false) AS lookup_timed_out, coalesce(reached, false) AS reached,
        coalesce(unanswered, false) AS unanswered, lookup_reason, coalesce(below_chunk, false) AS below_chunk,
        loads, good, bad, partly, undone, no_room, coalesce(load_late, false) AS load_timed_out, load_reason,
        coalesce(waited_ns, 0) AS waited_ns, coalesce(recompute_ns, 0) AS recompute_ns, preempted, noop,
        coalesce(asks, false) AS asks_itself, store_completed_ns, stores, first_stored_ns,
        coalesce(lookup_ns, CASE WHEN asks THEN 0 END) AS lookup_wait_ns,
        coalesce(lock_ns, CASE WHEN locks THEN 0 END) AS lock_wait_ns,
        coalesce(hold_ns, CASE WHEN holds THEN 0 END) AS block_hold_ns,
        CASE WHEN maybe_d2h IS NOT TRUE THEN coalesce(d2h_ns, CASE WHEN d2h THEN 0 END) END AS d2h_ns,
        CASE WHEN maybe_h2d IS NOT TRUE THEN coalesce(h2d_ns, CASE WHEN h2d THEN 0 END) END AS h2d_ns,
        CASE WHEN maybe_network IS NOT TRUE THEN coalesce(network_ns, CASE WHEN network THEN 0 END) END
            AS network_ns
    FROM hit
), unwell AS (
    SELECT k.request_id, arg_min(h.reason, h.start_ns) AS health
    FROM known k JOIN span h ON h.engine = k.engine
    LEFT JOIN process_end p ON h.process = p.process
    WHERE h.op = 'health' AND h.reason IN ('degraded', 'down') AND h.start_ns <= k.admitted_ns
        AND coalesce(h.end_ns, p.last_ns + 1, 9223372036854775807) > k.admitted_ns
    GROUP BY k.request_id
)
SELECT k.*, u.health FROM known k LEFT JOIN unwell u USING (request_id)
ORDER BY k.start_ns NULLS LAST, k.request_id
"""


def served(
    run: Run, requests: tuple[str, ...] = (), connection: duckdb.DuckDBPyConnection | None = None
) -> pl.DataFrame:
    """The facts of these requests, or of all; with a connection its tables stay for further questions."""
    if not requests:
        return pl.read_parquet(table(run))
    own = connection or run.connection()
    _gather(own, requests, _partial_engines(run))
    return pl.DataFrame(own.sql(_FACTS).to_arrow_table())


def table(run: Run) -> Path:
    """The facts of all requests of a run as a Parquet file, in the order of their arrival."""
    partial = _partial_engines(run)
    target = derived_folder(run) / f"served-{files_hash(run, ALGORITHM, *partial)}.parquet"
    if not target.exists():
        connection = spilling(run)
        kept = () if is_large(connection) else _KEPT
        for statement in kept:
            connection.execute(statement)
        _gather(connection, (), partial)
        if kept:
            connection.execute("DROP TABLE copy")  # what is no longer needed makes room for the join
        with published(target) as unfinished:
            connection.sql(_FACTS).write_parquet(str(unfinished))
        connection.close()
    return target


def _gather(connection: duckdb.DuckDBPyConnection, only: tuple[str, ...], partial: list[str]) -> None:
    admit(connection, only)
    inquire(connection, partial)
    move(connection)
    last(connection)


def _partial_engines(run: Run) -> list[str]:
    """Engines whose connector of LMCache runs inside vLLM: it answers what it has beyond the GPU hit."""
    engines = run.meta.get("engines")
    told = engines.items() if isinstance(engines, dict) else ()
    return sorted(
        name
        for name, config in told
        if isinstance(config, dict) and str(config.get("kv_connector")).startswith("LMCacheConnectorV1")
    )
