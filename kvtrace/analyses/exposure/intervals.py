"""What the sweep needs, in plain SQL over the nouns: requests with their windows, and their intervals.

requests    one row a request: number, arrival, first token, end, censored, bound per window
intervals   one row a (request, layer, interval) but for steps, sorted by request; open ones end at the last
            record of their process, or at the window's end when the process is not known
steps       every step, and which requests it served
waits       the waits of every engine, and whom they name

A forecast (evidence predicted) is none of these: a request that only a simulation knows has its windows, and
nothing in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.exposure import layers
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb
    import pyarrow as pa

_NEVER = "9223372036854775807::BIGINT"

_LAST_RECORDS = """
CREATE TEMP TABLE record AS
SELECT engine, process, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
FROM span GROUP BY ALL
UNION ALL SELECT engine, process, last_ns FROM process;
CREATE TEMP TABLE process_end AS
SELECT process, max(last_ns) AS last_ns FROM record WHERE process IS NOT NULL GROUP BY process;
CREATE TEMP TABLE engine_end AS
SELECT engine, max(last_ns) AS last_ns, (row_number() OVER (ORDER BY engine))::INTEGER AS place
FROM record WHERE engine IS NOT NULL GROUP BY engine;
"""

_ARRIVED = """
CREATE TEMP TABLE arrived AS
SELECT
    (row_number() OVER (ORDER BY user_id, request_id) - 1)::INTEGER AS number, request_id, user_id, engine,
    start_ns, end_ns, first_token_ns
FROM (
    SELECT *, CASE WHEN $by_user THEN coalesce(user_request_id, request_id) ELSE request_id END AS user_id
    FROM request
)
WHERE start_ns >= 0 AND (end_ns IS NULL OR end_ns >= start_ns)  -- 64 bits hold what is left of any window
  AND ($only IS NULL OR list_contains($only, user_id));
"""

_STEPS = f"""
-- twice the same rows in the same order: an empty OVER keeps it (duckdb.org/docs, order preservation)
CREATE TEMP TABLE iteration AS
WITH numbered AS (
    SELECT (row_number() OVER () - 1)::INTEGER AS step, engine, process, start_ns, end_ns, span_id
    FROM span WHERE op = 'step' AND evidence IS DISTINCT FROM 'predicted'
)
SELECT
    n.step, e.place, n.start_ns, coalesce(n.end_ns, p.last_ns, {_NEVER}) AS stop_ns,
    n.end_ns IS NULL AS is_open, n.span_id,
    (row_number() OVER (ORDER BY place IS NULL, start_ns, place))::INTEGER AS turn
FROM numbered n LEFT JOIN process_end p USING (process) LEFT JOIN engine_end e ON n.engine = e.engine
WHERE n.start_ns IS NOT NULL AND (n.end_ns IS NULL OR n.end_ns >= n.start_ns);
CREATE TABLE served AS
WITH membership AS (
    SELECT (row_number() OVER () - 1)::INTEGER AS step, unnest(members) AS m
    FROM span WHERE op = 'step' AND evidence IS DISTINCT FROM 'predicted'
)
SELECT
    a.number, s.step, s.m.scheduled_tokens IS NULL OR s.m.scheduled_tokens > 0 AS is_serving,
    s.m.output_tokens > 0 AND a.first_token_ns IS NULL AS is_output
FROM membership s JOIN arrived a ON s.m.request_id = a.request_id;
CREATE TEMP TABLE stepped AS
WITH firsts AS (
    SELECT number, min(turn) AS turn FROM served JOIN iteration USING (step) WHERE place IS NOT NULL
    GROUP BY number
), engines AS (
    SELECT number, place FROM firsts JOIN iteration USING (turn)
), outputs AS (
    SELECT number, struct_extract(min({{'began': start_ns, 'ended': stop_ns}}), 'ended') AS token_ns
    FROM served JOIN iteration USING (step) WHERE is_output AND NOT is_open GROUP BY number
)
SELECT number, engine, token_ns
FROM engines FULL JOIN outputs USING (number) LEFT JOIN engine_end USING (place);
CREATE TEMP TABLE asked AS
WITH own AS (
    SELECT start_ns, engine, request_id, members FROM span
    WHERE op IN ('queue', 'lookup') AND observer = 'scheduler' AND engine IS NOT NULL
      AND evidence IS DISTINCT FROM 'predicted' AND (end_ns IS NULL OR end_ns >= start_ns)
), named AS (
    SELECT start_ns, engine, request_id FROM own
    UNION ALL
    SELECT start_ns, engine, unnest(list_transform(members, lambda m: m.request_id)) FROM own
)
SELECT number, struct_extract(min({{'began': n.start_ns, 'engine': n.engine}}), 'engine') AS engine
FROM named n JOIN arrived USING (request_id) GROUP BY number;
"""  # noqa: S608 - constants of this module

_LOSSES = """
CREATE TEMP TABLE lost AS
WITH scheduler AS (
    SELECT DISTINCT engine, process FROM span
    WHERE engine IS NOT NULL AND process IS NOT NULL AND (observer = 'scheduler' OR op IN ('step', 'queue'))
)
SELECT e.engine, coalesce(l.from_ns, -1) AS from_ns, coalesce(l.to_ns, 9223372036854775807) AS to_ns
FROM loss l, engine_end e
WHERE l.cause IS DISTINCT FROM 'duplicate' AND (l.op IS NULL OR l.op IN ('step', 'queue', 'wait'))
  AND (l.process IS NULL OR EXISTS (
      SELECT 1 FROM scheduler s WHERE s.engine = e.engine AND s.process = l.process));
