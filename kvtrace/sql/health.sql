-- What the engine believed, not what was true: a cache that is down is seen as healthy until somebody notices.
CREATE VIEW health AS
SELECT run_id, name, start_ns, end_ns, reason, component, engine, process, observer, evidence, span_id, attributes
FROM span
WHERE op = 'health';

COMMENT ON VIEW health IS 'one row an interval in which an engine saw an external cache in one state';
