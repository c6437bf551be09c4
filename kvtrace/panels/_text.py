"""Numbers and names as a reader sees them. Null reads "not observed", never 0.

A name that came from outside may hold markup, control characters or text that turns the direction of
writing: `visible` makes such characters readable, `plain` also escapes the pseudo-HTML that plotly
understands in labels and hover texts. HTML itself is escaped by the page's template.
"""

from __future__ import annotations

import unicodedata

NOT_OBSERVED = "not observed"
NONE = "\N{EN DASH}"
"""Does not apply here: neither 0 nor unknown."""
LONGEST_NAME = 96
_KIB, _UNITS = 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def visible(name: object, longest: int = LONGEST_NAME) -> str:
    """A name from outside on one line: control and direction characters spelled out, long ones cut."""
    if name is None:
        return NOT_OBSERVED
    text = "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else char
        for char in str(name)[: 2 * longest]
    )
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(name: object, longest: int = LONGEST_NAME) -> str:
    """A name from outside for plotly's labels and hover texts, where `<b>` and `&lt;` mean something."""
    return visible(name, longest).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def duration(ns: float | None) -> str:
    """A time in the unit that suits it: 12.3 ms."""
    if ns is None:
        return NOT_OBSERVED
    size = abs(ns)
    for limit, unit, scale in (
        (1e3, "ns", 1),
        (1e6, "µs", 1e3),
        (1e9, "ms", 1e6),
        (120e9, "s", 1e9),
        (7200e9, "min", 60e9),
    ):
        if size < limit:
            return f"{_digits(ns / scale)} {unit}"
    return f"{_digits(ns / 3600e9)} h"


def count(number: float | None) -> str:
    """A count with thousands apart: 1,234,567."""
    return NOT_OBSERVED if number is None else f"{number:,.0f}"


def many(number: int, noun: str, plural: str | None = None) -> str:
    """A count and its noun: 1 request, 2 requests."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(number: float | None) -> str:
    """Bytes in binary units: 4.0 MiB."""
    if number is None:
        return NOT_OBSERVED
    value, unit = float(number), 0
    while abs(value) >= _KIB and unit < len(_UNITS) - 1:
        value, unit = value / _KIB, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{_digits(value)} {_UNITS[unit]}"


def share(part: float | None, whole: float | None) -> str:
    """A part of a whole in percent; of nothing there is no share."""
    if part is None or whole is None:
        return NOT_OBSERVED
    if whole == 0:
        return NONE
    percent = 100 * part / whole
    return "0 %" if percent == 0 else "< 0.1 %" if abs(percent) < 0.1 else f"{percent:.1f} %"


def bounded(text: str, bound: str) -> str:
    """An upper bound says so, in front of every number."""
    if bound != "upper" or text == NOT_OBSERVED:
        return text
    return f"<= {text.removeprefix('< ')}"


def listed(names: list[str], most: int = 6) -> str:
    """Names in a sentence: a, b and c; a long list is cut and counted."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _digits(value: float) -> str:
    """Three significant digits, no exponent."""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100 or value == int(value)
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
    )
