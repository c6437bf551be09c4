"""kvtrace compare: groups of runs of the same work, side by side, and what each step brought.

phase.py       the measured phase of a run that holds its own warm-up
bases.py       what run.json repeats of the plan: groups, their bases, what may differ
refusing.py    which runs may stand side by side, and why not
warm.py        stores that were not over when the measured phase began
measures.py    what is measured of one run
intervals.py   how far a number may be off: over runs, or inside the only one
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.diff.pairing import pair
from kvtrace.diff.welch import welch
from kvtrace.errors import InputError, NotComparableError, UsageError
from kvtrace.experiment.groups import intervals
from kvtrace.experiment.groups.bases import bases, told_groups, told_may_differ
from kvtrace.experiment.groups.measures import MEASURES, measured
from kvtrace.experiment.groups.phase import begins, measured_part
from kvtrace.experiment.groups.refusing import refused
from kvtrace.experiment.groups.warm import said
from kvtrace.experiment.plan import Fixed, Plan, own_slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvtrace.diff.welch import Bounds
    from kvtrace.experiment.groups.measures import Found
    from kvtrace.run import Run

__all__ = ["COLUMNS", "ORDER", "group_names", "groups"]

COLUMNS = pl.Schema(
    {
        "group": pl.String,
        "metric": pl.String,
        "unit": pl.String,
        "value": pl.Float64,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "interval": pl.String,
        "runs": pl.Int64,
        "requests": pl.Int64,
        "against": pl.String,
        "change": pl.Float64,
        "change_low": pl.Float64,
        "change_high": pl.Float64,
        "paired": pl.Boolean,
        "because": pl.String,
    }
)
ORDER = ("no_reuse", "gpu_prefix", "tiered", "tiered_cut")
"""The closed loop; groups of other names follow in the order in which they are given."""
UNSEEN = "nothing of the kind was seen"


def group_names(runs: Sequence[Run]) -> list[str]:
    """The group of each run, by run.json (kvtrace run --group).

    A run that names none is a group of its own: before/run and after/run are two.
    """
    said = [_named(run) for run in runs]
    parts = [run.origin.absolute().parts for run in runs]
    names = []
    for at, run in enumerate(runs):
        own, others = parts[at], [part for other, part in enumerate(parts) if other != at and not said[other]]
        length = 1
        while length < len(own) and (
            any(part[-length:] == own[-length:] for part in others) or "/".join(own[-length:]) in said
        ):
            length += 1
        names.append(said[at] or (str(run.origin.name) if length == 1 else "/".join(own[-length:])))
    return names


def _named(run: Run) -> str | None:
    name = run.meta.get("group")
    return name if isinstance(name, str) and name else None


def groups(runs: Sequence[Run], plan: Plan | None = None) -> pl.DataFrame:
    """What did each group of runs measure, and what did each step from one group to the next bring?

    Of a run that holds its own warm-up only the measured phase counts: from `measured_from_ns` in run.json
    on, else from the first request whose client's id begins with the plan's request_id_prefix (kvx-).

    A row a group and metric. Several runs of a group are its rounds: the value is their mean and the interval
    Student's over them (95%). A group of one run has an interval for quantiles of requests alone: the
    bootstrap's, worked out exactly; an end that so few requests cannot tell is null. Counts are a mean a run.
    A metric that some run of a group did not observe is null. What no run of any group observed of tiers and
    verdicts has no row.

    Each group is held against the one before it (or against its base, where a plan names one): `change` is
    value - that group's, in the metric's unit. Of a mean over requests it is that over the requests that all
    these runs share by workload key or the client's id, which takes out how large each is (paired). Its
    interval is Welch's over runs, and takes two runs in one of the groups at least.

    Args:
        runs: the runs of all groups
        plan: what must be the same, the targets of `slo`, and bases; without one the runs alone are compared
            with each other, by what `kvtrace experiment` wrote of its plan into their run.json

    Columns:
        group: the group
        metric: what was measured
        unit: ns, tokens, bytes, count or share
        value: the mean over the group's runs; null: not observed
        ci_low, ci_high: 95% interval of the value; null: no such end is known
        interval: what it rests on: runs, or bootstrap (requests of one run); null without one
        runs: how many runs the group has
        requests: how many requests the value rests on, all runs together
        against: the group that the step comes from; null for the first
        change: value - that group's value; null unless both are known
        change_low, change_high: 95% interval of the change
        paired: whether the same requests were compared; null where no request was, or there is no step
        because: why something is null, or what limits it

    Raises:
        UsageError: no run, or one twice.
        InputError: a run holds no request, or a value that is no measurement.
        NotComparableError: the runs differ in what must be the same, or a warm group was not ready.
    """
    given = plan or Plan(Fixed(may_differ=told_may_differ(runs)))
    _check(runs)
    with TemporaryDirectory(prefix="kvtrace-measured-") as folder:
        starts = [begins(run, given) for run in runs]
        warm = [said(run, start) for run, start in zip(runs, starts, strict=True)]
        kept = [measured_part(run, start, Path(folder)) for run, start in zip(runs, starts, strict=True)]
        named = group_names(runs)  # of a copy the path says nothing
        if sentences := refused(kept, given, named, warm):
            raise NotComparableError("; ".join(sentences) + ".")
        return table(kept, named, given)


def table(runs: Sequence[Run], named: Sequence[str], plan: Plan) -> pl.DataFrame:
    """The rows, whoever the runs are of. named: the group of each."""
    by_group = _grouped(runs, named, plan)
    found = {
        name: [measured(run, plan.fixed.slo or own_slo(run)) for run in own] for name, own in by_group.items()
    }
    seen = {
        metric
        for own in found.values()
        for each in own
        for metric, told in each.items()
        if told.value or not metric.startswith("fallbacks.")
    }
    order = sorted(seen, key=lambda metric: (_place(metric), metric))
    known = bases(runs, named, plan)
    rows = []
    for name, own in found.items():
        against = _against(name, list(found), known)
        rows += [_row(name, metric, own, against, found.get(against or "", [])) for metric in order]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise UsageError("compare: give the runs of the groups, as in kvtrace compare RUN...")
    names = [str(run.origin.resolve()) for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{twice}: is given twice; a run counts once, in one group.")
    for run in runs:
        if run.connection().sql("SELECT count(*) FROM request").fetchall() == [(0,)]:
            raise InputError(f"{run.origin}: holds no request, so there is nothing to compare.")


def _grouped(runs: Sequence[Run], named: Sequence[str], plan: Plan) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run, name in zip(runs, named, strict=True):
        found.setdefault(name, []).append(run)
    told = [name for run in runs for name in told_groups(run)]
    order = [*plan.groups, *told, *ORDER, *found]
    return {name: found[name] for name in dict.fromkeys(order) if name in found}


def _against(name: str, there: list[str], known: dict[str, tuple[str, ...]]) -> str | None:
    for base in known.get(name, ()):
        if base in there:
            return base
    place = there.index(name)
    return there[place - 1] if place else None


def _place(metric: str) -> int:
    """In the order of MEASURES; what is by verdict or tier stands at its family's place."""
    family = metric.partition(".")[0]
    return list(MEASURES).index(metric if metric in MEASURES else family)


