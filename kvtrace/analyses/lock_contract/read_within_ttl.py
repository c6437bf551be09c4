"""What was found is still there, and locked, when it is read (I3).

    locked |---- time to live ----|   read            ttl_expired: its protection ran out; a warning
    locked |------- read: not locked, or gone         somebody released or removed it: an error

LMCache says that a read failed, and calls one whose lock is gone `write_locked`; of a lock that ran out it
says nothing. So the time from the last lock to the read decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

_FAILED = """
SELECT count(*), min(key), time_ns, reason, any_value(evidence), min(time_ns - ever_locked_ns)::DOUBLE,
    max(read_ttl_ns)::DOUBLE, bool_or(ever_locked_ns IS NULL)
FROM object_step
WHERE event = 'failed' AND reason IN ('l1_retrieve:write_locked', 'l1_retrieve:not_found')
GROUP BY process, time_ns, seq, reason ORDER BY time_ns, reason, 2
"""
_READS = """
SELECT count(*) FILTER (event = 'accessed' AND asked), count(*) FILTER (event = 'unlocked' AND NOT asked)
FROM object_event WHERE told
"""


def read_within_ttl(run: Run, asked: Asked) -> list[Finding]:
    """A row a read that failed, whatever else is missing; a read of several keys is one."""
    if (why := untold(run, asked)) is not None:
        return [why]
    failed = asked.connection.sql(_FAILED).fetchall()
    ((read, released),) = asked.connection.sql(_READS).fetchall()
    if not failed and not read and not released:
        return [Finding("unobserved", "nothing was read")]
    known = [row for row in failed if not row[-1]]
    early = len(failed) - len(known)
    told = f"{many(read or released, 'key')} read while locked"
    reasons = (
        missing_events(run, asked).said,
        f"{many(early, 'read')} failed, locked before the records began" if early else None,
    )
    return judged([_violation(*row[:-1]) for row in known], reasons, Finding("pass", told, "native"))


def _violation(
    keys: int, key: str, time_ns: int, reason: str, evidence: str | None, age_ns: float, ttl_ns: float | None
) -> Finding:
    what = "gone" if reason.endswith("not_found") else "not locked any more"
    detail = f"{many(keys, 'key')} {what} when read, {duration(age_ns)} after the lock"
    if ttl_ns is not None and age_ns >= ttl_ns:
        detail = f"ttl_expired: {detail}, whose time to live is {duration(ttl_ns)}"
        return Finding("violated", detail, evidence, "warning", None, key, time_ns)
    limit = "its time to live is not known" if ttl_ns is None else "well within its time to live"
    return Finding("violated", f"{detail}, {limit}", evidence, "error", None, key, time_ns)
