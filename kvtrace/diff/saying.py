"""Why a gate says what it says: one sentence with numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import digits, duration, many
from kvtrace.diff import permutation

if TYPE_CHECKING:
    from kvtrace.diff.findings import Finding
    from kvtrace.diff.gates import Gate
    from kvtrace.diff.judging import Sides


def amount(value: float, unit: str, *, signed: bool = True) -> str:
    """A change in its unit: +5.0%, -3.1 ms, +2 tokens."""
    sign = ("+" if value > 0 else "-" if value < 0 else "") if signed else ""
    size = abs(value)
    if unit == "relative":
        return f"{sign}{size * 100:.3g}%"
    if unit == "ns":
        return f"{sign}{duration(size)}"
    if unit == "count":
        return f"{sign}{digits(size)}"
    return f"{sign}{digits(size)} {unit.removesuffix('s') if size == 1 else unit}"


def because(finding: Finding, gate: Gate, *, keys: int) -> str:
    """The sentence of a gate that was tested."""
    if finding.change is None or finding.ci_low is None or finding.ci_high is None:
        return "not observed in every run"
    unit = finding.unit
    seen = (
        f"{amount(finding.change, unit)} (95%: {amount(finding.ci_low, unit)} to "
        f"{amount(finding.ci_high, unit)}), {_compared(finding, keys)}"
    )
    matters = amount(gate.min_effect, unit, signed=False)
    p = f"p {finding.p_value:.3g}, over all gates {finding.p_adjusted:.3g}"
    return {
        "worse": f"{seen}: more than the {matters} that do not matter; {p}",
        "better": f"{seen}: better by more than {matters}",
        "same": f"{seen}: the whole interval is within {matters}",
        None: "not observed in every run",
    }.get(finding.verdict, f"{seen}: neither within {matters} nor surely beyond; {p}; more runs would tell")


def too_few(gate: Gate, sides: Sides) -> str:
    """The sentence of a gate that so many runs cannot fail."""
    needed = permutation.runs_needed(gate.alpha)
    takes = "no number of runs reaches it" if needed is None else f"it takes {needed}+{needed} runs"
    if min(sides.base, sides.head) == 1:
        takes += ", or one a side with two A/A runs (--noise) at least"
    least = permutation.smallest_p(sides.base, sides.head)
    return f"{sides.runs} runs give no p below {least:.2g}, and alpha is {gate.alpha:g}: {takes}"


def _compared(finding: Finding, keys: int) -> str:
    if finding.paired:
        return f"{many(keys, 'request')} paired"
    return "unpaired (no request is in every run, or one is twice in a run)"
