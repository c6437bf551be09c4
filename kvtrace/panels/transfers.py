"""Lanes over time: every path between tiers, and what moved on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels import _palette
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._origin import first_ns
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, duration, many, plain, size, visible
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What moved between the tiers, and when?"
READING = (
    "One lane a path. A bar is one transfer from start to end; a cross is a store that stored nothing, a "
    "triangle one whose end nobody saw."
)
_NOTHING = (
    "No load or store was recorded. The cache's own spans would fill this (LMCache: lmcache server "
    "--enable-tracing --otlp-endpoint), or any span with kvtrace.op = load or store."
)

_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>"

_SAMPLE = """
WITH moved AS MATERIALIZED (
    SELECT
        op, tier_from, tier_to, request_id, start_ns, end_ns,
        tokens, bytes, outcome, reason, component, span_id
    FROM transfer
    UNION ALL
    SELECT
        'drop', coalesce(tier_from, 'unknown'), coalesce(tier_to, 'unknown'), request_id, start_ns, end_ns,
        tokens, bytes, outcome, reason, component, span_id
    FROM span WHERE op = 'drop'
), number AS (
    SELECT count(*) <= $most AS few FROM moved
), largest AS (
    SELECT * FROM moved WHERE bytes IS NOT NULL
    ORDER BY bytes DESC, start_ns, request_id, span_id, op, tier_from, tier_to, end_ns LIMIT $most // 4
), longest AS (
    SELECT * FROM moved
    ORDER BY TRY(end_ns - start_ns) DESC NULLS FIRST, start_ns, request_id, span_id, op,
        tier_from, tier_to
    LIMIT $most // 4
), spread AS (
    SELECT * FROM moved
    ORDER BY md5_number_lower(concat_ws('|', request_id, start_ns, span_id, op, tier_from, tier_to)), end_ns
    LIMIT $most // 2
)
SELECT * FROM moved WHERE (SELECT few FROM number)
UNION ALL
SELECT * FROM (SELECT * FROM largest UNION SELECT * FROM longest UNION SELECT * FROM spread)
WHERE NOT (SELECT few FROM number)
ORDER BY start_ns, request_id, span_id, op, tier_from, tier_to, end_ns
"""

_PATHS = """
SELECT
    op, tier_from, tier_to, count(*) AS transfers,
    sum(tokens)::DOUBLE AS tokens, sum(bytes)::DOUBLE AS bytes,
    count(*) FILTER (WHERE bytes IS NULL) AS bytes_unknown, count(*) FILTER (WHERE end_ns IS NULL) AS open,
    round(median(TRY(end_ns - start_ns))) AS median_ns,
    max(TRY(end_ns - start_ns)) AS longest_ns,
    count(*) FILTER (WHERE outcome <> 'ok') AS not_ok, count(*) FILTER (WHERE outcome IS NULL) AS not_said
FROM (
    SELECT op, tier_from, tier_to, start_ns, end_ns, tokens, bytes, outcome FROM transfer
    UNION ALL
    SELECT
        'drop', coalesce(tier_from, 'unknown'), coalesce(tier_to, 'unknown'), start_ns, end_ns,
        tokens, bytes, NULL
    FROM span WHERE op = 'drop'
)
GROUP BY op, tier_from, tier_to
"""
"""A sum is exact inside (int128) and leaves as a double: no number from outside can be too large for it."""

_TIERS = ("gpu", "host", "peer", "disk", "object", "unknown")


@dataclass(frozen=True)
class Transfers:
    """The transfers that are drawn, and one row a (op, path) over all of them."""

    sample: pl.DataFrame
    paths: pl.DataFrame
    start_ns: int | None
    most: int
    empty: str | None = None
    dateless: int = 0
    """Of the sample, those that no date places beside the others."""


def data(run: Run, *, most: int = 2000) -> Transfers:
    """Every transfer and drop, or of many: the largest, the longest, those without an end and an even sample.

    Raises:
        UsageError: `most` is not between 100 and 20,000.
    """
    if not 100 <= most <= 20_000:
        raise UsageError(f"transfers: most must be between 100 and 20000, not {most}.")
    connection = run.connection()
    paths = connection.sql(_PATHS).pl()
    sample = connection.sql(_SAMPLE, params={"most": most}).pl()
    first = first_ns(run)
    dated = pl.col("start_ns").is_null() | (pl.col("start_ns") >= FIRST_DATE_NS)
    placed = sample.filter(dated) if first is not None and first >= FIRST_DATE_NS else sample
    rank = [
        pl.col(column).replace_strict(dict(zip(_TIERS, range(6), strict=True)), default=6)
        for column in ("tier_from", "tier_to")
    ]
    op = pl.col("op").replace_strict({"load": 0, "store": 1, "drop": 2}, default=3)
    empty = None if paths.height else _NOTHING
    dateless = sample.height - placed.height
    return Transfers(placed, paths.sort(op, *rank), first, most, empty, dateless)


def draw(frames: Transfers) -> go.Figure:
    """Lanes by path in seconds after the run's first record."""
    if frames.empty:
        return sentence(frames.empty)
    paths = list(frames.paths.select("op", "tier_from", "tier_to").iter_rows())
    figure = blank(height=38 * len(paths) + 130, barmode="overlay")
    figure.update_layout(
        xaxis=axis("seconds after the run's first record"),
        yaxis=axis(
            tickvals=list(range(len(paths))),
            ticktext=[plain(_lane(*path)) for path in paths],
            range=[len(paths) - 0.4, -0.6],
            showgrid=False,
            fixedrange=True,
        ),
    )
    hops = tuple(sorted({f"{start}->{end}" for op, start, end in paths if op == "load"}))
    shown: set[str] = set()
    for lane, (op, start, end) in enumerate(paths):
        mine = frames.sample.filter(
            pl.col("op") == op, pl.col("tier_from") == start, pl.col("tier_to") == end
        )
        tint = _palette.color("load", f"{start}->{end}", hops) if op == "load" else _palette.COLORS["store"]
        _trace(figure, mine, lane, op, tint, frames.start_ns or 0, shown)
    return figure


