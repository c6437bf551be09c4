"""When nothing is in progress, nothing is locked, reserved or under way (I10).

request  |-----|    |---------|
server's own page                 ^ read_locked_count = 0, active_prefetch_jobs = 0 ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import count, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged

if TYPE_CHECKING:
    from kvtrace.run import Run

QUIET_NS = 1_000_000_000
"""So long nothing may have ended before the page was read: releases come some milliseconds late."""
_PAGES = """
WITH page AS (
    SELECT process, labels['kvtrace.source'] AS source, time_ns, name, value FROM metric
    WHERE name IN ('lmcache_status.storage_manager.l1_manager.read_locked_count',
        'lmcache_status.storage_manager.l1_manager.write_locked_count',
        'lmcache_status.storage_manager.l1_manager.temporary_count',
        'lmcache_status.active_prefetch_jobs', 'lmcache_status.active_sessions')
), latest AS (
    SELECT * FROM page
    QUALIFY row_number() OVER (PARTITION BY process, source, name ORDER BY time_ns DESC NULLS LAST) = 1
), work AS (
    SELECT start_ns, end_ns FROM span
    WHERE op IN ('request', 'lookup', 'load', 'store', 'queue') AND evidence IS DISTINCT FROM 'predicted'
)
SELECT time_ns, split_part(name, '.', -1), process, value, CASE
    WHEN value = 0 THEN 'none' WHEN time_ns IS NULL THEN 'untimed'
    WHEN EXISTS (SELECT 1 FROM work
        WHERE start_ns <= time_ns AND (end_ns IS NULL OR end_ns + $quiet > time_ns))
        THEN 'busy' ELSE 'left' END AS kind
FROM latest ORDER BY time_ns, process, name
"""


def nothing_left_at_idle(_run: Run, asked: Asked) -> list[Finding]:
    """The last status page of each server; one without a time, or read in the midst of work, tells less."""
    rows = asked.connection.sql(_PAGES, params={"quiet": QUIET_NS}).fetchall()
    if not rows:
        if asked.has_lmcache:
            return [Finding("unobserved", "no status page of the server (its /status would be one)")]
        return [Finding("not_applicable", "no LMCache in this run")]
    violations = [
        Finding("violated", f"{name} is {count(value)} with nothing in progress", "native", "error",
                None, None, time_ns)
        for time_ns, name, _, value, kind in rows if kind == "left"
    ]  # fmt: skip
    busy = sum(kind == "busy" for *_, kind in rows)
    untimed = sum(kind == "untimed" for *_, kind in rows)
    reasons = (
        f"{many(busy, 'count')} above 0 while something was in progress" if busy else None,
        f"{many(untimed, 'count')} above 0 on a page without a time" if untimed else None,
    )
    return judged(
        violations, reasons, Finding("pass", f"{many(len(rows), 'count')} of the server: 0", "native")
    )
