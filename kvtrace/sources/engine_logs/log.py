"""One log while it is read: what its records have said so far, and the rows that come of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sources.engine_logs.health import Health
from kvtrace.sources.records import LATEST_TIME_NS, LONGEST_NS, Rows, attributes

if TYPE_CHECKING:
    from kvtrace.sources.engine_logs.clock import Clock
    from kvtrace.sources.engine_logs.forms import Record

SOURCE, LINE = "kvtrace.source", "log_line"
"""Label of metrics: the file. Attribute of rows: the line of the engine's code that wrote the record."""
MAX_OPEN = 10_000
"""Requests, and preempted ones, that wait for the line that ends them; of more the oldest are given up."""


class Log:
    """What the rules need.

    server: the process of a cache server, whose records do not name it
    last_ns: the time of the record before
    timeout_ns: LMCache's `mq_timeout`; chunk_tokens: its chunk; workers, groups: those that registered caches
    requests, preempted: request -> start ns, until a line ends them
    """

    def __init__(self, source: str, clock: Clock) -> None:
        self.rows = Rows(source)
        self.source = source
        self.clock = clock
        self.health = Health()
        self.timeout_ns: int | None = None
        self.chunk_tokens: int | None = None
        self.workers: set[str] = set()
        self.groups: set[str] = set()
        self.requests: dict[str, int] = {}
        self.preempted: dict[str, int] = {}
        self.identity: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.server: str | None = None
        self.last_ns: int | None = None
        self.given_up = 0

    def process(self, record: Record) -> str | None:
        """Who wrote a record, where it says so, or where only one does."""
        return self.server if record.pid is None else f"{self.source}/{record.pid}"

    def span(self, record: Record, start_ns: int, end_ns: int | None, name: str, **columns: Any) -> None:
        """A row; what has no column goes into `said`. An engine said it in words: its evidence is derived."""
        said = columns.pop("said", {})
        self.rows.add("span", {
            "op": None, "name": name, "start_ns": start_ns, "end_ns": end_ns, "engine": self.source,
            "process": self.process(record), "evidence": "derived",
            "attribution": "request" if columns.get("request_id") else "aggregate",
            "attributes": attributes(**said, **{LINE: record.place}), **columns,
        })  # fmt: skip

    def point(self, record: Record, time_ns: int, name: str, **columns: Any) -> None:
        """A row of the instant of its record."""
        self.span(record, time_ns, time_ns, name, **columns)

    def before(
        self, record: Record, time_ns: int, lasted: Any, unit_ns: int, name: str, **columns: Any
    ) -> None:
        """A row that ends with its record and lasted as it says; a point where that is no duration."""
        lasted_ns = duration_ns(lasted, unit_ns)
        start_ns = time_ns if lasted_ns is None or lasted_ns >= time_ns else time_ns - lasted_ns
        self.span(record, start_ns, time_ns, name, **columns)

    def metric(self, time_ns: int | None, name: str, value: float, **labels: str) -> None:
        """A sample."""
        self.rows.add("metric", {
            "time_ns": time_ns, "name": name, "kind": "gauge", "value": value, "process": None,
            "labels": {**labels, SOURCE: self.source},
        })  # fmt: skip

    def wait(self, waiting: dict[str, int], name: str, time_ns: int) -> None:
        """Keep the beginning of what a later line may end."""
        waiting.pop(name, None)
        if len(waiting) >= MAX_OPEN:
            del waiting[next(iter(waiting))]
            self.given_up += 1
        waiting[name] = time_ns

    def begins_anew(self) -> None:
        """Another start of the engine: what waits, and how it saw its cache, ended with the one before."""
        self.health.ends(self, self.last_ns)
        self.given_up += len(self.requests) + len(self.preempted)
        self.requests, self.preempted = {}, {}

    def finish(self) -> None:
        """What waits when the file ends: an interval without an end, requests without one."""
        self.health.ends(self, None)
        if self.requests:
            self.rows.remark("requests without a line that ends them: no rows", len(self.requests))
        if self.given_up:
            self.rows.remark("requests that waited too long for such a line: no rows", self.given_up)
        if self.preempted:
            self.rows.remark("preempted requests that no line resumes", len(self.preempted))


def duration_ns(value: Any, unit_ns: int) -> int | None:
    """A duration that is written as a number, in ns."""
    try:
        found = float(value) * unit_ns
    except (TypeError, ValueError, OverflowError):
        return None
    return round(found) if 0 <= found <= min(LONGEST_NS, LATEST_TIME_NS) else None
