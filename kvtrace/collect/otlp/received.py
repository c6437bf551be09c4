"""Exports that were taken, on their way into the staging area."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.sources.otlp import json_lines, protobuf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtrace.collect.intake import Item
    from kvtrace.importer.staging import Staging
    from kvtrace.sources.losses import Loss


@dataclass(eq=False)
class Otlp:
    """What one listener received; `at_end` gives what its door counted."""

    name: str
    format: str
    keep_content: bool = False
    spans: int = 0
    other_rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    knocked: bool = False
    at_end: Callable[[], Iterable[Loss]] = tuple

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
        for is_text, decode in ((False, protobuf.decode), (True, json_lines.decode)):
            bodies = [body for body, text in (item.content for item in items) if text is is_text]
            if bodies:
                batch = decode(bodies, keep_content=self.keep_content)
                self.spans += staging.take_spans(batch, self.name)

    def finish(self, staging: Staging) -> None:
        """Say what was refused."""
        staging.losses.extend(self.at_end())
