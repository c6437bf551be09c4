"""What was found is still there, and locked, when it is read (I3).

    locked |---- time to live ----|   read      ttl_expired: its protection ran out; a warning
    locked |--- removed   read                  gone while it was locked: an error
    locked |--- unlocked |   read               nothing protected it: read_only_what_was_locked has it

LMCache says that a read failed, and calls one whose lock is gone `write_locked`; of a lock that ran out it
says nothing. So what was locked, and the time from the last lock to the read, decide.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

_FAILED = """
WITH step AS (
    SELECT *, last_value(CASE WHEN event = 'removed' THEN held_most END IGNORE NULLS) OVER (
        PARTITION BY object ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS at_removal
    FROM object_step
), judged AS (
    SELECT *, CASE WHEN ever_locked_ns IS NULL AND late THEN 'early'
        WHEN coalesce(CASE WHEN reason = 'l1_retrieve:not_found' THEN at_removal END, held_most) <= 0
            THEN 'bare'
        WHEN held_least <= 0 AND NOT ran_out AND reason = 'l1_retrieve:write_locked' THEN 'unsure'
        ELSE 'lost' END AS kind
    FROM step WHERE event = 'failed' AND reason IN ('l1_retrieve:write_locked', 'l1_retrieve:not_found')
), active AS (
    SELECT process, request_id AS reader, least(submit_ns, start_ns) AS start_ns, end_ns FROM span
    WHERE op = 'load' AND name = 'mp.retrieve' AND observer = 'server' AND request_id IS NOT NULL
), reading AS (
    SELECT j.object, j.place, a.reader
    FROM judged j JOIN active a ON a.process IS NOT DISTINCT FROM j.process AND a.start_ns <= j.time_ns
        AND (a.end_ns IS NULL OR a.end_ns >= j.time_ns)
    JOIN request_key k ON k.request_id = a.reader AND k.key_space = j.key_space AND k.key = j.key
), owned AS (
    SELECT object, place, CASE WHEN count(DISTINCT reader) = 1 THEN any_value(reader) END AS reader
    FROM reading GROUP BY object, place
)
SELECT kind, count(*), min(key), time_ns, reason, any_value(evidence), min(time_ns - ever_locked_ns)::DOUBLE,
    max(read_ttl_ns)::DOUBLE, CASE WHEN count(DISTINCT reader) = 1 THEN any_value(reader) END
FROM judged LEFT JOIN owned USING (object, place)
GROUP BY kind, process, time_ns, seq, reason ORDER BY time_ns, reason, kind, 3
"""
"""No event says who reads: the one retrieve under way whose lookup asked for the key; of two, neither."""
_READS = """
SELECT count(*) FILTER (event = 'accessed' AND asked), count(*) FILTER (event = 'unlocked' AND NOT asked)
FROM object_event WHERE told
"""


def read_within_ttl(run: Run, asked: Asked) -> list[Finding]:
    """A row a read that failed, whatever else is missing; a read of several keys is one."""
    if (why := untold(asked)) is not None:
        return [why]
    failed = asked.connection.sql(_FAILED).fetchall()
    ((read, released),) = asked.connection.sql(_READS).fetchall()
    if not failed and not read and not released:
        return [Finding("unobserved", "nothing was read")]
    number = Counter(kind for kind, *_ in failed)
    violations = [_violation(*row) for kind, *row in failed if kind == "lost"]
    told = f"{many(read or released, 'key')} read while locked"
    reasons = (
        missing_events(run, asked).said,
        f"{number['early']:,} failed, locked before the records began" if number["early"] else None,
        f"whether {number['unsure']:,} that failed were locked was not told" if number["unsure"] else None,
    )
    return judged(violations, reasons, Finding("pass", told, "native"))


def _violation(
    keys: int, key: str, time_ns: int, reason: str, evidence: str | None, age_ns: float, ttl_ns: float | None,
    reader: str | None,
) -> Finding:  # fmt: skip
    what = "gone" if reason.endswith("not_found") else "not locked any more"
    detail = f"{many(keys, 'key')} {what} when read, {duration(age_ns)} after the lock"
    if ttl_ns is not None and age_ns >= ttl_ns:
        detail = f"ttl_expired: {detail}, whose time to live is {duration(ttl_ns)}"
        return Finding("violated", detail, evidence, "warning", reader, key, time_ns)
    limit = "its time to live is not known" if ttl_ns is None else "well within its time to live"
    return Finding("violated", f"{detail}, {limit}", evidence, "error", reader, key, time_ns)
