"""Numbers and names as a reader of a page sees them: those of analyses/_text, bytes, and plotly's labels."""

from __future__ import annotations

from kvtrace.analyses._text import (
    LONGEST_NAME,
    NONE,
    NOT_OBSERVED,
    bounded,
    count,
    digits,
    duration,
    listed,
    many,
    share,
    visible,
)

__all__ = [
    "LONGEST_NAME", "NONE", "NOT_OBSERVED", "bounded", "count", "duration", "exact", "listed", "many",
    "plain", "share", "size", "visible",
]  # fmt: skip

_KIB, _UNITS = 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def plain(name: object, longest: int = LONGEST_NAME) -> str:
    """A name from outside for plotly's labels and hover texts, where `<b>` and `&lt;` mean something."""
    return visible(name, longest).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def size(number: float | None) -> str:
    """Bytes in binary units: 4.0 MiB."""
    if number is None:
        return NOT_OBSERVED
    value, unit = float(number), 0
    while abs(value) >= _KIB and unit < len(_UNITS) - 1:
        value, unit = value / _KIB, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{digits(value)} {_UNITS[unit]}"


def exact(ns: int) -> str:
    """A time to the nanosecond, in ms: 1,234.567890 ms."""
    whole, rest = divmod(abs(ns), 1_000_000)
    return f"{'-' if ns < 0 else ''}{whole:,}.{rest:06d} ms"
