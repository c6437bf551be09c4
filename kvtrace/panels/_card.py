"""What a panel's card shows beside its picture: sentences, stories and a small table, all plain text.

A panel's module may define `notes(data) -> tuple[str, ...]`, `stories(data) -> tuple[Story, ...]` and
`table(data) -> Table | None`; its data has `empty`, the sentence that says why there is nothing to see, or
None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """Sentences about one thing of the picture, under its name; the page escapes them."""

    name: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A small table of text; the page escapes every cell."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    names: int = 1
    """How many columns at the left are names; the others are numbers and stand to the right."""
    keys: tuple[tuple[float | None, ...], ...] = ()
    """A number a cell, by which its column sorts; None sorts a name by its text. Without keys: no sorting."""
