"""How an engine sees its external cache, as intervals out of the lines that say it changed.

    heartbeat starts     LOOKUP timed out      unhealthy      healthy again      heartbeat stops
    |---- healthy -------|----------- degraded --------------|---- healthy ------|

Scheduler and workers each have a view of their own and a line does not say whose it is: degraded is from the
first line that says so to the first that says it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log


class Health:
    """The interval that is open: since when, its reason, the record that began it."""

    def __init__(self) -> None:
        self._open: tuple[int, str, Record] | None = None

    def becomes(self, log: Log, record: Record, time_ns: int, reason: str) -> None:
        """A line says that the cache is healthy or degraded from now on."""
        if self._open is None or self._open[1] != reason:
            self.ends(log, time_ns)
            self._open = (time_ns, reason, record)

    def begins(self, log: Log, record: Record, time_ns: int) -> None:
        """Somebody starts to look; until he says otherwise the cache is healthy."""
        if self._open is None:
            self.becomes(log, record, time_ns, "healthy")

    def ends(self, log: Log, end_ns: int | None) -> None:
        """Nobody looks any more; None: the file ends, and the interval does not."""
        if self._open is None:
            return
        start_ns, reason, record = self._open
        self._open = None
        log.span(
            record, start_ns, None if end_ns is None else max(start_ns, end_ns), "cache health", op="health",
            reason=reason, component="lmcache", observer="client",
        )  # fmt: skip
