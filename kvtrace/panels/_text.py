"""Numbers and names as a reader of a page sees them: those of analyses/_text, and plotly's labels."""

from __future__ import annotations

from kvtrace.analyses._text import (
    LONGEST_NAME,
    NONE,
    NOT_OBSERVED,
    bounded,
    count,
    duration,
    listed,
    many,
    share,
    size,
    visible,
)

__all__ = [
    "LONGEST_NAME", "NONE", "NOT_OBSERVED", "bounded", "count", "duration", "exact", "listed", "many",
    "plain", "share", "size", "visible",
]  # fmt: skip


def plain(name: object, longest: int = LONGEST_NAME) -> str:
    """A name from outside for plotly's labels and hover texts, where `<b>` and `&lt;` mean something."""
    return visible(name, longest).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def exact(ns: int) -> str:
    """A time to the nanosecond, in ms: 1,234.567890 ms."""
    whole, rest = divmod(abs(ns), 1_000_000)
    return f"{'-' if ns < 0 else ''}{whole:,}.{rest:06d} ms"