"""

_REQUESTS = """
CREATE TEMP TABLE windowed AS
WITH named AS (
    SELECT
        r.number, r.request_id, r.user_id, r.start_ns, r.end_ns,
        coalesce(r.first_token_ns, s.token_ns) AS token_ns,
        coalesce(s.engine, a.engine, r.engine) AS engine,
        s.engine IS NOT NULL AS is_member
    FROM arrived r LEFT JOIN stepped s USING (number) LEFT JOIN asked a USING (number)
), ended AS (
    SELECT
        n.number, n.request_id, n.user_id, n.engine, n.is_member, n.start_ns,
        CASE WHEN n.token_ns >= n.start_ns THEN n.token_ns END AS token_ns,
        n.end_ns IS NULL AS unfinished,
        greatest(n.start_ns, coalesce(n.end_ns, e.last_ns)) AS stop_ns
    FROM named n LEFT JOIN engine_end e ON n.engine = e.engine
), bounded AS (
    SELECT
        *,
        is_member OR (token_ns IS NULL AND engine IN (
            SELECT engine FROM span
            WHERE op = 'step' AND evidence IS DISTINCT FROM 'predicted'
                AND (end_ns IS NULL OR end_ns >= start_ns)
        )) AS seen_stepping
    FROM ended
)
SELECT
    *,
    seen_stepping AND NOT EXISTS (
        SELECT 1 FROM lost l WHERE l.engine = b.engine
        AND l.from_ns < coalesce(b.token_ns, b.stop_ns) AND l.to_ns >= b.start_ns) AS ttft_exact,
    seen_stepping AND NOT EXISTS (
        SELECT 1 FROM lost l WHERE l.engine = b.engine
        AND l.from_ns < b.stop_ns AND l.to_ns >= b.token_ns) AS decode_exact,
    seen_stepping AND NOT EXISTS (
        SELECT 1 FROM lost l WHERE l.engine = b.engine
        AND l.from_ns < b.stop_ns AND l.to_ns >= b.start_ns) AS e2e_exact
FROM bounded b
ORDER BY number;
"""

_ROWS = f"""
CREATE TEMP VIEW attributed AS
WITH own AS (
    SELECT op, reason, tier_from, tier_to, start_ns, end_ns, submit_ns, usable_ns, process, span_id,
           request_id, members
    FROM copy WHERE evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT op, reason, NULL, NULL, start_ns, end_ns, NULL, NULL, process, span_id, request_id, members
    FROM span WHERE op IN ('queue', 'lock_wait') AND evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT 'lookup', reason, NULL, NULL, start_ns, end_ns, NULL, NULL, process, span_id, request_id, members
    FROM lookup WHERE evidence IS DISTINCT FROM 'predicted'
    -- the noun: a server's inquiry that its client gave up stays open, and nobody waits for it
), shared AS (
    SELECT * EXCLUDE (request_id, members), unnest(list_distinct(
        list_append(list_transform(members, lambda m: m.request_id), request_id))) AS request_id
    FROM own WHERE len(members) > 0
)
SELECT * EXCLUDE (members) FROM own WHERE len(members) IS NULL OR len(members) = 0
UNION ALL BY NAME SELECT * FROM shared;

