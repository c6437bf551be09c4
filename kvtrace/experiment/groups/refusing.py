"""May these runs stand side by side? A sentence a factor that forbids it."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.analyses._text import duration, listed, many
from kvtrace.diff import measuring
from kvtrace.diff.factors import differing
from kvtrace.experiment.groups import warm
from kvtrace.experiment.groups.bases import bases, with_bases
from kvtrace.experiment.plan import LENGTHS, MORE_FIXED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.experiment.plan import Plan
    from kvtrace.run import Run

OF_PLAN = ("arrivals", "prefix_working_set_tokens")
"""What a plan fixes in words; runs made by `kvtrace experiment` repeat it in run.json."""
_SIZE = re.compile("[0-9]{1,9}")
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def refused(
    runs: Sequence[Run], plan: Plan, named: Sequence[str], warmed: Sequence[warm.Warm | None]
) -> list[str]:
    """Every reason, in words; none: they may. named, warmed: the group and the warm-up of each run."""
    allowed = plan.fixed.may_differ
    return [
        *differing(runs, (), more=MORE_FIXED, allowed=allowed),
        *_against_plan(runs, plan),
        *_among_runs(runs, allowed),
        *(() if "prompt_tokens" in allowed else _lengths(runs)),
        *_cold(runs, plan, named, warmed),
    ]


def _against_plan(runs: Sequence[Run], plan: Plan) -> Iterator[str]:
    """What the plan fixes and a run says otherwise."""
    fixed = plan.fixed
    for run in runs:
        engines = [each for each in _engines(run.meta) if each.get("model") is not None]
        told: dict[str, Any] = {
            "model": listed(sorted({str(each["model"]) for each in engines})) or None,
            "gpus": max((count for each in engines if (count := _gpus(each)) is not None), default=None),
        }
        told |= _of_plan(run)
        for name, value in told.items():
            wanted = None if name in fixed.may_differ else getattr(fixed, name)
            if wanted is not None and value is not None and value != wanted:
                yield f"{name} differs: {wanted} in the plan; {value} in {run.origin.name}"
        for name in LENGTHS:
            wanted = None if name in fixed.may_differ else getattr(fixed, name)
            if wanted is not None:
                yield from _length(run, name, wanted)


def _of_plan(run: Run) -> dict[str, Any]:
    """What run.json repeats of the words of a plan."""
    own = run.meta.get("fixed")
    told = {name: own.get(name) for name in OF_PLAN} if isinstance(own, dict) else {}
    return {name: value for name, value in told.items() if value is not None}


def _among_runs(runs: Sequence[Run], allowed: Sequence[str]) -> Iterator[str]:
    """The words of a plan that two runs do not share; what a run does not say cannot differ."""
    for name in OF_PLAN:
        found: dict[str, list[str]] = {}
        for run in runs:
            if (value := _of_plan(run).get(name)) is not None:
                found.setdefault(str(value), []).append(str(run.origin.name))
        if len(found) > 1 and name not in allowed:
            sides = (f"{value} in {listed(names, 3)}" for value, names in found.items())
            yield f"{name} differs: {'; '.join(sides)}"


def _engines(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    engines = meta.get("engines")
    return [each for each in engines.values() if isinstance(each, dict)] if isinstance(engines, dict) else []


def _gpus(engine: Mapping[str, Any]) -> int | None:
    """Tensor x pipeline x data parallel; null: the engine says none of them."""
    sizes = [str(said) for field in _PARALLEL if (said := engine.get(field)) is not None]
    return prod(map(int, sizes)) if sizes and all(_SIZE.fullmatch(size) for size in sizes) else None


def _length(run: Run, name: str, wanted: int | tuple[int, int]) -> Iterator[str]:
    """A request of another length; a request that did not end well may have put out less."""
    low, high = (wanted, wanted) if isinstance(wanted, int) else wanted
    query = (
        f"SELECT min({name}), max({name}) FROM request "  # noqa: S608 - one of two words of ours
        f"WHERE evidence IS DISTINCT FROM 'predicted' AND coalesce(status, 'ok') = 'ok'"
    )
    ((least, most),) = run.connection().sql(query).fetchall()
    if least is not None and (least < low or most > high):
        of_plan = f"{low}" if low == high else f"{low} to {high}"
        seen = f"{least}" if least == most else f"{least} to {most}"
        yield f"{name} differs: {of_plan} in the plan; {seen} in {run.origin.name}"


def _lengths(runs: Sequence[Run]) -> Iterator[str]:
    """The same request (workload key, or the client's id) with another prompt in another run."""
    first: dict[str, tuple[int, str]] = {}
    query = "SELECT request_id, prompt_tokens FROM request WHERE prompt_tokens IS NOT NULL"
    for run in runs:
        rows = measuring.keys(run).join(run.connection().sql(query).pl(), on="request_id")
        mine = rows.drop_nulls("key").filter(~pl.col("key").is_duplicated())
        for key, tokens in mine.select("key", "prompt_tokens").sort("key").iter_rows():
            seen = first.setdefault(key, (tokens, run.origin.name))
            if seen[0] != tokens:
                yield (
                    f"prompt_tokens differs: the request {key} has {seen[0]} in {seen[1]}; "
                    f"{tokens} in {run.origin.name}"
                )
                return


def _cold(
    runs: Sequence[Run], plan: Plan, named: Sequence[str], warmed: Sequence[warm.Warm | None]
) -> Iterator[str]:
    """A warm group whose stores were not over when it was measured."""
    known = bases(runs, named, plan)
    for run, group, found in zip(runs, named, warmed, strict=True):
        if found is None or not any(name in warm.WARM for name in with_bases(group, known)):
            continue
        where = f"the tier was not warm: in {run.origin.name} ({group})"
        if found.nothing_stored():
            yield f"{where} {many(found.requests, 'request')} of the warm-up left no store"
        if found.unfinished:
            late = "" if found.late_ns is None else f", the last {duration(found.late_ns)} later"
            left = "" if not found.open else f", {found.open} of them without an end"
            yield (
                f"{where} {found.unfinished} of {many(found.stores, 'store')} of the warm-up were not over "
                f"when the measured phase began{late}{left}"
            )
