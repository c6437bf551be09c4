"""Points and a line: what each load cost, and what computing the same tokens would have taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, count, duration, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "Were loads worth it, or would computing have been quicker?"
READING = (
    "A point is a request's load: to the right what the request waited for it, upwards the bytes of it that "
    "were used. The line is break-even: what computing so much takes, the pale band its error. Left of the "
    "band loading was worth it, right of it not. Hollow points rest on an estimate, or on bytes moved."
)
_NOTHING = (
    "No load of a request was recorded. The cache's own spans would fill this (LMCache: lmcache server "
    "--enable-tracing --otlp-endpoint), or any span with kvtrace.op = load; steps of the engine (kvtrace "
    "run) give the line."
)
_WORDS = {"worth": "worth it", "not_worth": "not worth it", "unclear": "unclear"}
_COLORS = {"worth": "#009e73", "not_worth": "#d55e00", "unclear": "#7c8aa0"}
_LINES = ("#0072b2", "#cc79a7", "#e69f00", "#56b4e9")
_MIB, _MS = 2**20, 1_000_000
_POINTS_OF_A_LINE = 33


@dataclass(frozen=True)
class BreakEven:
    """Verdicts with their sums, drawn loads, a line an engine, and how many loads have no place."""

    sums: pl.DataFrame
    points: pl.DataFrame
    lines: dict[str, pl.DataFrame]
    drawable: int
    placeless: int
    without_line: int
    empty: str | None = None


def data(run: Run, *, most: int = 2000) -> BreakEven:
    """Every load's cost and bytes; of many, evenly many by bytes and cost.

    Raises:
        UsageError: `most` is not between 100 and 20,000.
    """
    from kvtrace.analyses.break_even import table as rows_of

    if not 100 <= most <= 20_000:
        raise UsageError(f"break_even: most must be between 100 and 20000, not {most}.")
    rows = pl.read_parquet(rows_of(run)).with_columns(
        drawn_bytes=pl.coalesce("useful_bytes", "moved_bytes"),
        is_hollow=~pl.col("exact").fill_null(value=False) | pl.col("useful_bytes").is_null(),
    )
    placed = rows.filter(pl.col("drawn_bytes").is_not_null(), pl.col("cost_ns").is_not_null())
    placed = placed.sort("drawn_bytes", "cost_ns", "request_id")
    place = pl.int_range(pl.len())
    points = placed.filter((place * most) // pl.len() != ((place - 1) * most) // pl.len())
    points = placed if placed.height <= most else points
    drawn = _drawn_lines(run, placed)
    told = [row for row in placed["engine"].drop_nulls().unique().to_list() if row not in drawn]
    empty = None if placed.height else _nothing(rows.height)
    return BreakEven(_sums(rows), points, drawn, placed.height, rows.height - placed.height, len(told), empty)


def _nothing(number: int) -> str:
    if not number:
        return _NOTHING
    return (
        f"{many(number, 'request')} loaded, and of none both the bytes and what it waited were recorded "
        "(bytes: LMCache's --enable-tracing, or kvtrace.bytes; waiting: kvtrace run)."
    )


def _sums(rows: pl.DataFrame) -> pl.DataFrame:
    """A row a verdict: requests, and sums over those that know both cost and estimate."""
    known = pl.col("saved_ns").is_not_null()
    every = rows.group_by("verdict").agg(
        requests=pl.len(), useful_bytes=pl.col("useful_bytes").cast(pl.Float64).sum(),
        moved_bytes=pl.col("moved_bytes").cast(pl.Float64).sum(), compared=known.sum(),
        cost_ns=pl.col("cost_ns").filter(known).cast(pl.Float64).sum(),
        recompute_ns=pl.col("recompute_estimate_ns").filter(known).cast(pl.Float64).sum(),
    )  # fmt: skip
    order = pl.DataFrame({"verdict": list(_WORDS)})
    return order.join(every, on="verdict", maintain_order="left")


def _drawn_lines(run: Run, placed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Engine -> bytes, ns, low, high of computing so much behind no GPU hit, up to the largest load."""
    from kvtrace.analyses.break_even import lines

    found = {}
    engines = set(placed.filter(pl.col("used_tokens") > 0)["engine"].drop_nulls())
    for engine, line in lines(run, engines).items() if engines else ():
        mine = placed.filter(
            pl.col("engine") == engine, pl.col("used_tokens") > 0, pl.col("useful_bytes") > 0
        )
        if not mine.height:
            continue
        a_token = (mine["useful_bytes"] / mine["used_tokens"]).median()
        tokens = np.linspace(0, float(mine["used_tokens"].to_numpy().max()), _POINTS_OF_A_LINE)
        asked = np.c_[np.zeros(len(tokens)), tokens, tokens * tokens / 2]
        ends = line.interval(asked, 0.95)
        middle = line.estimate(asked)
        low, high = (middle, middle) if ends is None else ends
        found[engine] = pl.DataFrame(
            {"bytes": tokens * float(str(a_token)), "ns": middle, "low": low, "high": high}
        )
    return found