def _lane(op: str, start: str, end: str) -> str:
    if start == end == "unknown":
        return f"{op}, path {NOT_OBSERVED}"
    return f"{op} {start} → {end}"


def _trace(
    figure: go.Figure, rows: pl.DataFrame, lane: int, op: str, tint: str, zero: int, shown: set[str]
) -> None:
    """Bars of one path; failed ones in their own colour; drops and what has no end as marks."""
    bad = pl.col("outcome").is_in(["failed", "timeout", "cancelled"]).fill_null(value=False)
    ended = rows.filter(pl.col("end_ns").is_not_null(), pl.lit(op != "drop"))
    failed = _palette.OUTCOMES["failed"]
    for name, some, hue in ((op, ended.filter(~bad), tint), ("failed", ended.filter(bad), failed)):
        if some.height:
            figure.add_bar(
                orientation="h",
                width=0.62,
                base=(some["start_ns"].to_numpy() - zero) / 1e9,
                x=(some["end_ns"] - some["start_ns"]).to_numpy() / 1e9,
                marker={"color": hue, "opacity": 0.72, "line": {"width": 0.8, "color": hue}},
                **_common(some, lane, name, shown),
            )
    marks = rows.filter(pl.col("end_ns").is_null() | pl.lit(op == "drop"))
    if marks.height:
        dropped = op == "drop"
        symbol = "x-thin" if dropped else "triangle-right"
        figure.add_scatter(
            mode="markers",
            x=(marks["start_ns"].to_numpy() - zero) / 1e9,
            marker={"symbol": symbol, "size": 10, "color": failed, "line": {"width": 2, "color": failed}},
            **_common(marks, lane, "stored nothing (drop)" if dropped else "end not observed", shown),
        )


def _common(rows: pl.DataFrame, lane: int, name: str, shown: set[str]) -> dict[str, Any]:
    """What bars and marks share; every name is once in the legend."""
    first = name not in shown
    shown.add(name)
    return {
        "y": [lane] * rows.height,
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "customdata": [_hover(row) for row in rows.iter_rows(named=True)],
        "hovertemplate": _HOVER,
    }


def _hover(row: dict[str, Any]) -> list[str]:
    took = None if row["end_ns"] is None else row["end_ns"] - row["start_ns"]
    facts = [
        f"tokens {NOT_OBSERVED}" if row["tokens"] is None else many(row["tokens"], "token"),
        f"bytes {NOT_OBSERVED}" if row["bytes"] is None else size(row["bytes"]),
        f"end {NOT_OBSERVED}" if took is None else duration(took),
    ]
    because = [
        row["outcome"] and f"outcome {row['outcome']}",
        row["reason"] and f"reason {row['reason']}",
        row["component"],
    ]
    return [
        plain(row["request_id"], 64) if row["request_id"] is not None else "request not observed",
        plain(", ".join(facts)),
        plain(", ".join(filter(None, because)) or f"outcome {NOT_OBSERVED}", 160),
    ]


def notes(frames: Transfers) -> tuple[str, ...]:
    """Whether everything is drawn."""
    if frames.empty:
        return ()
    total, drawn = int(frames.paths["transfers"].sum()), frames.sample.height
    said = []
    if drawn + frames.dateless < total:
        said.append(
            f"Sampled: {drawn:,} of {total:,} are drawn (limit {frames.most:,}): the {frames.most // 4:,} "
            f"largest, the {frames.most // 4:,} longest or without an end, and {frames.most // 2:,} of all, "
            "chosen by a hash. The table counts all of them."
        )
    if frames.dateless:
        said.append("Transfers of a clock without a date are in the table alone.")
    return tuple(said)


def table(frames: Transfers) -> Table | None:
    """All transfers by path, drawn or not."""
    if frames.empty:
        return None
    rows = [
        (
            visible(_lane(row["op"], row["tier_from"], row["tier_to"])),
            count(row["transfers"]),
            count(row["tokens"]),
            _without(size(row["bytes"]), row["bytes_unknown"]),
            duration(row["median_ns"]),
            duration(row["longest_ns"]),
            NONE if row["op"] == "drop" else count(row["open"]),
            NONE if row["op"] == "drop" else _not_ok(row),
        )
        for row in frames.paths.iter_rows(named=True)
    ]
    head = ("path", "transfers", "tokens", "bytes", "median time", "longest", "end not seen", "not ok")
    caption = "Tokens and bytes are sums of what was recorded; GiB is 2^30. “Without”: did not say it."
    return Table(head, tuple(rows), caption)


def _not_ok(row: dict[str, Any]) -> str:
    """How many did not end well, of those that said how they ended."""
    said_nothing = row["not_said"] == row["transfers"]
    return _without(NOT_OBSERVED if said_nothing else count(row["not_ok"]), row["not_said"])


def _without(text: str, missing: int) -> str:
    """A number over some of the rows says how many of them are not in it."""
    return f"{text} ({missing:,} without)" if missing and text != NOT_OBSERVED else text
