"""The end: the importer joins what was staged and writes it, and each source gives its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.collect.feeding import merged
from kvtrace.importer.joining import join
from kvtrace.importer.writing import write_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.collect.feeding import Source
    from kvtrace.collect.settings import Settings
    from kvtrace.importer.staging import Staging


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What one source gave: where it is, rows, what was lost by cause, and remarks."""

    name: str
    format: str
    spans: int
    other_rows: int
    lost: dict[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The run that was written, what each source gave, and how many rows each table has."""

    run: Path
    sources: tuple[SourceReport, ...]
    rows: dict[str, int]


def close(settings: Settings, folder: Path, staging: Staging, sources: Sequence[Source]) -> CollectReport:
    """Write the run of what was staged; it appears whole."""
    for source in sources:
        source.finish(staging)
    staging.losses = merged(staging.losses)
    reports = tuple(_report(source, staging) for source in sources)
    rows = write_run(
        folder / "run", staging, join(staging), reports,
        keep_content=settings.keep_content, group=settings.group, kind="collect",
    )  # fmt: skip
    (folder / "run").replace(settings.out)
    return CollectReport(settings.out, reports, rows)


def _report(source: Source, staging: Staging) -> SourceReport:
    lost: Counter[str] = Counter()
    for loss in staging.losses:
        if loss.source == source.name:
            lost[loss.cause] += loss.count
    notes = dict(source.notes)
    if not source.came:
        notes[f"nothing came: {source.promised}"] = None
    return SourceReport(source.name, source.format, source.spans, source.other_rows, dict(lost), tuple(notes))
