"""Whose log is a log, and which of its lines did somebody else tell better?

A log knows its file and, where vLLM writes them, the pids of its processes: its engine is the one whose
process has such a pid in the same time, else the only one of its product there, if it is the only log of
that product. An engine that was recorded inside goes before the name under which the same one exports.

    spans of the engine     |--- loads, stores, lookups ---|
    lines of its log     x     x      x           x             x
                               an operation of these is counted once: the span's

A line's row that begins in the time in which somebody else tells the same operation of its engine (inquiries
that timed out apart from others) stays without an op, and is counted as `duplicate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvtrace.importer.columns import attribute, holds, words
from kvtrace.sources.engine_logs.log import LINE
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.importer.facts import Facts
    from kvtrace.importer.staging import Staging

LOGGED_OPS = ("request", "queue", "lookup", "load", "store", "drop", "evict", "health")
SLACK_NS = 1_000_000_000
"""vLLM's lines have whole seconds."""
_FOREVER = 2**62


class _Process(NamedTuple):
    name: str
    engine: str
    product: str | None
    is_log: bool
    inside: bool
    pids: frozenset[str]
    first_ns: int
    last_ns: int

    def meets(self, other: _Process) -> bool:
        """Whether both lived at one time."""
        return self.first_ns <= other.last_ns + SLACK_NS and other.first_ns <= self.last_ns + SLACK_NS


def from_log(rows: pa.Table, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which of some rows a line of a log tells."""
    found = np.zeros(rows.num_rows, bool)
    if "attributes" not in rows.column_names:
        return found
    named = words(rows, "observer")[0] >= 0
    at = np.flatnonzero(own & (holds(rows, "evidence", "derived") | holds(rows, "op", "request") & ~named))
    if at.size:
        lines = attribute(rows["attributes"].take(pa.array(at)), LINE)
        found[at[lines.is_not_null().to_numpy()]] = True
    return found


def log_engines(staging: Staging) -> dict[str, str]:
    """Log -> the engine that wrote it, where one and only one fits."""
    everybody = [*_decoded(staging), *_given(staging)]
    logs = [each for each in everybody if each.is_log]
    others = [each for each in everybody if not each.is_log and each.engine]
    found = {}
    for name in {each.engine for each in logs}:
        own = [each for each in logs if each.engine == name]
        met = [other for other in others if any(each.meets(other) for each in own)]
        fitting = _engines(other for other in met if any(each.pids & other.pids for each in own))
        if not fitting and len({each.engine for each in logs if each.product == own[0].product}) == 1:
            fitting = _engines(other for other in met if other.product == own[0].product)
        if len(fitting) == 1:
            found[name] = fitting.pop()
    return found


def _engines(processes: Iterable[_Process]) -> set[str]:
    """Of processes that fit: of those recorded inside, where there are any."""
    found = list(processes)
    return {each.engine for each in found if each.inside} or {each.engine for each in found}


def _decoded(staging: Staging) -> Iterator[_Process]:
    """Processes that files name."""
    seen = staging.facts.table("processes").group_by("process").agg(pl.min("first_ns"), pl.max("last_ns"))
    times = {process: (first, last) for process, first, last in seen.iter_rows()}
    for name, known in staging.processes.items():
        row: dict[str, Any] = dict(known)
        first, last = times.get(name, (None, None))
        row |= {"process": name, "first_ns": row.get("first_ns", first), "last_ns": row.get("last_ns", last)}
        yield from _process(row, is_log=known.get("instrument") == "log")


def _given(staging: Staging) -> Iterator[_Process]:
    """Processes that runs name."""
    for tables in staging.given("process"):
        for table in tables:
            for row in table.to_pylist():
                said = dict(row["attributes"] or ())
                yield from _process({**said, **row}, is_log="log" in dict(row["instruments"] or ()))


def _process(row: dict[str, Any], *, is_log: bool) -> Iterator[_Process]:
    """A process that belongs to an engine; its pid is in its name, or it says several."""
    if row["process"] is not None and row["engine"] is not None:
        first = -_FOREVER if row["first_ns"] is None else row["first_ns"]
        last = _FOREVER if row["last_ns"] is None else row["last_ns"]
        given = (row.get("pids") or "").split(", ")
        pids = frozenset(filter(str.isdecimal, [row["process"].rpartition("/")[2], *given]))
        inside = row.get("boot_id") is not None
        yield _Process(row["process"], row["engine"], row["product"], is_log, inside, pids, first, last)


def told_better(facts: Facts, engines: dict[str, str]) -> tuple[npt.NDArray[np.int64], list[Loss]]:
    """Rows (sorted) of log lines that are no operation of their own, and the loss that counts them."""
    logged = facts.table("logged").with_columns(
        engine=pl.col("engine").replace(engines), late=pl.col("outcome").eq_missing("timeout")
    )
    told = facts.table("told").group_by("engine", "op", "late").agg(pl.min("low"), pl.max("high"))
    began = pl.col("start_ns")
    within = began.is_between(pl.col("low") - SLACK_NS, pl.col("high") + SLACK_NS)
    twice = logged.join(told, on=["engine", "op", "late"]).filter(within).sort("row")
    rows = twice["row"].to_numpy()
    losses = [
        Loss(
            JOIN, "duplicate", count, op=op, from_ns=low, to_ns=high, detail="lines of a log, told by others"
        )
        for op, count, low, high in twice.group_by("op")
        .agg(pl.len(), low=began.min(), high=began.max())
        .sort("op")
        .iter_rows()
    ]
    return rows, losses


def of_engines(chunk: pa.Table, engines: dict[str, str]) -> pa.Table:
    """A chunk with the engines that logs are of in the place of the logs."""
    if not engines or "engine" not in chunk.column_names:
        return chunk
    column = chunk["engine"].combine_chunks()
    named = pa.array([engines.get(word, word) for word in column.dictionary.to_pylist()], pa.string())
    new = pa.DictionaryArray.from_arrays(column.indices, named)
    return chunk.set_column(chunk.column_names.index("engine"), "engine", new)
