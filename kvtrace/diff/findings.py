"""What comes out: a row a gate."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.diff.verdicts import Verdict

COLUMNS = pl.Schema(
    {
        "metric": pl.String,
        "base": pl.Float64,
        "head": pl.Float64,
        "change": pl.Float64,
        "unit": pl.String,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "p_value": pl.Float64,
        "p_adjusted": pl.Float64,
        "runs": pl.String,
        "paired": pl.Boolean,
        "verdict": pl.String,
        "because": pl.String,
    }
)


@dataclass(frozen=True)
class Finding:
    """One gate's answer; the fields are the columns.

    metric: what was compared
    base, head: either side's mean, in the metric's own unit (a geometric mean where the unit is relative)
    change: head against base, in `unit`
    unit: relative (0.05 is +5%), or ns, tokens, bytes, count
    ci_low, ci_high: 95% interval of the change
    p_value: one-sided, of moving to the bad side
    p_adjusted: the same over all gates
    runs: runs a side, "5+5"
    paired: whether the same requests were compared; null where no request was
    verdict: worse, better, same or inconclusive; null: not observed
    because: why, one sentence
    """

    metric: str
    base: float | None = None
    head: float | None = None
    change: float | None = None
    unit: str = "count"
    ci_low: float | None = None
    ci_high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    runs: str = ""
    paired: bool | None = None
    verdict: Verdict | None = None
    because: str = ""


def frame(findings: Iterable[Finding]) -> pl.DataFrame:
    """The rows; none: the same columns."""
    return pl.DataFrame([astuple(finding) for finding in findings], schema=COLUMNS, orient="row")
