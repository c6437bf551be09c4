"""Lines of a page -> samples, a family (what one HELP or TYPE describes) at a time.

The library gives up at the first line it does not like, with whatever error, so a family that it refuses is
read again line by line: a bad line costs itself. Lines that contradict each other (a histogram whose count is
not its last bucket) are no reason to lose them: read alone they are samples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric
    from prometheus_client.samples import Sample

    Parser = Callable[[str], Iterable[Metric]]

FAMILY_LINES = 5_000
"""A longer family is read in parts."""
_REFUSALS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NameError, RecursionError)
"""What the library raises on bad text, some of it by mistake (0.26: KeyError where a label is missing)."""
_DESCRIBED = re.compile(r'#\s*(HELP|TYPE|UNIT)\s+("(?:\\.|[^"\\])*"|\S+)(?:\s+(.*))?$')
_KINDS: dict[str, dict[str, str]] = {
    "counter": {"": "counter", "_total": "counter", "_created": "gauge"},
    "gauge": {"": "gauge"},
    "histogram": {
        **dict.fromkeys(("", "_bucket", "_count", "_sum"), "histogram"),
        "_created": "gauge",
    },
    "summary": {**dict.fromkeys(("", "_count", "_sum"), "summary"), "_created": "gauge"},
    "info": {"": "gauge", "_info": "gauge"},
    "stateset": {"": "gauge"},
    "gaugehistogram": dict.fromkeys(("_bucket", "_gcount", "_gsum"), "gauge"),
    "untyped": {},
    "unknown": {},
}
"""Type -> suffix of a sample's name -> kind. What is not here has no kind."""


@dataclass(slots=True)
class Family:
    """Samples that one description covers, in the order of the page.

    name, type: as the page describes them; null when it does not
    bad: lines that are no sample
    exemplars: how many were cut off, because the library refused the line with them
    """

    name: str | None = None
    type: str | None = None
    samples: list[Sample] = field(default_factory=list)
    bad: int = 0
    exemplars: int = 0

    def kind(self, sample: str) -> str | None:
        """The kind of a sample by its name."""
        if self.name is None or self.type is None or not sample.startswith(self.name):
            return None
        return _KINDS[self.type].get(sample[len(self.name) :])


def families(lines: Iterable[bytes], *, openmetrics: bool) -> Iterator[Family]:
    """The families of a page."""
    family = Family()
    text: list[str] = []
    for raw in lines:
        try:
            line = raw.decode()
        except UnicodeDecodeError:
            family.bad += 1
            continue
        if line.startswith("#"):
            found = _DESCRIBED.match(line)
            if not found:
                family.bad += line.split()[:2] == ["#", "TYPE"]
                continue
            name = _unquoted(found[2])
            if name != family.name and (text or family.name):
                yield _read(family, text, openmetrics=openmetrics)
                family, text = Family(), []
            family.name = name
            if found[1] == "TYPE":
                family.type = found[3] if found[3] in _KINDS else None
                family.bad += family.type is None
            continue
        text.append(line)
        if len(text) >= FAMILY_LINES:
            yield _read(family, text, openmetrics=openmetrics)
            family, text = Family(family.name, family.type), []
    yield _read(family, text, openmetrics=openmetrics)


def _read(family: Family, lines: list[str], *, openmetrics: bool) -> Family:
    """Read the lines of a family at once, else one by one."""
    if not lines:
        return family
    parser, end = _parser(openmetrics=openmetrics), "\n# EOF\n" if openmetrics else "\n"
    head = f"# TYPE {_quoted(family.name)} {family.type}\n" if family.name and family.type else ""
    if openmetrics and family.type == "untyped":  # the classic word, which the library refuses here
        head = ""
    # the classic parser adds _total to a counter's name that has none; the page's own name is kept
    cut = (
        "" if openmetrics or family.type != "counter" or (family.name or "").endswith("_total") else "_total"
    )

    def parsed(text: str) -> list[Sample]:
        return [
            sample._replace(name=sample.name.removesuffix(cut))
            if cut and metric.type == "counter"
            else sample
            for metric in parser(text)
            for sample in metric.samples
        ]

    try:
        family.samples = parsed(head + "\n".join(lines) + end)
    except _REFUSALS:
        for line in lines:
            _read_alone(family, line, head, end, parsed)
    return family


def _read_alone(
    family: Family, line: str, head: str, end: str, parsed: Callable[[str], list[Sample]]
) -> None:
    """Read one line as part of its family, else as a sample of no type, else without its exemplar."""
    bare = line.rpartition(" # {")[0]
    for text in (head + line, line, bare) if bare else (head + line, line):
        try:
            found = parsed(text + end)
        except _REFUSALS:
            continue
        family.samples += found
        family.exemplars += text is bare
        return
    family.bad += 1


@cache
def _parser(*, openmetrics: bool) -> Parser:
    """The library's parser; imported when a page is read, because that takes a tenth of a second."""
    if openmetrics:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
    else:
        from prometheus_client.parser import text_string_to_metric_families as parse
    return parse


def _unquoted(name: str) -> str:
    """A name as it is, whether the page writes it in quotes or not."""
    return re.sub(r'\\([\\"])', r"\1", name[1:-1]) if name.startswith('"') else name


def _quoted(name: str | None) -> str:
    """A name as a description writes it."""
    if name is None or re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name):
        return name or ""
    return '"' + name.replace("\\", r"\\").replace('"', r"\"") + '"'
