"""Files of OTLP that hold more than traces, as a Collector writes when all its pipelines share one file.

Metrics become rows; log records are what people and programs wrote, counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources import otlp_metrics
from kvtrace.sources.losses import Loss
from kvtrace.sources.otlp import logs
from kvtrace.sources.otlp.sniffing import LOGS, METRICS, signal_of

if TYPE_CHECKING:
    from kvtrace.importer.staging import Staging
    from kvtrace.sources.decoded import Decoded


class OtherSignals:
    """Takes the payloads of one file that are no traces."""

    def __init__(self, source: str, staging: Staging, *, keep_content: bool) -> None:
        self._source = source
        self._staging = staging
        self._metrics = otlp_metrics.Reader(source, keep_content=keep_content)
        self._logs = 0
        self.rows = 0
        self.notes: dict[str, None] = {}

    def take(self, payload: bytes, *, text: bool) -> bool:
        """Whether a payload was taken; False for traces, and for what is nothing we know."""
        signal = signal_of(payload, text=text)
        if signal == METRICS:
            for part in self._metrics.take(payload, text=text):
                self._stage(part)
        elif signal == LOGS:
            found = logs.judged(payload, text=text)
            self._logs += found.records
            if found.mistake is not None:
                self._staging.losses.append(Loss(self._source, "undecodable", 1, detail=found.mistake))
        return signal in (METRICS, LOGS)

    def finish(self) -> None:
        """Stage what waits, and say what was met."""
        self._stage(self._metrics.rest())
        if self._logs:
            self._staging.add_content({logs.NAME: self._logs})
            self.notes[logs.DROPPED.format(f"{self._logs:,}")] = None

    def _stage(self, part: Decoded) -> None:
        self.rows += self._staging.take(part, self._source, otlp_metrics.FORMAT)[1]
        self.notes |= dict.fromkeys(part.notes)
