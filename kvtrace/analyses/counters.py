"""The question `counters`: by how much did every counter grow, page after page?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "name": pl.String,
        "labels": pl.String,
        "process": pl.String,
        "first": pl.Float64,
        "last": pl.Float64,
        "increase": pl.Float64,
        "resets": pl.Int64,
        "samples": pl.Int64,
    }
)
SOURCE = "kvtrace.source"
_STARTED = "process_start_time_seconds"
_MOMENT = re.compile(r"[-_. ](before|start|first|after|end|last)(?=\.|$)")
_MOMENTS = {"before": -1, "start": -1, "first": -1, "after": 1, "end": 1, "last": 1}

_ROWS = """
WITH told AS (
    SELECT name, kind, value, time_ns, process, labels['kvtrace.source'] AS source,
        coalesce(try_cast(labels['kvtrace.page'] AS BIGINT), 0) AS page,
        coalesce(map_entries(labels), []) AS entries
    FROM metric
    WHERE isfinite(value) AND (kind IN ('counter', 'histogram', 'summary') OR suffix(name, '_created')
        OR name = 'process_start_time_seconds')
), named AS (
    SELECT * EXCLUDE (entries), list_sort(list_transform(
        list_filter(entries, lambda e: e.key NOT IN ('kvtrace.source', 'kvtrace.page')),
        lambda e: e.key || '="' || replace(replace(replace(e.value, '\\', '\\\\'), '"', '\\"'),
            chr(10), '\\n') || '"')) AS pairs
    FROM told
)
SELECT name, kind, value, time_ns, process, source, page, array_to_string(pairs, ',') AS labels,
    array_to_string(list_filter(pairs, lambda p: NOT regexp_matches(p, '^(le|quantile)=')), ',') AS family,
    coalesce(kind IN ('counter', 'histogram')  -- a quantile of a summary is no count
        OR kind = 'summary' AND regexp_matches(name, '_(count|sum)$'), false) AS counts
FROM named
"""
"""What counts, beside what tells a restart; `family`: the labels that a histogram's rows share."""


