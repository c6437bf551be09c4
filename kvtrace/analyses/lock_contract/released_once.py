"""Every lock that was taken is released once: not more often, and not never (I1).

    object  locked 2     unlocked 1  unlocked 1     balance 2 1 0: released once
    object  locked 1     unlocked 1  unlocked 1     balance 1 0 -1: released more often than locked
    object  locked 1     ...                        balance 1: never released, or not yet
    object  locked 1 |-- time to live --|  locked   never released: it ran out, and counts from 1 again

Where the cache itself says what it locked, its word counts. A trace of calls (LMCache's storage trace) says
that a lock was asked for (`reason` = asked), never that it was granted. What was asked for is then the most
that can have been locked: more releases than that are a violation, as many prove that each was granted and
released, fewer prove nothing. An object whose first record is a release was locked before the records began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import count, duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, missing_events, weakest

if TYPE_CHECKING:
    from kvtrace.run import Run

_BALANCE = """
WITH step AS (
    SELECT object, life, session, place, key, process, request_id, evidence, time_ns,
        event = 'locked' AS takes, least_n, most_n, read_ttl_ns AS ttl_ns, false AS asked
    FROM object_step WHERE event IN ('locked', 'unlocked')
    UNION ALL
    SELECT object, 0, 0, row_number() OVER (PARTITION BY object ORDER BY time_ns, seq NULLS FIRST, event),
        key, process, request_id, evidence, time_ns, event = 'locked', coalesce(count, 1), coalesce(count, 1),
        ttl_ns, true
    FROM object_event WHERE asked AND event IN ('locked', 'unlocked') AND NOT told
), calls AS (
    SELECT object, sum(CASE WHEN event = 'locked' THEN count ELSE -count END) = 0 AS even
    FROM object_event WHERE asked AND event IN ('locked', 'unlocked') GROUP BY object
), running AS (
    SELECT *, sum(CASE WHEN takes THEN most_n ELSE -least_n END) OVER (
        PARTITION BY object, life, session ORDER BY place ROWS UNBOUNDED PRECEDING) AS balance
    FROM step
), held AS (
    SELECT
        object, life, session, any_value(key) AS key, any_value(process) AS process, bool_or(asked) AS asked,
        max(request_id) AS request_id, min(ttl_ns)::HUGEINT AS ttl_ns, list(DISTINCT evidence) AS words,
        min(balance) < 0 AS over, min(time_ns) FILTER (balance < 0) AS over_ns,
        max(time_ns) FILTER (takes)::HUGEINT AS taken_ns, arg_min(takes, place) AS begins,
        coalesce(sum(least_n) FILTER (takes), 0) AS taken,
        coalesce(sum(most_n) FILTER (takes), 0) AS taken_most,
        coalesce(sum(least_n) FILTER (NOT takes), 0) AS given,
        coalesce(sum(most_n) FILTER (NOT takes), 0) AS given_most
    FROM running GROUP BY object, life, session
), gone AS (
    SELECT object, life, session FROM object_step WHERE event IN ('removed', 'expired') AND NOT ran_out
), stray AS (  -- a release that released nothing, though no time to live was over and no read had failed
    SELECT object, key, process, time_ns, evidence, reason = 'unreleased' AND NOT ran_out AND held_most <= 0
        AND locked_ns IS NOT NULL AND coalesce(lag(reason) OVER (PARTITION BY object ORDER BY place), '')
            NOT LIKE 'l1_retrieve:%' AS is_stray
    FROM object_step
), judged AS (
    SELECT h.* EXCLUDE (words), h.words, c.last_ns::HUGEINT - taken_ns AS open_ns, CASE
        WHEN over AND begins THEN 'over'
        WHEN NOT begins THEN 'late'
        WHEN g.object IS NOT NULL AND taken > given_most THEN 'gone'
        WHEN NOT asked AND taken > given_most AND (c.last_ns::HUGEINT - taken_ns > ttl_ns
            OR h.session < max(h.session) OVER (PARTITION BY h.object, h.life)) THEN 'expired'
        WHEN NOT asked AND taken > given_most AND c.last_ns::HUGEINT - taken_ns > $bound THEN 'kept'
        WHEN given = taken_most AND taken = given_most THEN 'released'
        WHEN taken > given_most THEN 'still'
        WHEN NOT asked AND e.even THEN 'released'
        ELSE 'unsure' END AS kind, coalesce(over_ns, taken_ns) AS at_ns
    FROM held h LEFT JOIN cache_end c ON c.process IS NOT DISTINCT FROM h.process
    LEFT JOIN calls e USING (object) LEFT JOIN gone g USING (object, life, session)
    UNION ALL BY NAME
    SELECT object, key, process, time_ns AS over_ns, [evidence] AS words, 'stray' AS kind, false AS asked
    FROM stray WHERE is_stray
)
"""
_SUMS = """
SELECT kind, count(*), coalesce(sum(taken), 0)::DOUBLE, coalesce(sum(given), 0)::DOUBLE, bool_or(asked),
    list_distinct(flatten(list(words)))
