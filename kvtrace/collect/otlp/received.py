"""Exports that were taken, on their way into the staging area."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.collect.otlp.signals import METRICS, TRACES
from kvtrace.sources import otlp_metrics
from kvtrace.sources.otlp import json_lines, logs, protobuf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtrace.collect.intake import Item
    from kvtrace.importer.staging import Staging
    from kvtrace.sources.decoded import Decoded
    from kvtrace.sources.losses import Loss


@dataclass(eq=False)
class Otlp:
    """What one listener received; `at_end` gives what its door counted, `logs` is how many it dropped."""

    name: str
    format: str
    keep_content: bool = False
    spans: int = 0
    other_rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    knocked: bool = False
    logs: int = 0
    at_end: Callable[[], Iterable[Loss]] = tuple
    _metrics: otlp_metrics.Reader | None = None

    @property
    def came(self) -> bool:
        """Whether any export arrived."""
        return self.knocked

    @property
    def promised(self) -> str:
        """What was to come."""
        return "no exporter sent anything"

    def take(self, items: list[Item], staging: Staging) -> None:
        """Decode exports, many at once."""
        exports = [item.content for item in items]
        for is_text, decode in ((False, protobuf.decode), (True, json_lines.decode)):
            bodies = [body for body, text, signal in exports if text is is_text and signal is TRACES]
            if bodies:
                batch = decode(bodies, keep_content=self.keep_content)
                self.spans += staging.take_spans(batch, self.name)
        for body, text, signal in exports:
            if signal is METRICS:
                self._measured(body, staging, text=text)

    def finish(self, staging: Staging) -> None:
        """Say what was refused, and stage what waits."""
        staging.losses.extend(self.at_end())
        if self._metrics is not None:
            self._stage(self._metrics.rest(), staging)
        if self.logs:
            staging.add_content({logs.NAME: self.logs})
            self.notes[logs.DROPPED.format(f"{self.logs:,}")] = None

    def _measured(self, body: bytes, staging: Staging, *, text: bool) -> None:
        """Decode metrics; their rows wait until they are many."""
        if self._metrics is None:  # a listener has its name once it listens
            self._metrics = otlp_metrics.Reader(self.name, keep_content=self.keep_content)
        for part in self._metrics.take(body, text=text):
            self._stage(part, staging)

    def _stage(self, part: Decoded, staging: Staging) -> None:
        _spans, rows = staging.take(part, self.name, otlp_metrics.FORMAT)
        self.other_rows += rows
        self.notes |= dict.fromkeys(part.notes)
