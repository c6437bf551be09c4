"""Payload after payload into rows; what changes add up to, and what was counted, lasts over all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.dialects import resources
from kvtrace.sources.losses import Loss
from kvtrace.sources.otlp.batch import Gate
from kvtrace.sources.otlp.json_attributes import MISTAKES
from kvtrace.sources.otlp.json_lines import reason
from kvtrace.sources.otlp.judging import HURTS, hurts
from kvtrace.sources.otlp.protobuf_loop import CORRUPT
from kvtrace.sources.otlp_metrics import protobuf, text
from kvtrace.sources.otlp_metrics.rows import LOSSES, NOTES, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.otlp_metrics.points import Metric, Point
    from kvtrace.sources.stream import Undecodable

MAX_RESOURCES = 10_000
"""Resources that are described as processes; rows of further ones name their process alone."""


class Reader:
    """Decodes payloads of one source."""

    def __init__(self, source: str, *, keep_content: bool = False) -> None:
        self._source = source
        self._gate = Gate(keep_content, Counter())
        self._rows = Rows(source)
        self._broken: Counter[str] = Counter()
        self._resources: set[tuple[tuple[str, str], ...]] = set()
        self._processes: list[dict[str, str | None]] = []

    def lose(self, item: Undecodable) -> None:
        """Count what never became a payload."""
        self._broken[item.detail] += item.count

    def take(self, payload: bytes, *, text: bool) -> Iterator[Decoded]:
        """Decode one payload, which has to be read to its end; a part whenever enough rows wait.

        One that is broken, or made to hurt, is counted.
        """
        if hurts(payload, text=text):
            self._broken[HURTS] += 1
            return
        last: dict[str, str] | None = None
        for resource, metric, point in self._points(payload, is_text=text):
            if resource is not last:
                self._describe(resource)
                last = resource
            self._rows.take(metric, point)
            if self._rows.full:
                yield self.part()

    def _points(
        self, payload: bytes, *, is_text: bool
    ) -> Iterator[tuple[dict[str, str], Metric, Point | None]]:
        """The points of a payload; one that is broken is counted."""
        try:
            if is_text:
                yield from text.decode(payload, self._gate)
            else:
                yield from protobuf.decode(payload, self._gate)
        except DecodeError:
            self._broken[CORRUPT] += 1
        except MISTAKES as error:
            self._broken[reason(error)] += 1

    def _describe(self, resource: dict[str, str]) -> None:
        key = tuple(resource.items())
        if key not in self._resources and len(self._resources) < MAX_RESOURCES:
            self._resources.add(key)
            self._processes += resources.describe([resource])

    def part(self) -> Decoded:
        """What waits: rows, processes, content that was dropped."""
        tables = {"metric": self._rows.frame()} if len(self._rows) else {}
        found = Decoded(tables, processes=tuple(self._processes), content=dict(self._gate.dropped))
        self._processes = []
        self._gate.dropped.clear()
        return found

    def rest(self) -> Decoded:
        """The last part, with all losses and notes."""
        counted = self._rows.counted
        broken = [Loss(self._source, "undecodable", n, detail=said) for said, n in self._broken.items()]
        lost = [
            Loss(self._source, cause, counted[what], detail=detail)
            for what, (cause, detail) in LOSSES.items()
            if counted[what]
        ]
        notes = [words.format(f"{counted[what]:,}") for what, words in NOTES.items() if counted[what]]
        last = self.part()
        return Decoded(
            last.tables, processes=last.processes, losses=(*broken, *lost), content=last.content,
            notes=tuple(notes),
        )  # fmt: skip
