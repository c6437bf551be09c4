"""The findings of diff as text, as a Markdown summary and as JUnit XML; names from outside are escaped."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from kvtrace.cli._text import escaped, safe
from kvtrace.diff.saying import amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.diff.findings import Finding

_WORDS = {0: "pass", 1: "regression", 2: "bad input", 3: "not comparable", 4: "inconclusive"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~@$-])")


def text(findings: Sequence[Finding], code: int) -> Iterator[str]:
    """A sentence a gate, what matters first, and the verdict."""
    for finding in sorted(findings, key=_rank):
        yield safe(f"{finding.metric} {_verdict(finding)}: {finding.because}.")
    yield f"{_WORDS[code]}: {_counts(findings)}."


def markdown(findings: Sequence[Finding], code: int) -> Iterator[str]:
    """A table for a pull request's summary."""
    yield f"### kvtrace diff: {_WORDS[code]}"
    yield ""
    yield "| metric | base | head | change | 95% | adjusted p | runs | verdict | because |"
    yield "|---|--:|--:|--:|---|--:|---|---|---|"
    for finding in sorted(findings, key=_rank):
        cells = (
            finding.metric, _level(finding, finding.base), _level(finding, finding.head),
            _moved(finding, finding.change), _interval(finding),
            "" if finding.p_adjusted is None else f"{finding.p_adjusted:.3g}",
            finding.runs, _verdict(finding), finding.because,
        )  # fmt: skip
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def junit(findings: Sequence[Finding], code: int) -> Iterator[str]:
    """A test case a gate: worse is a failure, what cannot be said an error, what was not observed skipped."""
    failures = sum(finding.verdict == "worse" for finding in findings)
    errors = sum(finding.verdict == "inconclusive" for finding in findings)
    skipped = sum(finding.verdict is None for finding in findings)
    numbers = f'tests="{len(findings)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<testsuites name="kvtrace diff: {_WORDS[code]}" {numbers}>'
    yield f'  <testsuite name="kvtrace diff" {numbers}>'
    elements = {"worse": "failure", "inconclusive": "error", None: "skipped"}
    for finding in findings:
        yield f'    <testcase classname="kvtrace.diff" name={_attribute(finding.metric)}>'
        if element := elements.get(finding.verdict):
            yield f"      <{element} message={_attribute(finding.because)}/>"
        else:
            yield f"      <system-out>{_xml(finding.because)}</system-out>"
        yield "    </testcase>"
    yield "  </testsuite>"
    yield "</testsuites>"


def _rank(finding: Finding) -> int:
    return ("worse", "inconclusive", "better", "same", None).index(finding.verdict)


def _verdict(finding: Finding) -> str:
    return finding.verdict or "not observed"


def _counts(findings: Sequence[Finding]) -> str:
    told = [_verdict(finding) for finding in sorted(findings, key=_rank)]
    return ", ".join(f"{told.count(word)} {word}" for word in dict.fromkeys(told)) or "no gate"


def _level(finding: Finding, value: float | None) -> str:
    """A side's mean, in the metric's own unit."""
    if value is None:
        return "not observed"
    ending = finding.metric.rpartition("_")[2]
    unit = ending if ending in ("ns", "tokens", "bytes") else finding.unit
    return amount(value, "count" if unit == "relative" else unit, signed=value < 0)


def _moved(finding: Finding, value: float | None) -> str:
    return "" if value is None else amount(value, finding.unit)


def _interval(finding: Finding) -> str:
    low, high = _moved(finding, finding.ci_low), _moved(finding, finding.ci_high)
    return f"{low} to {high}" if low and high else ""


def _cell(value: str) -> str:
    """One line, inert in Markdown and in the HTML that it may hold."""
    return escape(_MARKDOWN.sub(r"\\\1", escaped(value)), quote=False)


def _xml(value: str) -> str:
    return escape(escaped(value), quote=False)


def _attribute(value: str) -> str:
    return quoteattr(escaped(value))