FROM judged GROUP BY kind ORDER BY kind
"""
_VIOLATED = """
SELECT kind, request_id, key, words, asked, taken::DOUBLE, given::DOUBLE, open_ns::DOUBLE, ttl_ns::DOUBLE,
    CASE kind WHEN 'over' THEN over_ns WHEN 'stray' THEN over_ns WHEN 'expired' THEN taken_ns + ttl_ns
        ELSE taken_ns + $bound END::BIGINT
FROM judged WHERE kind IN ('over', 'stray', 'expired', 'kept') ORDER BY 10, key, request_id
"""
_BROKEN = {"over", "stray", "expired", "kept"}


def released_once(run: Run, asked: Asked) -> list[Finding]:
    """By object; with losses of the locks' source nothing is judged."""
    connection, params = asked.connection, {"bound": asked.bound_ns}
    sums = connection.sql(_BALANCE + _SUMS, params=params).fetchall()
    if not sums:
        return [_nothing(asked)]
    lost = missing_events(run, asked)
    number = {row[0]: row[1] for row in sums}
    rows = connection.sql(_BALANCE + _VIOLATED, params=params).fetchall() if number.keys() & _BROKEN else []
    if violations := lost.shows(_violation(*row) for row in rows):
        return violations
    only_asked = any(row[4] for row in sums)
    taken, given = (count(sum(row[place] for row in sums)) for place in (2, 3))
    told = f"{taken} locks {'asked for' if only_asked else 'taken'} and {given} released"
    evidence = weakest(word for row in sums for word in row[5] or [None])
    for kind, why in (
        ("late", "some were taken before the records began"),
        ("still", "which were granted was not told" if only_asked else "some may be released later"),
        ("unsure", "how many locks an event took or released was not told"),
    ):
        if number.get(kind) and not lost.count:
            return [Finding("inconclusive", f"{told}; {why}", evidence)]
    if lost.count:
        return [Finding("inconclusive", f"{told}; {lost.said}", evidence)]
    return [Finding("pass", f"{told}, on {many(number.get('released', 0), 'key')}", evidence)]


def _violation(
    kind: str, request_id: str | None, key: str, words: list[str | None], only_asked: bool,  # noqa: FBT001
    taken: float, given: float, open_ns: float, ttl_ns: float | None, time_ns: int,
) -> Finding:  # fmt: skip
    evidence = weakest(words or [None])
    if kind == "expired":
        detail = f"ttl_expired: not released within its time to live of {duration(ttl_ns)}"
        return Finding("violated", detail, evidence, "warning", request_id, key, time_ns)
    if kind == "kept":
        detail = f"locked and not released {duration(open_ns)} later"
    elif kind == "stray":
        detail = "released though none of its locks was left: another request's lock may be gone"
    else:
        detail = (
            f"released {count(given)} times, {'asked for' if only_asked else 'locked'} {count(taken)} times"
        )
    return Finding("violated", detail, evidence, "error", request_id, key, time_ns)


def _nothing(asked: Asked) -> Finding:
    if asked.has_lmcache:
        return Finding("unobserved", "no lock was recorded (lmcache server --trace-level storage would)")
    return Finding("not_applicable", "no cache with locks in this run")
