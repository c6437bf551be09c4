"""Every lock that was taken is released once: not more often, and not never.

    key   locked 2     unlocked 1  unlocked 1     balance 2 1 0: released once
    key   locked 1     unlocked 1  unlocked 1     balance 1 0 -1: released more often than locked
    key   locked 1     ...                        balance 1: never released, or not yet

A trace of calls (LMCache's storage trace) says that a lock was asked for (`reason` = asked), never that it
was granted. What was asked for is then the most that can have been locked: more releases than that are a
violation, as many prove that each was granted and released, fewer prove nothing. A key whose first record is
a release was locked before the records began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import count, duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, lost, products, weakest

if TYPE_CHECKING:
    from kvtrace.run import Run

_BALANCE = """
WITH event AS (
    SELECT
        process, engine, component, key_space, key, rank, object_group, time_ns, request_id, ttl_ns, evidence,
        (CASE WHEN event = 'locked' THEN 1 ELSE -1 END * coalesce(count, 1)::HUGEINT) AS step,
        event = 'locked' AS takes, coalesce(reason = 'asked', false) AS asked
    FROM block
    WHERE event IN ('locked', 'unlocked') AND key IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
), running AS (
    SELECT *, sum(step) OVER (
        PARTITION BY process, engine, component, key_space, key, rank, object_group
        ORDER BY time_ns, takes DESC ROWS UNBOUNDED PRECEDING) AS balance
    FROM event
), keyed AS (
    SELECT
        key, process, max(request_id) AS request_id, bool_or(asked) AS asked, min(ttl_ns)::HUGEINT AS ttl_ns,
        min(balance) < 0 AS over, sum(step) > 0 AS still, min(time_ns) FILTER (balance < 0) AS over_ns,
        max(time_ns) FILTER (takes) AS taken_ns, arg_min(takes, (time_ns, NOT takes)) AS begins,
        coalesce(sum(step) FILTER (takes), 0) AS taken, -coalesce(sum(step) FILTER (NOT takes), 0) AS given,
        list(DISTINCT evidence) AS words
    FROM running GROUP BY process, engine, component, key_space, key, rank, object_group
), judged AS (
    SELECT *, last_ns::HUGEINT - taken_ns AS open_ns, CASE
        WHEN over AND begins THEN 'over'
        WHEN NOT begins THEN 'late'
        WHEN still AND NOT asked AND last_ns::HUGEINT - taken_ns > ttl_ns THEN 'expired'
        WHEN still AND NOT asked AND last_ns::HUGEINT - taken_ns > $bound THEN 'kept'
        WHEN still THEN 'still' ELSE 'released' END AS kind
    FROM keyed, (SELECT max(time_ns) AS last_ns FROM block)
)
"""
_SUMS = """
SELECT kind, count(*), sum(taken)::DOUBLE, sum(given)::DOUBLE, bool_or(asked),
    list_distinct(flatten(list(words))), list(DISTINCT process), count(*) > count(process)
FROM judged GROUP BY kind ORDER BY kind
"""
_VIOLATED = """
SELECT kind, request_id, key, words, asked, taken::DOUBLE, given::DOUBLE, open_ns::DOUBLE, ttl_ns::DOUBLE,
    CASE kind WHEN 'over' THEN over_ns WHEN 'expired' THEN taken_ns + ttl_ns
        ELSE taken_ns + $bound END::BIGINT
FROM judged WHERE kind IN ('over', 'expired', 'kept') ORDER BY 10, key, request_id
"""


def released_once(run: Run, asked: Asked) -> list[Finding]:
    """By key, rank and object group; with losses of the locks' source nothing is judged."""
    connection, params = run.connection(), {"bound": asked.bound_ns}
    sums = connection.sql(_BALANCE + _SUMS, params=params).fetchall()
    if not sums:
        return [_nothing(run)]
    named = {name for row in sums for name in row[6] or [] if name is not None}
    missing = lost(run, (), None if any(row[7] for row in sums) else named)
    number = {row[0]: row[1] for row in sums}
    if not missing and number.keys() & {"over", "expired", "kept"}:
        return [_violation(*row) for row in connection.sql(_BALANCE + _VIOLATED, params=params).fetchall()]
    only_asked = any(row[4] for row in sums)
    taken, given = (count(sum(row[place] for row in sums)) for place in (2, 3))
    told = f"{taken} locks {'asked for' if only_asked else 'taken'} and {given} released"
    evidence = weakest(word for row in sums for word in row[5] or [None])
    if missing:
        return [Finding("inconclusive", f"{told}; {many(missing, 'record')} missing", evidence)]
    if number.get("late"):
        return [Finding("inconclusive", f"{told}; some were taken before the records began", evidence)]
    if number.get("still"):
        why = "which were granted was not told" if only_asked else "some may be released later"
        return [Finding("inconclusive", f"{told}; {why}", evidence)]
    return [Finding("pass", f"{told}, on {many(number['released'], 'key')}", evidence)]


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
    else:
        detail = (
            f"released {count(given)} times, {'asked for' if only_asked else 'locked'} {count(taken)} times"
        )
    return Finding("violated", detail, evidence, "error", request_id, key, time_ns)


def _nothing(run: Run) -> Finding:
    query = "SELECT count(*) FROM span WHERE starts_with(component, 'lmcache')"
    ((rows,),) = run.connection().sql(query).fetchall()
    if rows or "lmcache" in products(run):
        return Finding("unobserved", "no lock was recorded (lmcache server --trace-level storage would)")
    return Finding("not_applicable", "no cache with locks in this run")
