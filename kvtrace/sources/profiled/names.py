"""Which requests does the name of a range name?"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvtrace.sources.records import MAX_TEXT, text

MOST_MEMBERS = 4096
LONGEST = 1 << 17
"""Characters of a range that names many requests; what names none is no longer than any other name."""
_OWN = re.compile(r"kvtrace:(.+):(load|store)", re.DOTALL)
_ANYBODYS = re.compile(r"request(?:_id)?[:=] ?(\S+)")


class Named(NamedTuple):
    """For whom a range works.

    requests: one request, or several that share what happens inside
    op: load or store, where the range says so; it decides for copies that stay on the device
    own: kvtrace itself named it
    """

    requests: tuple[str, ...]
    op: str | None
    own: bool


def range_name(name: str | None) -> str | None:
    """The name of a range that is kept; None for none, and for one that is too long to be a name."""
    if name is None or text(name) is not None:
        return text(name)
    return name if len(name) <= LONGEST and named(name) is not None else None


def named(name: str) -> Named | None:
    """What a range's name says; None when it names no request.

    kvtrace joins the ids of several requests with commas and writes `-` for nobody; an id that itself has a
    comma cannot be told from several.
    """
    found = _OWN.fullmatch(name)
    if found:
        ids = [each for each in found[1].split(",") if each]
        requests = tuple(dict.fromkeys(each for each in ids if len(each) <= MAX_TEXT))
        if not requests or found[1] == "-" or len(requests) > MOST_MEMBERS:
            return None
        return Named(requests, found[2], own=True)
    found = _ANYBODYS.fullmatch(name)
    return Named((found[1],), None, own=False) if found and len(found[1]) <= MAX_TEXT else None