def draw(frames: BreakEven) -> go.Figure:
    """Milliseconds waited against mebibytes used, a colour a verdict."""
    if frames.empty:
        return sentence(frames.empty)
    figure = blank(height=380)
    figure.update_layout(
        xaxis=axis("ms waited for the loads", rangemode="tozero"),
        yaxis=axis("MiB used", rangemode="tozero"),
    )
    for number, (engine, line) in enumerate(frames.lines.items()):
        _line(figure, engine, line, _LINES[number % len(_LINES)], single=len(frames.lines) == 1)
    for verdict, name in _WORDS.items():
        mine = frames.points.filter(pl.col("verdict") == verdict)
        if not mine.height:
            continue
        texts = [
            f"{plain(row['request_id'])}<br>{name}: waited {duration(row['cost_ns'])}, computing "
            f"{duration(row['recompute_estimate_ns'])}<br>{size(row['drawn_bytes'])}"
            for row in mine.iter_rows(named=True)
        ]
        symbols = ["circle-open" if hollow else "circle" for hollow in mine["is_hollow"]]
        figure.add_scatter(
            mode="markers", x=(mine["cost_ns"] / _MS).to_list(), y=(mine["drawn_bytes"] / _MIB).to_list(),
            marker={"color": _COLORS[verdict], "size": 8, "opacity": 0.75, "symbol": symbols},
            name=name, text=texts, hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    return figure


def _line(figure: go.Figure, engine: str, line: pl.DataFrame, tint: str, *, single: bool) -> None:
    """The line of break-even and its band."""
    name = "break-even" if single else f"break-even ({plain(engine, 24)})"
    height = (line["bytes"] / _MIB).to_list()
    low, high = ((line[end] / _MS).to_list() for end in ("low", "high"))
    red, green, blue = (int(tint[place : place + 2], 16) for place in (1, 3, 5))
    figure.add_scatter(
        mode="lines", x=[*low, *high[::-1], low[0]], y=[*height, *height[::-1], height[0]], fill="toself",
        line={"width": 0}, fillcolor=f"rgba({red},{green},{blue},0.13)", hoverinfo="skip", showlegend=False,
        name=name,
    )  # fmt: skip
    figure.add_scatter(
        mode="lines", x=(line["ns"] / _MS).to_list(), y=height, line={"width": 1.8, "color": tint}, name=name,
        hoverinfo="skip",
    )  # fmt: skip


def notes(frames: BreakEven) -> tuple[str, ...]:
    """What is not in the picture, and what the line is not."""
    if frames.empty:
        return ()
    said = []
    if frames.lines:
        said.append(
            "The line is fitted from the engine's own prefill steps, for tokens behind no GPU hit; the "
            "verdict of a point uses what the GPU held of its own prompt. A prediction is no measurement."
        )
    if frames.without_line:
        engines = many(frames.without_line, "engine")
        said.append(f"No line of {engines}: too few prefill steps of different sizes were recorded.")
    if frames.placeless:
        said.append(f"Not drawn: {many(frames.placeless, 'load')} of which bytes or waiting are not known.")
    if frames.points.height < frames.drawable:
        said.append(f"{frames.points.height:,} of {frames.drawable:,} loads are drawn, evenly by size.")
    return tuple(said)


def table(frames: BreakEven) -> Table | None:
    """A line a verdict."""
    if frames.empty:
        return None
    rows = []
    for row in frames.sums.iter_rows(named=True):
        known = row["compared"] > 0
        saved = duration(row["recompute_ns"] - row["cost_ns"]) if known else NOT_OBSERVED
        rows.append(
            (
                visible(_WORDS[row["verdict"]]), count(row["requests"]), size(row["useful_bytes"]),
                size(row["moved_bytes"]), duration(row["cost_ns"]) if known else NOT_OBSERVED,
                duration(row["recompute_ns"]) if known else NOT_OBSERVED, saved,
            )
        )  # fmt: skip
    head = ("load", "requests", "bytes used", "bytes moved", "waited", "computing instead", "saved")
    caption = (
        "MiB is 2^20 bytes. Sums over the requests of which both are known: what they waited for their loads "
        "until the first token, and the estimate of computing the same tokens; negative: loading cost more."
    )
    return Table(head, tuple(rows), caption)
