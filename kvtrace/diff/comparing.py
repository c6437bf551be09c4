"""Two sets of runs and a gate file -> findings and an exit code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import listed, many
from kvtrace.diff import tail, verdicts
from kvtrace.diff.causes import Sided, cause, cause_of_tail
from kvtrace.diff.findings import Finding
from kvtrace.diff.gates import Gate, Tail, own_unit, unit_of
from kvtrace.diff.gathering import gather
from kvtrace.diff.judging import Sides, judge_gates
from kvtrace.diff.pairing import pair
from kvtrace.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.diff.gates import Gates
    from kvtrace.diff.gathering import Told
    from kvtrace.diff.pairing import Paired
    from kvtrace.run import Run


@dataclass(frozen=True)
class Compared:
    """What came out, and the process's exit code."""

    findings: tuple[Finding, ...]
    code: int


def compare(base: Sequence[Run], head: Sequence[Run], gates: Gates, noise: Sequence[Run] = ()) -> Compared:
    """Hold head against base, gate by gate: the statistical ones, the tails, the exact ones.

    Runs that are the same on both sides are `same`, change 0, whatever their number. A gate whose metric no
    run observed has no verdict: neutral, but inconclusive when somebody named it; so is a comparison in which
    no statistical gate was observed at all. What only some runs observed is inconclusive.

    Raises:
        UsageError: a side is empty, a run stands twice, or a gate asks for a column that is not there.
        InputError: a run holds no request, or a value that is no measurement.
    """
    _check(base, head, noise)
    runs, sides = (*base, *head, *noise), Sides(len(base), len(head), len(noise))
    told = gather(runs, gates)
    measured = [(gate, _paired(gate, [each.of(gate) for each in told])) for gate in gates.gates]
    found = judge_gates(measured, sides)
    found += [_tail(each, _of_tail(each, told), sides) for each in gates.tails]
    statistical = len(found)
    found += [_exact(metric, runs, told, sides) for metric in gates.exact]
    asked: tuple[Gate | Tail | str, ...] = (*gates.gates, *gates.tails, *gates.exact)
    both = (*base, *head)  # noise runs say nothing of an exact gate
    found = [
        _missing(finding, gate, both if isinstance(gate, str) else runs, told)
        for finding, gate in zip(found, asked, strict=True)
    ]
    if _origins(base) == _origins(head):
        return Compared(tuple(_unmoved(finding) for finding in found), verdicts.PASS)
    found = _explained(found, asked, (base, head), told)
    codes = [verdicts.code(finding.verdict, named=gates.named) for finding in found]
    if statistical and all(finding.verdict is None for finding in found[:statistical]):
        codes.append(verdicts.INCONCLUSIVE)
    return Compared(tuple(found), verdicts.exit_code(codes))


def _origins(runs: Sequence[Run]) -> list[str]:
    return sorted(str(run.origin) for run in runs)