CREATE TEMP VIEW layered AS
WITH ended AS (
    SELECT a.*, coalesce(a.end_ns, p.last_ns, {_NEVER}) AS stop_ns, a.end_ns IS NULL AS is_open
    FROM attributed a LEFT JOIN process_end p ON a.process = p.process
    WHERE a.end_ns IS NULL OR a.end_ns >= a.start_ns
)
SELECT request_id, start_ns AS s, stop_ns AS e, is_open, start_ns AS started, span_id,
    CASE op
        WHEN 'load' THEN {layers.FIRST_HOP} + {len(TIERS)} * (list_position($tiers, tier_from) - 1)
             + list_position($tiers, tier_to) - 1
        WHEN 'store' THEN {layers.STORE}
        WHEN 'lookup' THEN {layers.LOOKUP}
        WHEN 'lock_wait' THEN {layers.LOCK}
        ELSE CASE WHEN reason = 'capacity' THEN {layers.QUEUE_CAPACITY}
                  WHEN reason IN ('remote_kv', 'lookup') THEN {layers.QUEUE_TRANSFER}
                  ELSE {layers.QUEUE_OTHER} END
    END AS layer
FROM ended
UNION ALL
SELECT request_id, coalesce(submit_ns, start_ns), coalesce(usable_ns, stop_ns), is_open AND usable_ns IS NULL,
    coalesce(submit_ns, start_ns), span_id, {layers.LOAD_WAIT}
FROM ended WHERE op = 'load';
"""  # noqa: S608 - constants of this module

_INTERVALS = """
SELECT a.number, l.layer::TINYINT AS layer, l.is_open, l.s, l.e$owners
FROM layered l JOIN arrived a USING (request_id)
WHERE l.s IS NOT NULL  -- what has no time is in no window; a null would make floats of all the others
ORDER BY number
"""

_WAITS = f"""
SELECT dense_rank() OVER (ORDER BY w.engine) - 1 AS engine_number, w.engine, w.span_id, w.start_ns AS s,
    coalesce(w.end_ns, p.last_ns, {_NEVER}) AS e, w.end_ns IS NULL AS is_open,
    coalesce(list_position(['load', 'store', 'lookup', 'lock'], w.reason), 5) - 1 AS reason,
    CASE WHEN len(w.members) > 0 THEN list_transform(w.members, lambda m: m.request_id)
         WHEN w.request_id IS NOT NULL THEN [w.request_id] END AS names
FROM wait w LEFT JOIN process_end p ON w.process = p.process
WHERE w.engine IS NOT NULL AND w.evidence IS DISTINCT FROM 'predicted'
    AND coalesce(w.end_ns, p.last_ns, {_NEVER}) > w.start_ns
ORDER BY w.engine, w.start_ns, w.span_id
"""  # noqa: S608 - constants of this module


def prepare(connection: duckdb.DuckDBPyConnection, only: tuple[str, ...] = (), *, by_user: bool) -> None:
    """Create the temporary tables that the queries below read; `only` keeps these (none: all).

    By user, the requests of a user follow each other, and `only` names users.
    """
    connection.execute(_LAST_RECORDS)
    connection.execute(_ARRIVED, {"only": list(only) or None, "by_user": by_user})
    for statements in (_STEPS, _LOSSES, _REQUESTS):
        connection.execute(statements)
    connection.execute(_ROWS.replace("$tiers", str(list(TIERS))))


def requests(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Every request with an arrival: number, times, engine, bound per window."""
    found: pa.Table = connection.sql("SELECT * FROM windowed ORDER BY number").to_arrow_table()
    return found


def waits(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Every wait of an engine, sorted by engine and start, with whom it names (null: nobody)."""
    found: pa.Table = connection.sql(_WAITS).to_arrow_table()
    return found


def stream(connection: duckdb.DuckDBPyConnection, *, owners: bool) -> Iterator[pa.RecordBatch]:
    """Intervals but for steps, sorted by request number, as recorded; `owners` adds started and span_id."""
    text = _INTERVALS.replace("$owners", ", l.started, l.span_id" if owners else "")
    yield from connection.sql(text).to_arrow_reader(256 * 1024)


def steps(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Every step, sorted by engine and start."""
    found: pa.Table = connection.sql(
        "SELECT step, place, start_ns AS s, stop_ns AS e, is_open, span_id FROM iteration "
        "ORDER BY place, start_ns, stop_ns, step"
    ).to_arrow_table()
    return found


def served_counts(connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """How many steps served each request; those that none served are not in it."""
    found: pa.Table = connection.sql(
        "SELECT number, count(*) AS steps FROM served WHERE is_serving GROUP BY number"
    ).to_arrow_table()
    return found


def served(connection: duckdb.DuckDBPyConnection, low: int, high: int) -> pa.Table:
    """Which steps served the requests [low, high), in no order."""
    found: pa.Table = connection.sql(
        "SELECT number, step FROM served WHERE is_serving AND number >= $low AND number < $high",
        params={"low": low, "high": high},
    ).to_arrow_table()
    return found
