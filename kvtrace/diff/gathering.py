"""All that the gates ask of all runs: each number of a run once, several runs at a time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.diff import measuring
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from kvtrace.diff.gates import Gate, Gates
    from kvtrace.run import Run

AT_ONCE = 4
"""Runs that are measured at a time at most: each may hold some hundred MB (run.derived.MEMORY_LIMIT)."""


@dataclass(frozen=True)
class Told:
    """What a run answered.

    values: metric -> its values, a row a request
    own: SQL gate -> its number
    counts: exact metric -> its count; null: not observed
    lossy: whether records of the run were lost
    """

    values: Mapping[str, pl.DataFrame]
    own: Mapping[str, pl.DataFrame]
    counts: Mapping[str, int | None]
    lossy: bool

    def of(self, gate: Gate) -> pl.DataFrame:
        """What a gate compares."""
        return self.own[gate.metric] if gate.query else self.values[gate.metric]


def gather(runs: Sequence[Run], gates: Gates) -> list[Told]:
    """A run, its numbers, in the order given; a run that stands twice is asked once.

    Threads, since what is dear happens in DuckDB, polars and numpy, outside the interpreter's lock.

    Raises:
        InputError: a run holds no request.
        UsageError: a question has no such column, or it holds no numbers.
        QueryError: a gate's own query gives no number.
    """
    each = {run.origin: run for run in runs}
    with ThreadPoolExecutor(min(AT_ONCE, len(each), os.cpu_count() or 1)) as pool:
        told = dict(zip(each, pool.map(lambda run: _told(run, gates), each.values()), strict=True))
    return [told[run.origin] for run in runs]


def _told(run: Run, gates: Gates) -> Told:
    if not run.connection().sql("SELECT 1 FROM request LIMIT 1").fetchall():
        raise InputError(f"{run.origin}: holds no request, so there is nothing to compare.")
    metrics = {gate.metric for gate in gates.gates if not gate.query} | {tail.metric for tail in gates.tails}
    return Told(
        {metric: measuring.values(run, metric) for metric in sorted(metrics)},
        {gate.metric: measuring.by_query(run, gate.metric, gate.query) for gate in gates.gates if gate.query},
        {metric: measuring.counted(run, metric) for metric in gates.exact},
        measuring.lossy(run),
    )