def _check(base: Sequence[Run], head: Sequence[Run], noise: Sequence[Run]) -> None:
    if not base or not head:
        raise UsageError("diff: give runs on both sides, as in kvtrace diff BASE... --vs HEAD...")
    same = _origins(base) == _origins(head)
    sides = (base, head, noise)
    names = [name for side in (sides if not same else (base, noise)) for name in _origins(side)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{twice}: is given twice; a run counts once, on one side.")


def _paired(gate: Gate, frames: Sequence[pl.DataFrame]) -> Paired | None:
    try:
        return pair(frames, relative=gate.unit == "relative")
    except InputError as error:
        raise InputError(f"{gate.metric}: {error}") from error


def _of_tail(gate: Tail, told: Sequence[Told]) -> Paired | None:
    return _paired(Gate(gate.metric, "relative", 0.0), [each.values[gate.metric] for each in told])


def _tail(gate: Tail, paired: Paired | None, sides: Sides) -> Finding:
    plain = Finding(f"{gate.metric}:tail", runs=sides.runs, because="not observed in every run")
    if paired is None:
        return plain
    if paired.values is None:
        return replace(
            plain, paired=False, verdict="inconclusive", because="unpaired: requests alone have ratios"
        )
    values, both = paired.values, sides.base + sides.head
    tails = tail.count(values[:, : sides.base], values[:, sides.base : both])
    others = values[:, both:]
    noise = tail.count(others[:, :-1], others[:, 1:]).by_pair if sides.noise > 1 else None
    verdict = tail.judge(tails, noise, alpha=gate.alpha, least_share=gate.min_share)
    seen = tails.plainer()
    low, high = (bound * seen.requests for bound in seen.interval())
    slower, faster = sum(seen.slower), sum(seen.faster)
    p = tails.p_slower()
    because = (
        f"{many(slower, 'request')} of {seen.requests:,} more than {tail.BEYOND}x slower than the median "
        f"change, {faster:,} faster: p {p:.2g}; worse takes p <= {gate.alpha:g} and an excess of "
        f"{gate.min_share:.1%}"
    )
    if sides.base + sides.head == 2 and noise is None:
        because += "; one run a side takes two A/A runs (--noise) at least"
    elif verdict == "inconclusive" and seen.keys < (needed := tail.requests_needed(gate.min_share)):
        because += f"; no fewer than {many(needed, 'request')} a run can be called the same"
    return Finding(
        plain.metric, float(faster), float(slower), float(slower - faster), "count", low, high, p, p,
        sides.runs, paired=True, verdict=verdict, because=because,
    )  # fmt: skip


def _exact(metric: str, runs: Sequence[Run], told: Sequence[Told], sides: Sides) -> Finding:
    both = sides.base + sides.head
    counts = [each.counts[metric] for each in told[:both]]
    before, after = counts[: sides.base], counts[sides.base :]
    lossy = [run.origin.name for run, each in zip(runs[:both], told, strict=False) if each.lossy]
    verdict = verdicts.exact(before, after, lossy=bool(lossy))
    unit = "count" if unit_of(metric) == "relative" else unit_of(metric)
    if verdict is None:
        return Finding(metric, unit=unit, runs=sides.runs, because="not observed in every run")
    means = [float(pl.Series(side, dtype=pl.Float64).sum()) / len(side) for side in (before, after)]
    because = f"{sum(filter(None, before)):,} in base, {sum(filter(None, after)):,} in head; it must not move"
    if lossy and verdict == "inconclusive":
        because += (
            f"; {many(len(lossy), 'run')} lost records ({lossy[0]} is one), and such a run proves no pass"
        )
    before_after = means[1] - means[0]
    return Finding(
        metric, means[0], means[1], before_after, unit, runs=sides.runs, verdict=verdict, because=because
    )


def _explained(
    found: Sequence[Finding],
    asked: Sequence[Gate | Tail | str],
    sides: tuple[Sequence[Run], Sequence[Run]],
    told: Sequence[Told],
) -> list[Finding]:
    """A regression says how far it went, which class of time grew, in which requests."""
    return [
        replace(finding, because=f"{finding.because}; {why}")
        if finding.verdict == "worse" and (why := _why(gate, sides, told))
        else finding
        for finding, gate in zip(found, asked, strict=True)
    ]


def _why(
    gate: Gate | Tail | str, sides: tuple[Sequence[Run], Sequence[Run]], told: Sequence[Told]
) -> str | None:
    if isinstance(gate, str):
        return None
    base, head = sides
    both = told[: len(base) + len(head)]
    if isinstance(gate, Gate):
        values = Sided(base, head, [each.of(gate) for each in both])
        return cause(gate.metric, own_unit(gate.metric), values, higher_is_better=gate.direction == "higher")
    values = Sided(base, head, [each.values[gate.metric] for each in both])
    paired = _of_tail(gate, both)
    if paired is None or paired.values is None:
        return None
    slow = paired.names.filter(tail.slow(paired.values[:, : len(base)], paired.values[:, len(base) :]))
    return cause_of_tail(gate.metric, slow, values)


def _missing(finding: Finding, gate: Gate | Tail | str, runs: Sequence[Run], told: Sequence[Told]) -> Finding:
    """What some runs observed and others did not has no answer, and is no pass."""
    if finding.verdict is not None:
        return finding
    without = [run.origin.name for run, each in zip(runs, told, strict=False) if not each.observed(gate)]
    if len(without) == len(runs):
        return finding
    because = f"observed in {many(len(runs) - len(without), 'run')} and not in {listed(without, 3)}"
    if not without:
        because = "all values of some run are 0, and have no ratio"
        of_tail = ', which is what a tail counts; gate the metric with [[gate]] and unit = "absolute"'
        because += of_tail if isinstance(gate, Tail) else "; gate the metric with unit absolute"
    return replace(finding, verdict="inconclusive", because=because)


def _unmoved(finding: Finding) -> Finding:
    """The finding of runs that are the same on both sides."""
    if finding.base is None and finding.verdict is None:
        return finding
    return replace(
        finding, head=finding.base, change=0.0, ci_low=0.0, ci_high=0.0, p_value=None, p_adjusted=None,
        verdict="same", because="the same runs stand on both sides",
    )  # fmt: skip
