"""What moved in a regression? How far on average and at p90, which class of time, and which requests.

requests.py   values a request -> how far each moved, and the ones that carry the change
classes.py    the partition of exposure -> the class of time that grew
traits.py     what the requests that carry it have in common, and the others have not

Only what was observed is said: an upper bound is no measure, an unknown value has no trait, and a class, a
set of requests or a trait that does not stand out is not named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.diff.causes import classes, requests, traits
from kvtrace.diff.saying import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.diff.gates import Unit
    from kvtrace.run import Run

__all__ = ["Sided", "cause", "cause_of_tail"]


@dataclass(frozen=True)
class Sided:
    """The runs of both sides, and a frame a run with the values of its requests (`key`, `value`)."""

    base: Sequence[Run]
    head: Sequence[Run]
    values: Sequence[pl.DataFrame]

    @property
    def before(self) -> Sequence[pl.DataFrame]:
        """The values of base."""
        return self.values[: len(self.base)]

    @property
    def after(self) -> Sequence[pl.DataFrame]:
        """The values of head."""
        return self.values[len(self.base) :]


def cause(metric: str, unit: Unit, sided: Sided, *, higher_is_better: bool = False) -> str | None:
    """The end of a regression's sentence; null where no request has a value.

    Args:
        metric: what got worse
        unit: the metric's own
        sided: the runs, and the metric's values
        higher_is_better: whether it got worse by falling
    """
    if all(frame.height == frame["key"].null_count() <= 1 for frame in sided.values):
        return None  # one number a run has no requests
    paired = requests.paired(sided.before, sided.after)
    mean, p90 = requests.shifts(sided.before, sided.after, paired)
    said = f"{amount(mean, unit)} mean and {amount(p90, unit)} p90"
    window = None if higher_is_better else classes.WINDOWS.get(metric)
    grown = classes.grown(window, sided.base, sided.head, paired) if window else None
    said += f", {_part(grown)}" if grown else ""
    if paired is None:
        return said
    moved = requests.moves(paired)
    if higher_is_better:
        moved = moved.with_columns(moved=-pl.col("moved"))
    carried = requests.carriers(moved["moved"])
    if carried is None:
        return said
    return f"{said}; {_carriers(moved['key'], carried, sided)}"


def cause_of_tail(metric: str, slow: pl.Series, sided: Sided) -> str | None:
    """The end of the sentence of a tail that got worse: what its requests wait for, and who they are.

    Args:
        metric: whose tail
        slow: keys of the requests that are much slower
        sided: the runs, and the metric's values
    """
    paired = requests.paired(sided.before, sided.after)
    if paired is None or slow.is_empty():
        return None
    theirs = paired.filter(pl.col("key").is_in(slow.implode()))
    mean = float(requests.moves(theirs)["moved"].mean())  # type: ignore[arg-type]
    said = f"these {amount(mean, 'ns')} mean"
    window = classes.WINDOWS.get(metric)
    if window and (grown := classes.grown(window, sided.base, sided.head, theirs)):
        said += f", {_part(grown)}"
    carried = paired["key"].is_in(slow.implode())
    return f"{said}; {_carriers(paired['key'], carried, sided)}"


def _part(grown: classes.Grown) -> str:
    whose = "" if grown.whole else f" (over {many(grown.requests, 'request')} whose time is known to the end)"
    return f"{amount(grown.mean_ns, 'ns')} of the mean {grown.words}{whose}"


def _carriers(keys: pl.Series, carried: pl.Series, sided: Sided) -> str:
    number = int(carried.sum())
    if number == keys.len():
        return f"all {many(number, 'request')} carry it" if number > 1 else "1 request carries it"
    carry = "carries" if number == 1 else "carry"
    said = f"{number:,} of {many(keys.len(), 'request')} {carry} it"
    common = traits.common(traits.known((*sided.base, *sided.head), keys), carried)
    return f"{said}, {common}" if common else said
