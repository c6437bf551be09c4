"""Joins over everything that was staged, from the facts gathered on the way, and the rows as they come out.

naming.py           one request under all of its names
several_prompts.py  a call that the engine served as several requests is none itself
duplicates.py       one span once
contradictions.py   what one source says is missing from another
transfers.py        one transfer of LMCache, as its client and its server saw it
lookups.py          one lookup of LMCache, as its server's bus and its spans told it
log_lines.py        whose log a log is, and what others told better
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.importer.contradictions import missing_spans
from kvtrace.importer.duplicates import duplicates
from kvtrace.importer.log_lines import log_engines, of_engines, told_better
from kvtrace.importer.lookups import once
from kvtrace.importer.naming import Names, resolve
from kvtrace.importer.renaming import renamed
from kvtrace.importer.several_prompts import as_calls
from kvtrace.importer.transfers import Ties, tie, tied
from kvtrace.sources.dialects.columns import ID_KIND
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.importer.facts import Facts
    from kvtrace.importer.staging import Staging


@dataclass(frozen=True)
class Joined:
    """What the joins found: rows that count no more, what names mean, drops that are duplicates, losses."""

    extra: npt.NDArray[np.int64]
    names: Names
    duplicate_drops: npt.NDArray[np.int64]
    found: list[Loss]
    ties: Ties
    unclear: list[int]
    engines: dict[str, str]

    def losses(self) -> list[Loss]:
        """What the joins lost; whole only when every row has come out."""
        ambiguous = self.names.ambiguous + sum(self.unclear)
        if not ambiguous:
            return self.found
        detail = "rows whose name fits several requests equally well, or none in time"
        return [*self.found, Loss(JOIN, "ambiguous_join", ambiguous, op="request", detail=detail)]


def join(staging: Staging) -> Joined:
    """Join everything that was staged."""
    staging.flush()
    facts = staging.facts
    asked = facts.table("asked").unique()
    extra, losses = duplicates(facts, staging.chunks())
    engines = log_engines(staging)
    names = resolve(facts, asked)
    lookups, told_twice, repeats = once(facts, extra)
    ties = tie(facts, extra)
    logged, better = told_better(facts, engines)
    silenced = np.union1d(ties.silenced, np.union1d(told_twice, logged))
    ties = replace(ties, silenced=silenced)
    losses += [*repeats, *ties.losses, *better, *missing_spans(facts, lookups, asked)]
    return Joined(extra, names, _duplicate_drops(facts, lookups), losses, ties, [], engines)


def _duplicate_drops(facts: Facts, lookups: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Drops of requests whose every lookup found all that it asked for: their keys were there already."""
    found = lookups.group_by("request_id").agg(pl.min("found_tokens"), pl.max("requested_tokens"))
    all_there = found.filter(
        (pl.col("requested_tokens") > 0) & (pl.col("found_tokens") >= pl.col("requested_tokens"))
    )
    drops = facts.table("drops").join(all_there, on="request_id", how="semi")
    return np.sort(drops["row"].to_numpy())


def joined_rows(staging: Staging, joined: Joined) -> Iterator[pa.Table]:
    """The staged rows with what the joins found: without extras, under their request's own id."""
    first = 0
    for staged in staging.chunks():
        after = first + staged.num_rows
        chunk, unclear = renamed(staged, joined.names)
        joined.unclear.append(unclear)
        chunk = as_calls(of_engines(tied(chunk, first, joined.ties), joined.engines), joined.names.calls)
        drops = _own(joined.duplicate_drops, first, after)
        if drops.size:
            is_duplicate = np.zeros(chunk.num_rows, bool)
            is_duplicate[drops] = True
            reason = pc.if_else(pa.array(is_duplicate), "duplicate", chunk["reason"].cast(pa.string()))
            chunk = chunk.set_column(chunk.column_names.index("reason"), "reason", reason)
        extra = _own(joined.extra, first, after)
        if extra.size:
            kept = np.ones(chunk.num_rows, bool)
            kept[extra] = False
            chunk = chunk.filter(pa.array(kept))
        first = after
        yield chunk.drop_columns([ID_KIND]) if ID_KIND in chunk.column_names else chunk


def _own(rows: npt.NDArray[np.int64], first: int, after: int) -> npt.NDArray[np.int64]:
    """Those of some sorted row numbers that lie in a chunk, counted from its first."""
    low, high = np.searchsorted(rows, [first, after])
    return rows[low:high] - first