def _row(
    name: str, metric: str, own: list[dict[str, Found]], against: str | None, before: list[dict[str, Found]]
) -> tuple[object, ...]:
    here, there = ([each.get(metric) for each in side] for side in (own, before))
    values, others = _values(here), _values(there)
    value = None if values is None else sum(values) / len(values)
    family = metric.partition(".")[0]
    unit = MEASURES.get(metric) or MEASURES[family]
    span, rests = _interval(here, values, unit)
    change = bounds = paired = None
    remarks = [(each.remark if each else UNSEEN) or "" for each in here]
    if value is not None and others:
        change, bounds, paired, left = _step(here, there, values or [], others)
        remarks.append(left)
        if bounds is None and max(len(own), len(before)) > 1:
            remarks.append("one run on one side, and those of the other are all the same: no spread is known")
        elif bounds is None:
            remarks.append("one run a side: how runs differ is not known, so the change has no interval")
        elif min(len(own), len(before)) == 1:
            remarks.append("one run on one side: it is taken to vary as those of the other do")
    low, high = intervals.possible(*bounds.interval(), unit, change=True) if bounds else (None, None)
    requests = sum(each.rows for each in here if each)
    return (
        name, metric, unit, value, *span, rests, len(own), requests,
        against, change, low, high, paired, "; ".join(dict.fromkeys(filter(None, remarks))) or None,
    )  # fmt: skip


def _values(found: list[Found | None]) -> list[float] | None:
    """A value a run; null when one of them has none."""
    values = [each.value for each in found if each is not None and each.value is not None]
    return values if values and len(values) == len(found) else None


def _interval(
    found: list[Found | None], values: list[float] | None, unit: str
) -> tuple[tuple[float | None, float | None], str | None]:
    if values is None:
        return (None, None), None
    if len(values) > 1:
        return intervals.possible(*intervals.over_runs(values), unit), "runs"
    only = found[0]
    span = only.span if only else None
    return (span, "bootstrap") if span and span != (None, None) else ((None, None), None)


def _step(
    here: list[Found | None], there: list[Found | None], values: list[float], others: list[float]
) -> tuple[float, Bounds | None, bool | None, str]:
    """The change, its bounds, whether the same requests were compared, and which are not in it."""
    import numpy as np

    frames = [each.frame for each in (*there, *here) if each is not None and each.frame is not None]
    before = len(others)
    if len(frames) == before + len(values):
        found = pair(frames, relative=False)
        if found is not None:
            effects = found.effects
            change = float(effects[before:].mean() - effects[:before].mean())
            left = _left_out(frames, found.keys) if found.paired else ""
            return change, _welch(effects[:before], effects[before:]), found.paired, left
    change = sum(values) / len(values) - sum(others) / len(others)
    return change, _welch(np.array(others), np.array(values)), None, ""


def _left_out(frames: list[pl.DataFrame], keys: int) -> str:
    """Which requests a paired change is not over: those that some run lacks, or has no value of."""
    left = sum(frame.height for frame in frames) - keys * len(frames)
    if not left:
        return ""
    unknown = sum(frame["value"].null_count() for frame in frames)
    without = f", {unknown} of them without a value (failed, aborted or not observed)" if unknown else ""
    return (
        f"the change is over the {many(keys, 'request')} that have a value in each of {len(frames)} runs; "
        f"{many(left, 'other')} {'is' if left == 1 else 'are'} left out{without}"
    )


def _welch(before: NDArray[np.float64], after: NDArray[np.float64]) -> Bounds | None:
    """Welch's bounds; none where one run would be given the spread of others that do not vary at all."""
    bounds = welch(before, after)
    return None if bounds and bounds.error == 0 and min(len(before), len(after)) == 1 else bounds
