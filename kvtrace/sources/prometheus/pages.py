"""Lines -> pages, and which of the two text formats each is.

A page ends at `# EOF`, or where what its first line describes comes again:

    # HELP a ...    page 0
    a 1
    # HELP b ...
    b 1
    # HELP a ...    page 1: `a` is described anew
    a 2

Classic and OpenMetrics share most lines and differ in the unit of timestamps, so that what only OpenMetrics
has decides: `# EOF`, `# UNIT`, its own types, exemplars.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.sources.prometheus.sniffing import BOM
from kvtrace.sources.stream import MIB, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

END = b"# EOF"
PART_BYTES = 64 * MIB
"""A page longer than this is given out in parts, each judged by the lines up to its end."""
_ESCAPED = re.compile(rb"\\.")
_OWN = re.compile(rb'# (?:UNIT\s|TYPE\s+(?:"[^"]*"|\S+)\s+(?:info|stateset|gaugehistogram|unknown)$)')
_SUBJECT = re.compile(rb'#\s*(?:HELP|TYPE|UNIT)\s+(?:"[^"]*"|\S+)|[^#\s{][^\s{]*(?:\{.*\})?|\{.*\}')


@dataclass(slots=True)
class Page:
    """Lines of one page.

    number: which page of its file, from 0
    openmetrics: whether it shows itself to be OpenMetrics, else it is the classic format
    ended: whether it has its closing mark
    last: whether the page is complete, else more parts of it follow
    """

    number: int
    lines: list[bytes] = field(default_factory=list)
    openmetrics: bool = False
    ended: bool = False
    last: bool = True


def split_pages(batches: Iterable[list[bytes] | Undecodable]) -> Iterator[Page | Undecodable]:
    """The pages of a file in order; what was lost in between passes through."""
    page, mark, size, first = Page(0), b"", 0, True
    for batch in batches:
        if isinstance(batch, Undecodable):
            yield batch
            continue
        for raw in batch:
            line = (raw.removeprefix(BOM) if raw.startswith(BOM) else raw).strip()
            if not line:
                continue
            if not first and mark and _again(line, mark):
                yield page
                page, mark, size, first = Page(page.number + 1), b"", 0, True
            if first and (found := subject(line)):
                mark, first = found, False
            page.openmetrics = page.openmetrics or only_openmetrics(line)
            if line == END:
                page.ended = True
                yield page
                page, mark, size, first = Page(page.number + 1), b"", 0, True
                continue
            page.lines.append(line)
            size += len(line)
            if size >= PART_BYTES:
                page.last = False
                yield page
                page, size = Page(page.number, openmetrics=page.openmetrics), 0
    if page.lines:
        yield page


def subject(line: bytes) -> bytes:
    """What a line describes or counts, as it is written; empty for a mere comment."""
    found = _SUBJECT.match(line)
    return found[0] if found else b""


def _again(line: bytes, mark: bytes) -> bool:
    """Whether a line has the same subject, and not one that begins like it."""
    return line.startswith(mark) and (line[len(mark) : len(mark) + 1].isspace() or line == mark)


def only_openmetrics(line: bytes) -> bool:
    """Whether the classic format has no such line."""
    if line.startswith(b"#"):
        return line == END or _OWN.match(line) is not None
    if b" # {" not in line:
        return False
    return b" # {" in b'""'.join(_ESCAPED.sub(b"", line).split(b'"')[::2])  # outside of the texts of labels
