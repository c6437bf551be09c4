"""Numbers and names in sentences. Null reads "not observed", never 0.

A name that came from outside may hold control characters or text that turns the direction of writing:
`visible` makes such characters readable. HTML and plotly's pseudo-HTML are escaped where they are written.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

NOT_OBSERVED = "not observed"
NONE = "\N{EN DASH}"
"""Does not apply here: neither 0 nor unknown."""
LONGEST_NAME = 96
_KIB, _UNITS = 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

CLASS_WORDS: dict[str, str] = {
    "compute": "compute",
    "wait_load": "engine blocked on a load",
    "wait_store": "engine blocked on a store",
    "wait_lookup": "engine blocked on a lookup",
    "wait_lock": "engine blocked on a lock",
    "queue_capacity": "queue: no capacity",
    "load": "load",
    "load_wait": "load: waiting, nothing copying",
    "lock": "waiting for a lock",
    "lookup": "lookup",
    "store": "store",
    "interference": "another request's wait",
    "queue": "queue: other reasons",
    "other": "not recorded",
}
"""Class of the partition -> what a reader sees."""


def visible(name: object, longest: int = LONGEST_NAME) -> str:
    """A name from outside on one line: control and direction characters spelled out, long ones cut."""
    if name is None:
        return NOT_OBSERVED
    text = "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else char
        for char in str(name)[: 2 * longest]
    )
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


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
            return f"{digits(ns / scale)} {unit}"
    return f"{digits(ns / 3600e9)} h"


def utc(time_ns: int) -> str:
    """A unix time as ISO 8601 in UTC, to the nanosecond: a float would round it."""
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def count(number: float | None) -> str:
    """A count with thousands apart: 1,234,567."""
    return NOT_OBSERVED if number is None else f"{number:,.0f}"


def size(number: float | None) -> str:
    """Bytes in binary units: 4.0 MiB."""
    if number is None:
        return NOT_OBSERVED
    value, unit = float(number), 0
    while abs(value) >= _KIB and unit < len(_UNITS) - 1:
        value, unit = value / _KIB, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{digits(value)} {_UNITS[unit]}"


def many(number: int, noun: str, plural: str | None = None) -> str:
    """A count and its noun: 1 request, 2 requests."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


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


def digits(value: float) -> str:
    """Three significant digits, no exponent."""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100 or value == int(value)
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
    )
