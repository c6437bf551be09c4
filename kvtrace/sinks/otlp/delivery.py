"""A bounded queue and a thread between the rows and a collector: it may be slow or gone, and nobody waits.

    offer() ─► queue (LIMIT_ROWS) ─► wait GRACE_SECONDS ─► spans ─► sampler ─► exporter ─► collector
                 └─ full: not delivered, counted             └─ refused, late: not delivered, counted

Rows wait a little because the process that saw a request's caller, and the one that scheduled it, write
spools of their own: what is needed to put a row into its caller's trace may arrive a second after the row.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.export import SpanExportResult

from kvtrace.sinks.otlp.complaints import Complaints
from kvtrace.sinks.otlp.destination import exporter, shown
from kvtrace.sinks.otlp.sampling import Sampling
from kvtrace.sinks.otlp.spans import Spans
from kvtrace.sinks.otlp.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

LIMIT_ROWS = 200_000
GRACE_SECONDS = 2.5
BATCH_SPANS = 1024
CLOSING_SECONDS = 10.0
_OVER: str | None = "the run was over"
_TABLES = ("span", "alias", "process")


@dataclass(slots=True)
class Delivered:
    """How many rows the collector took, sampling left out, and it did not get, with the first reason."""

    sent: int = 0
    left_out: int = 0
    failed: int = 0
    reason: str | None = None


class Delivery:
    """Sends rows to one collector until it is closed."""

    def __init__(self, url: str) -> None:
        self.place = shown(url)
        self._complaints = Complaints()
        self._exporter = exporter(url)
        self._traces = Traces()
        self._spans = Spans(self._traces)
        self._sampling = Sampling(self._traces)
        self._disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        self._queue: deque[tuple[float, dict[str, pa.Table]]] = deque()
        self._news: deque[dict[str, pa.Table]] = deque()
        self._done = Delivered()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = self._over = False
        self._thread = threading.Thread(target=self._work, name="kvtrace-otlp", daemon=True)
        self._thread.start()

    def offer(self, tables: Mapping[str, pa.Table]) -> None:
        """Take rows for delivery; returns at once. What the queue has no room for is not delivered."""
        own = {name: tables[name] for name in _TABLES if name in tables}
        if self._disabled or not own:
            return
        with self._changed:
            rows = own.get("span")
            if rows is not None:
                room = min(LIMIT_ROWS - self._waiting, rows.num_rows)
                self._not_delivered(rows.slice(room), "the collector is slower than the engine")
                own["span"] = rows.slice(0, room)
                self._waiting += room
            self._queue.append((time.monotonic(), own))
            self._news.append(own)
            self._changed.notify()

    def close(self, timeout_seconds: float = CLOSING_SECONDS) -> Delivered:
        """Deliver what waits, for so long at most; what is left then is not delivered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        with self._changed:
            self._over = True
            for _, tables in self._queue:
                if "span" in tables:
                    self._waiting -= tables["span"].num_rows
                    self._not_delivered(tables["span"], _OVER)
            self._queue.clear()
        self._exporter.shutdown()  # ends the pause before a repeated attempt
        self._thread.join(1.0)
        with self._changed:
            self._done.failed += self._waiting  # the exporter hangs with these
            self._waiting = 0
            return self._done

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (ripe := self._ripe()):
                    if self._closing:
                        return
                    self._changed.wait(self._pause())
                news = list(self._news)
                self._news.clear()
            for tables in news:
                self._traces.learn(tables)
            if "span" in ripe:
                self._send(ripe["span"])

    def _ripe(self) -> dict[str, pa.Table]:
        """The oldest that waits, if it waited long enough."""
        if self._queue and (self._closing or not self._pause()):
            return self._queue.popleft()[1]
        return {}

    def _pause(self) -> float | None:
        """Seconds until the oldest is ripe; None while there is nothing."""
        return max(0.0, self._queue[0][0] + GRACE_SECONDS - time.monotonic()) if self._queue else None

    def _send(self, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, BATCH_SPANS):
            part = rows.slice(start, BATCH_SPANS)
            left_out, sent, reason = (0, 0, _OVER) if self._over else self._export(part)
            with self._changed:
                self._waiting -= part.num_rows
                self._done.left_out += left_out
                self._done.sent += sent
                if reason is not None:
                    self._not_delivered(part, reason)

    def _export(self, part: pa.Table) -> tuple[int, int, str | None]:
        """(left out by sampling, sent, why not)."""
        try:
            spans = [span for span in self._spans.of(part) if self._sampling.takes(span)]
            if not spans:
                return part.num_rows, 0, None
            taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - a collector's trouble is counted, it ends nothing
            return 0, 0, f"{type(error).__name__}: {error}"
        if taken:
            return part.num_rows - len(spans), len(spans), None
        return 0, 0, self._complaints.last or "the exporter gives no reason"

    def _not_delivered(self, rows: pa.Table, reason: str | None) -> None:
        """Count rows; the lock is held."""
        if not rows.num_rows:
            return
        done = self._done
        done.failed += rows.num_rows
        done.reason = done.reason or reason
