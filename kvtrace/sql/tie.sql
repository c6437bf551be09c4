-- One transfer of LMCache under the names that its client, its server and every rank of it gave it:
-- client   request, engine_id (a worker), asked [-----------------) end    r/load/1      r/load/1
-- server   request, engine_id                       [--------)              r#17          r#18     two workers
-- A row for each that takes another's name. Client and server are paired in the order of time, worker by
-- worker, where both have as many and each of the server's begins while its client waits (give or take 50 ms);
-- else only where a pair fits and neither fits another. Workers of one request that moved equally often moved
-- together: ranks, if no second lies between them. `kvtrace import` has tied its runs already, with more means.
-- A client's row that fits several of its server's keeps its own name: it is here without one, to be counted.
CREATE VIEW tie AS
WITH move AS (
    SELECT
        process, span_id, observer, request_id, transfer_id, op = 'load' AS is_load, op = 'drop' AS is_drop,
        attributes['engine_id'] AS engine_id,
        CASE observer WHEN 'client' THEN coalesce(submit_ns, start_ns) ELSE start_ns END AS from_ns,
        coalesce(end_ns, 4611686018427387904) AS to_ns
    FROM span
    WHERE observer IN ('client', 'server') AND op IN ('load', 'store', 'drop') AND request_id IS NOT NULL
        AND transfer_id IS NOT NULL AND attributes['engine_id'] IS NOT NULL
        AND NOT (observer = 'client' AND op = 'drop')  -- it went to no server
), numbered AS (
    SELECT *, row_number() OVER (side ORDER BY from_ns, span_id) AS number, count(*) OVER side AS moves
    FROM move WINDOW side AS (PARTITION BY observer, request_id, engine_id, is_load)
), ranked AS (
    SELECT *,
        min(moves) OVER request = max(moves) OVER request
            AND max(from_ns) OVER ranks - min(to_ns) OVER ranks < 1000000000 AS together
    FROM numbered WHERE observer = 'server'
    WINDOW request AS (PARTITION BY request_id, is_load), ranks AS (PARTITION BY request_id, is_load, number)
), served AS (
    SELECT *, CASE WHEN bool_and(together) OVER request THEN min(transfer_id) OVER ranks ELSE transfer_id END
        AS common
    FROM ranked
    WINDOW request AS (PARTITION BY request_id, is_load), ranks AS (PARTITION BY request_id, is_load, number)
), client AS (
    SELECT c.*, s.common AS known FROM numbered c
    LEFT JOIN (SELECT DISTINCT request_id, engine_id, is_load, transfer_id, common FROM served) s
        USING (request_id, engine_id, is_load, transfer_id)
    WHERE c.observer = 'client'
), ordered AS (
    SELECT c.process, c.span_id, s.common, s.is_drop,
        c.moves = s.moves AND bool_and(s.from_ns BETWEEN c.from_ns - 50000000 AND c.to_ns + 50000000)
            OVER (PARTITION BY c.request_id, c.engine_id, c.is_load) AS whole
    FROM client c JOIN served s USING (request_id, engine_id, is_load, number)
), fitting AS (
    SELECT c.process, c.span_id, s.common, s.is_drop,
        count(*) OVER (PARTITION BY c.process, c.span_id) AS ways,
        count(*) OVER (PARTITION BY s.process, s.span_id) AS claims
    FROM client c JOIN served s ON s.request_id = c.request_id AND s.engine_id = c.engine_id AND s.is_load = c.is_load
        AND s.from_ns BETWEEN c.from_ns - 50000000 AND c.to_ns + 50000000
    WHERE c.known IS NULL AND NOT EXISTS (SELECT 1 FROM ordered o
        WHERE o.whole AND o.span_id = c.span_id AND o.process IS NOT DISTINCT FROM c.process)
)
SELECT process, span_id, common AS transfer_id, false AS moved_nothing FROM served WHERE common <> transfer_id
UNION ALL
SELECT process, span_id, known, false FROM client WHERE known <> transfer_id
UNION ALL
SELECT o.process, o.span_id, o.common, o.is_drop
FROM ordered o JOIN client c ON c.span_id = o.span_id AND c.process IS NOT DISTINCT FROM o.process
WHERE o.whole AND c.known IS NULL
UNION ALL
SELECT process, span_id, common, is_drop FROM fitting WHERE ways = 1 AND claims = 1
UNION ALL
SELECT DISTINCT process, span_id, NULL, NULL FROM fitting WHERE ways > 1 OR claims > 1;

COMMENT ON VIEW tie IS 'one row a store or load of LMCache that is named otherwise by its client, its server or a rank';
COMMENT ON COLUMN tie.transfer_id IS 'the name that all of them take; null when it fits several and keeps its own';
COMMENT ON COLUMN tie.moved_nothing IS 'whether the server says that this store of its client stored nothing';
