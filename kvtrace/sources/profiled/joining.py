"""Copy -> the call that asked for it -> the range of its thread around it -> the request that it names."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.sources.profiled.names import Named, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLACE = ("process", "thread")
NOBODY = -1
_GRAPH = r"GraphLaunch"
_LAST_FIRST = -pl.col("end_ns")
_SEGMENTS = {"process": pl.Int64, "thread": pl.String, "at_ns": pl.Int64, "scope": pl.Int32}


def launched(copies: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Copies with the call that asked for each: launch_ns, launch, thread, process.

    `graph` is true for those of a CUDA graph, `ambiguous` where calls of several threads have the id.
    """
    numbered = calls.filter(pl.col("correlation").is_not_null()).sort("start_ns", maintain_order=True)
    place = pl.struct(*PLACE)
    asked = numbered.group_by("owner", "correlation", maintain_order=True).agg(
        launch_ns=pl.first("start_ns"), launch=pl.first("name"),
        thread=pl.first("thread"), process=pl.first("process"), ambiguous=place.n_unique() > 1,
    )  # fmt: skip
    one = pl.col("ambiguous").not_()
    kept = [pl.when(one).then(name).alias(name) for name in ("launch_ns", "launch", *PLACE)]
    found = copies.join(
        asked.with_columns(kept), on=["owner", "correlation"], how="left", maintain_order="left"
    )
    in_graph = pl.col("graph").is_not_null() | pl.col("launch").str.contains(_GRAPH).fill_null(value=False)
    return found.with_columns(graph=in_graph, ambiguous=pl.col("ambiguous").fill_null(value=False))


def scopes(names: Iterable[str]) -> dict[str, Named]:
    """Of some names of ranges those that name a request."""
    found = ((name, named(name)) for name in names)
    return {name: scope for name, scope in found if scope is not None}


def segments(ranges: pl.DataFrame, known: dict[str, Named]) -> pl.DataFrame:
    """From when on a thread works for whom: rows of process, thread, at_ns, scope (NOBODY: for no request).

    ranges   |--- a ---|- b -|------|          a, then a's inner b, then a again
    rows     a         b     a      NOBODY
    """
    numbers = {name: number for number, name in enumerate(known)}
    naming = (
        ranges.filter(pl.col("name").is_in(list(numbers)), pl.col("end_ns") > pl.col("start_ns"))
        .drop_nulls(list(PLACE))
        .sort("process", "thread", "start_ns", _LAST_FIRST, maintain_order=True)
    )
    rows: list[tuple[int | None, str, int, int]] = []
    listed = naming.select("process", "thread", "start_ns", "end_ns", "name").iter_rows()
    for (process, thread), inside in groupby(listed, key=lambda row: (row[0], row[1])):
        moves = _moves((start, end, numbers[name]) for _, _, start, end, name in inside)
        rows += ((process, thread, at_ns, scope) for at_ns, scope in moves)
    return pl.DataFrame(rows, schema=_SEGMENTS, orient="row")


def _moves(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """(when, for whom from then on) of the ranges of one thread, sorted by start, outer ones first.

    Ranges that overlap without nesting: the one that began last counts while it lasts.
    """
    open_: list[tuple[int, int]] = []
    for start, end, scope in ranges:
        yield from _closed(open_, start)
        open_.append((end, scope))
        yield start, scope
    yield from _closed(open_, None)


def _closed(open_: list[tuple[int, int]], until_ns: int | None) -> Iterator[tuple[int, int]]:
    """What ends before a time; one that ends below others is only passed over when these have ended."""
    while open_ and (until_ns is None or open_[-1][0] <= until_ns):
        end, _ = open_.pop()
        while open_ and open_[-1][0] <= end:
            open_.pop()
        yield end, open_[-1][1] if open_ else NOBODY


def with_scopes(copies: pl.DataFrame, worked: pl.DataFrame) -> pl.DataFrame:
    """Launched copies with `scope`: the number of the range around the call; null for none."""
    numbered = copies.with_row_index("row")
    asked = (
        numbered.filter(pl.col("launch_ns").is_not_null(), pl.col("graph").not_())
        .select("row", "launch_ns", *PLACE)
        .sort("launch_ns")
    )
    found = asked.join_asof(
        worked.sort("at_ns", maintain_order=True), left_on="launch_ns", right_on="at_ns", by=list(PLACE),
        strategy="backward", check_sortedness=False,
    )  # fmt: skip
    said = found.filter(pl.col("scope") != NOBODY).select("row", "scope")
    return numbered.join(said, on="row", how="left", maintain_order="left").drop("row")
