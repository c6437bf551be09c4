-- Loads and stores as the observer nearest the copy saw them. The worker's shim, LMCache's client, its
-- server's bus and its own spans all see the same transfer: transfer_id ties them together, and per
-- (request, hop, transfer_id) the first of worker, server, client, scheduler, api, router stays.
-- A row without transfer_id is a transfer of its own. Ranks are still apart here (see transfer).
-- A scheduler sees no copy, only the whole from its decision to the report of the end. Where somebody nearer
-- saw copies that began inside it, they stay and get its submit and usable times; else it stands for them.
CREATE VIEW copy AS
WITH moved AS (
    SELECT
        run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, queued_ns,
        coalesce(tier_from, 'unknown') AS tier_from, coalesce(tier_to, 'unknown') AS tier_to,
        component, state_kind, purpose, tokens, bytes, blocks, attempt, outcome, reason, mode, identity_id, members,
        engine, process, observer, rank, device, stream, clock, evidence, attribution,
        trace_id, span_id, parent_span_id, attributes, bucket
    FROM span
    WHERE op IN ('load', 'store') AND (end_ns IS NULL OR end_ns >= start_ns)
), whole AS (
    SELECT
        op, request_id, process, span_id, coalesce(submit_ns, start_ns) AS submit_ns, usable_ns,
        coalesce(greatest(end_ns, usable_ns), 9223372036854775807) AS stop_ns
    FROM moved
    WHERE observer = 'scheduler' AND request_id IS NOT NULL
), told AS (
    SELECT
        m.* REPLACE (
            CASE WHEN m.submit_ns IS NULL OR w.submit_ns < m.submit_ns THEN coalesce(w.submit_ns, m.submit_ns)
                 ELSE m.submit_ns END AS submit_ns,
            CASE WHEN m.usable_ns IS NULL OR w.usable_ns > m.usable_ns THEN coalesce(w.usable_ns, m.usable_ns)
                 ELSE m.usable_ns END AS usable_ns
        ),
        w.process AS whole_process, w.span_id AS whole_span
    FROM moved m LEFT JOIN whole w
      ON m.op = w.op AND m.request_id = w.request_id AND m.observer IN ('worker', 'server', 'client')
     AND m.start_ns >= w.submit_ns AND m.start_ns < w.stop_ns
), covered AS (
    SELECT DISTINCT whole_process AS process, whole_span AS span_id FROM told WHERE whole_span IS NOT NULL
), seen AS (
    SELECT t.* EXCLUDE (whole_process, whole_span)
    FROM told t
    WHERE t.observer IS DISTINCT FROM 'scheduler' OR NOT EXISTS (
        SELECT 1 FROM covered c WHERE c.span_id = t.span_id AND c.process IS NOT DISTINCT FROM t.process)
), ranked AS (
    SELECT
        *,
        coalesce(list_position(['worker', 'server', 'client', 'scheduler', 'api', 'router'], observer), 7) AS distance
    FROM seen
    WHERE transfer_id IS NOT NULL
)
SELECT * FROM seen WHERE transfer_id IS NULL
UNION ALL
SELECT * EXCLUDE (distance)
FROM ranked
QUALIFY distance = min(distance) OVER (PARTITION BY op, request_id, tier_from, tier_to, transfer_id);

COMMENT ON VIEW copy IS 'one row a copy of state as its nearest observer saw it, ranks apart';
COMMENT ON COLUMN copy.tier_from IS 'physical medium the state leaves; unknown when nobody said';
COMMENT ON COLUMN copy.tier_to IS 'physical medium the state reaches; unknown when nobody said';
COMMENT ON COLUMN copy.submit_ns IS 'when it was asked for, unix ns: by the observer of the copy, or by the scheduler around it';
COMMENT ON COLUMN copy.usable_ns IS 'when the scheduler may use it, unix ns';
