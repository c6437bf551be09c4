-- Loads and stores as the observer nearest the copy saw them. The worker's shim, LMCache's client, its
-- server's bus and its own spans all see the same transfer: transfer_id ties them together (see tie), and per
-- (request, hop, transfer_id) the first of worker, server, client, scheduler, api, router stays.
-- A row without transfer_id is a transfer of its own. Ranks are still apart here (see transfer).
-- A scheduler sees no copy, only the whole from its decision to the report of the end. Where somebody nearer
-- saw copies that began inside it, they stay and get its queued, submit and usable times; else it stands for
-- them. Of observers of one transfer each may have waited for it longer: the earliest submit is everybody's.
-- Of a load whose worker cannot say what of it arrived, or only that something did not, the scheduler may know.
CREATE VIEW copy AS
WITH moved AS (
    SELECT
        run_id, op, request_id, coalesce(t.transfer_id, s.transfer_id) AS transfer_id, name, start_ns, end_ns, submit_ns,
        usable_ns, queued_ns,
        coalesce(tier_from, 'unknown') AS tier_from, coalesce(tier_to, 'unknown') AS tier_to,
        component, state_kind, purpose, tokens, bytes, blocks, attempt, outcome, reason, mode, identity_id, members,
        engine, s.process, observer, rank, device, stream, clock, evidence, attribution,
        trace_id, s.span_id, parent_span_id, attributes, bucket
    FROM span s LEFT JOIN tie t ON t.span_id = s.span_id AND t.process IS NOT DISTINCT FROM s.process
    WHERE op IN ('load', 'store') AND (end_ns IS NULL OR end_ns >= start_ns) AND t.moved_nothing IS NOT true
), whole AS (
    SELECT op, request_id, list({
        'process': process, 'span_id': span_id, 'submit_ns': coalesce(submit_ns, start_ns), 'usable_ns': usable_ns,
        'queued_ns': queued_ns,
        'transfer_id': transfer_id, 'outcome': outcome, 'usable_tokens': attributes['usable_tokens'],
        'stop_ns': coalesce(greatest(end_ns, usable_ns), 9223372036854775807)
    }) AS wholes
    FROM moved
    WHERE observer = 'scheduler' AND request_id IS NOT NULL
    GROUP BY op, request_id
), placed AS (
    SELECT m.*, CASE WHEN m.observer IN ('worker', 'server', 'client') THEN
        list_filter(w.wholes, lambda x: x.submit_ns <= m.start_ns AND m.start_ns < x.stop_ns) END AS around
    FROM moved m LEFT JOIN whole w ON m.op = w.op AND m.request_id = w.request_id
), covered AS (
    SELECT DISTINCT x.process, x.span_id FROM (SELECT unnest(around) AS x FROM placed WHERE len(around) > 0)
), told AS (
    SELECT *, CASE WHEN outcome IN ('failed', 'unknown') THEN list_filter(around, lambda x:
        x.transfer_id = transfer_id AND x.usable_tokens IS NOT NULL)[1] END AS said
    FROM placed
), raised AS (
    SELECT t.* EXCLUDE (around) REPLACE (
        CASE WHEN t.said IS NULL THEN t.outcome ELSE t.said.outcome END AS outcome,
        CASE WHEN t.said IS NULL THEN t.attributes
            ELSE map_concat(t.attributes, map {'usable_tokens': t.said.usable_tokens}) END AS attributes,
        least(t.submit_ns, list_min(list_transform(t.around, lambda x: x.submit_ns))) AS submit_ns,
        least(t.queued_ns, list_min(list_transform(t.around, lambda x: x.queued_ns))) AS queued_ns,
        greatest(t.usable_ns, list_max(list_transform(t.around, lambda x: x.usable_ns))) AS usable_ns
    )
    FROM told t
    WHERE t.observer IS DISTINCT FROM 'scheduler' OR NOT EXISTS (
        SELECT 1 FROM covered c WHERE c.span_id = t.span_id AND c.process IS NOT DISTINCT FROM t.process)
), seen AS (
    SELECT
        * EXCLUDE (said),  -- one at a time: DuckDB prints several in any order
        coalesce(list_position(['worker', 'server', 'client', 'scheduler', 'api', 'router'], observer), 7) AS distance
    FROM raised
), nearest AS (
    SELECT
        op, request_id, tier_from, tier_to, transfer_id, min(submit_ns) AS submit_ns, min(queued_ns) AS queued_ns,
        min(distance) AS distance
    FROM seen
    WHERE transfer_id IS NOT NULL
    GROUP BY ALL
)
SELECT s.* EXCLUDE (distance) REPLACE (
    CASE WHEN s.transfer_id IS NULL THEN s.submit_ns ELSE n.submit_ns END AS submit_ns,
    CASE WHEN s.transfer_id IS NULL THEN s.queued_ns ELSE n.queued_ns END AS queued_ns
)
FROM seen s LEFT JOIN nearest n
    ON n.transfer_id = s.transfer_id AND n.op = s.op AND n.tier_from = s.tier_from AND n.tier_to = s.tier_to
    AND n.request_id IS NOT DISTINCT FROM s.request_id
WHERE s.transfer_id IS NULL OR s.distance = n.distance;

COMMENT ON VIEW copy IS 'one row a copy of state as its nearest observer saw it, ranks apart';
COMMENT ON COLUMN copy.tier_from IS 'physical medium the state leaves; unknown when nobody said';
COMMENT ON COLUMN copy.tier_to IS 'physical medium the state reaches; unknown when nobody said';
COMMENT ON COLUMN copy.submit_ns IS 'when it was asked for, unix ns: the earliest that an observer of it or the scheduler around it says';
COMMENT ON COLUMN copy.queued_ns IS 'when it was queued to be asked for later, unix ns; null when it was not, or nobody said';
COMMENT ON COLUMN copy.usable_ns IS 'when the scheduler may use it, unix ns';