def counters(run: Run) -> pl.DataFrame:
    """By how much did every counter grow, from the first page of metrics to the last?

    A row a series of a counter, or of a histogram's or a summary's buckets, counts and sums. As in
    Prometheus' `increase`, a reset counts the new value from zero; nothing is extrapolated. A series is reset
    when its value falls, when its `_created` moves, or when its process started anew
    (process_start_time_seconds). A sum may fall by itself, because a negative observation is possible (vLLM
    has had some): it is reset when its count is. What is no finite number never counts. A series that only
    the last page has is one sample and its increase null: whether it began between the pages is not known.

    Pages of one process are one series, in the order of their times. Pages without a time come in the order
    of the file (label kvtrace.page), files in the order of their names, numbers in names by value, X-before
    and X-start in front, X-after and X-end behind. Two files are pages of one process when they show the same
    process_start_time_seconds, or when their names differ in such a last word alone; else they are two
    processes, told apart by the label kvtrace.source, which names the process's last file. Pages of a product
    that does not show when it started belong into one file, one after the other.

    Columns:
        name: the sample's name, as the page writes it
        labels: its labels as a page writes them, sorted; kvtrace.source where rows come from files of pages
        process: process, where the rows say it
        first: value of the first sample
        last: value of the last sample
        increase: how much was counted in between; null for a single sample
        resets: how often it began anew
        samples: how many samples there are
    """
    rows = pl.DataFrame(run.connection().sql(_ROWS).to_arrow_table()).with_row_index("row")
    rows = _in_order(rows)
    found = (
        _steps(rows)
        .group_by("target", "name", "labels", "process", maintain_order=True)
        .agg(
            first=pl.col("value").first(),
            last=pl.col("value").last(),
            increase=pl.when(pl.len() > 1).then(pl.col("step").sum()),
            resets=pl.col("reset").sum(),
            samples=pl.len(),
        )
    )
    shown = (
        pl.when(pl.col("target").is_null())
        .then(pl.col("labels"))
        .otherwise(
            pl.concat_str(
                pl.when(pl.col("labels") != "").then(pl.col("labels")),
                pl.lit(f'{SOURCE}="') + pl.col("target") + '"',
                separator=",",
                ignore_nulls=True,
            )
        )
    )
    return (
        found.with_columns(labels=shown)
        .select(list(COLUMNS))
        .cast(COLUMNS)
        .sort("name", "labels", "process", nulls_last=False)
    )


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which a process showed them, with `target`: the last file of their process."""
    started = rows.filter(pl.col("name") == _STARTED, pl.col("source").is_not_null())
    starts: dict[str, set[float]] = {name: set() for name in rows["source"].drop_nulls().unique()}
    for source, value in started.select("source", "value").iter_rows():
        starts[source].add(value)
    placed = pl.DataFrame(
        [*_placed(starts)],
        schema={"source": pl.String, "target": pl.String, "place": pl.Int64},
        orient="row",
    )
    pages = started.group_by("source", "page").agg(started=pl.col("value").first())
    return (
        rows.join(placed, on="source", how="left")
        .join(pages, on=["source", "page"], how="left")
        .sort("time_ns", "place", "page", "row", nulls_last=False)
    )


@dataclass(slots=True)
class _Process:
    """Files that are pages of one process, and what would show it of another file."""

    files: list[str] = field(default_factory=list)
    signs: set[str | float] = field(default_factory=set)


def _placed(starts: dict[str, set[float]]) -> Iterator[tuple[str, str, int]]:
    """(file, last file of its process, place) of every file with the process starts it shows."""
    known: dict[str | float, _Process] = {}
    places = {file: place for place, file in enumerate(sorted(starts, key=_order))}
    for file in places:
        signs: set[str | float] = {_MOMENT.sub("", file), *starts[file]}
        process, *others = {id(known[sign]): known[sign] for sign in signs if sign in known}.values() or (
            _Process(),
        )
        for other in others:
            process.files += other.files
            signs |= other.signs
        process.files.append(file)
        process.signs |= signs
        known |= dict.fromkeys(signs, process)
    for process in {id(process): process for process in known.values()}.values():
        last = max(process.files, key=places.__getitem__)
        yield from ((file, last, places[file]) for file in process.files)


def _order(file: str) -> tuple[str, int, list[tuple[int, str]], str]:
    """A key that sorts files by name, moments in their order and numbers by value."""
    moment = _MOMENT.search(file)
    name = _MOMENT.sub("", file)
    parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in _digits(name)]
    stem = "".join(part for part in _digits(name) if not part.isdecimal())
    return stem, _MOMENTS[moment[1]] if moment else 0, parts, file


def _digits(name: str) -> Iterable[str]:
    return (part for part in re.split(r"([0-9]{1,18})", name) if part)


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Countable rows with what each adds to the one before it of its series, and whether it began anew."""
    series = ["target", "process", "name", "labels"]
    base = pl.col("name").str.replace("(_total|_bucket|_count|_sum|_created)$", "").alias("base")
    rows = rows.with_columns(base)
    page = ["target", "process", "base", "family", "source", "page", "time_ns"]
    created = rows.filter(pl.col("name").str.ends_with("_created")).unique(page, keep="first")
    counted = rows.filter("counts").join(
        created.select(*page, created="value"), on=page, how="left", nulls_equal=True, maintain_order="left"
    )
    before = pl.col("value", "created", "started").shift().over(series).name.prefix("previous_")
    counted = counted.with_columns(before)
    moved = pl.any_horizontal(
        (pl.col(name) != pl.col(f"previous_{name}")).fill_null(value=False) for name in ("created", "started")
    )
    fell = (pl.col("value") < pl.col("previous_value")).fill_null(value=False)
    counted = counted.with_columns(own=fell | moved, moved=moved)
    # what a sum's count says of the same page; of several rows at once any
    counts = (
        counted.filter(pl.col("name").str.ends_with("_count"), pl.col("kind") != "counter")
        .group_by(page)
        .agg(count_reset=pl.col("own").any())
    )
    counted = counted.join(counts, on=page, how="left", nulls_equal=True, maintain_order="left")
    is_sum = pl.col("name").str.ends_with("_sum") & (pl.col("kind") != "counter")
    reset = pl.when(is_sum).then(pl.col("moved") | pl.coalesce("count_reset", "own")).otherwise("own")
    reset = reset & pl.col("previous_value").is_not_null()
    since = pl.when(reset).then(pl.lit(0.0)).otherwise("previous_value")
    return counted.with_columns(reset=reset, step=pl.col("value") - since)
