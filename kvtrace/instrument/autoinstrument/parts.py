"""Rows that come in parts (open, update, close), until they are whole: a span is sent when it is over.

open    span 7: request, start 10 ─┐
close   span 7: end 90, bytes 4096 ┴─► one row: a later fact that is known wins
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

MOST_OPEN = 10_000
"""Operations that may be under way; the oldest is forgotten first."""


class Parts:
    """What is known of operations that have not ended."""

    def __init__(self) -> None:
        self._open: dict[object, dict[str, Any]] = {}

    def add(self, part: str, said: dict[str, Any]) -> dict[str, Any] | None:
        """Take one part; the whole row when it was the last."""
        key = said.pop("span_id", None)
        known = self._open.pop(key, {}) | said
        if part == "close":
            return known
        self._open[key] = known
        if len(self._open) > MOST_OPEN:
            self._open.pop(next(iter(self._open)), None)
        return None
