"""Nothing is removed while it is locked (I2, and I4 for what an L2 store reads).

    object  locked |----------------| unlocked  removed     let go first; a temporary object goes with its
                                                            last reader: let go first, too
    object  locked |--- removed                             a bug: violated, error
    object  locked |-- time to live --|   removed           ttl_expired: a warning
    object  locked |--- cleared, removed                    forced_clear: somebody asked for it: a warning

A store to L2 locks what it reads as any reader does, so its keys are judged by the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import (
    Asked,
    Finding,
    judged,
    late,
    missing_events,
    untold,
    weakest,
)  # fmt: skip

if TYPE_CHECKING:
    from kvtrace.run import Run

CLEARED_WITHIN_NS = 1_000_000_000
"""A clear is recorded when it begins; what it removes is removed after it, under one lock."""
_REMOVED = """
WITH removed AS (
    SELECT *, EXISTS (
        SELECT 1 FROM block c WHERE c.event = 'cleared' AND c.process IS NOT DISTINCT FROM s.process
            AND c.reason IN ('force', 'force_delete') AND coalesce(c.key, s.key) = s.key
            AND s.time_ns - c.time_ns BETWEEN 0 AND $within) AS cleared
    FROM object_step s WHERE event = 'removed'
), judged AS (
    SELECT *, CASE
        WHEN held_least <= 0 AND late THEN 'late'
        WHEN held_least <= 0 AND held_most > 0 AND locked_ns IS NOT NULL AND NOT ran_out THEN 'unsure'
        WHEN held_least <= 0 THEN 'free' WHEN ran_out THEN 'expired' WHEN cleared THEN 'cleared' ELSE 'held'
        END AS kind
    FROM removed
)
"""
_COUNTS = "SELECT kind, count(*), list(DISTINCT evidence) FROM judged GROUP BY kind ORDER BY kind"
_VIOLATED = """
SELECT kind, key, time_ns, held_least::BIGINT, (time_ns - locked_ns)::DOUBLE, read_ttl_ns::DOUBLE, evidence
FROM judged WHERE kind IN ('held', 'expired', 'cleared') ORDER BY time_ns, key
"""


def not_removed_while_locked(run: Run, asked: Asked) -> list[Finding]:
    """By object: a release may be among lost records, so with losses nothing is judged."""
    if (why := untold(asked)) is not None:
        return [why]
    connection, params = asked.connection, {"within": CLEARED_WITHIN_NS}
    counts = connection.sql(_REMOVED + _COUNTS, params=params).fetchall()
    if not counts:
        return [Finding("unobserved", "nothing was removed")]
    lost, number = missing_events(run, asked), {kind: count for kind, count, _ in counts}
    rows = connection.sql(_REMOVED + _VIOLATED, params=params).fetchall()
    evidence = weakest(word for *_, words in counts for word in words)
    unsure = number.get("unsure", 0)
    reasons = (
        lost.said,
        late(number.get("late", 0)),
        f"whether {many(unsure, 'key')} had a reader left was not told" if unsure else None,
    )
    told = f"{many(sum(number.values()), 'key')} removed, {number.get('free', 0):,} of them let go before"
    return judged(lost.shows(_violation(*row) for row in rows), reasons, Finding("pass", told, evidence))


def _violation(
    kind: str, key: str, time_ns: int, locks: int, held_ns: float, ttl_ns: float | None, evidence: str | None
) -> Finding:
    since = f"{duration(held_ns)} after {many(locks, 'lock')} of it"
    if kind == "expired":
        detail = f"ttl_expired: removed {since}, whose time to live is {duration(ttl_ns)}"
    elif kind == "cleared":
        detail = f"forced_clear: removed {since} by a clear that spares nothing"
    else:
        detail = f"removed {since} that nobody had released"
    severity = "error" if kind == "held" else "warning"
    return Finding("violated", detail, evidence, severity, None, key, time_ns)  # type: ignore[arg-type]
