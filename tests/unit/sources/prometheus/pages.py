"""Decodes pages that a test writes, and shows rows as a test writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.sources.prometheus import decode

if TYPE_CHECKING:
    import polars as pl
    from kvtrace.sources.losses import Loss


@dataclass(frozen=True)
class Read:
    rows: list[dict[str, Any]]
    losses: list[Loss]
    notes: list[str]

    def samples(self) -> list[tuple[str, dict[str, str], float | None]]:
        """(name, the page's own labels, value)."""
        return [
            (
                row["name"],
                {k: v for k, v in row["labels"].items() if not k.startswith("kvtrace.")},
                row["value"],
            )
            for row in self.rows
        ]

    def kinds(self) -> dict[str, str | None]:
        return {row["name"]: row["kind"] for row in self.rows}

    def pages(self) -> list[tuple[str, str]]:
        return [(row["name"], row["labels"]["kvtrace.page"]) for row in self.rows]

    def lost(self) -> dict[str, int]:
        return {loss.detail or "": loss.count for loss in self.losses}


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    rows = frame.to_dicts()
    for row in rows:
        entries = row["labels"]
        row["labels"] = {entry["key"]: entry["value"] for entry in entries}
        assert len(row["labels"]) == len(entries)
    return rows


def page(text: str | bytes, source: str = "page.txt") -> Read:
    """What a page gives; lines may be indented."""
    raw = text.encode() if isinstance(text, str) else text
    parts = list(decode([raw.split(b"\n")], source))
    return Read(
        [row for part in parts if "metric" in part.tables for row in rows_of(part.tables["metric"])],
        [loss for part in parts for loss in part.losses],
        [note for part in parts for note in part.notes],
    )
