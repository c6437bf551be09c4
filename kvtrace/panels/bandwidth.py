"""Points and lines: what each transfer took, and the bandwidth that follows from all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, duration, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How fast is each path, as measured?"
READING = (
    "A point is one transfer: to the right what it took, upwards what it moved; the line is the measured "
    "bandwidth (steeper is faster), the pale wedge its interval. Hollow points include waiting in a queue."
)
_NOTHING = (
    "No transfer with bytes, start and end was recorded. The cache's own spans would fill this (LMCache: "
    "lmcache server --enable-tracing --otlp-endpoint), or any span with kvtrace.op = load or store and "
    "kvtrace.bytes."
)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c8aa0")
_MIB, _GIB, _MS = 2**20, 2**30, 1_000_000
_KEY = ("tier_from", "tier_to", "component", "includes_queue")


@dataclass(frozen=True)
class Bandwidth:
    """Paths, drawn transfers with the number of all, and how many are left out, by reason."""

    paths: pl.DataFrame
    points: pl.DataFrame
    transfers: int
    left_out: dict[str, int]
    empty: str | None = None


def data(run: Run, *, most: int = 2000) -> Bandwidth:
    """Every path's bandwidth, and its transfers; of many, evenly many by size and time.

    Raises:
        UsageError: `most` is not between 100 and 20,000.
    """
    from kvtrace.analyses.bandwidth import speeds
    from kvtrace.analyses.bandwidth.rows import left_out, measured, seen

    if not 100 <= most <= 20_000:
        raise UsageError(f"bandwidth: most must be between 100 and 20000, not {most}.")
    everything = seen(run)
    rows, others = measured(everything), left_out(everything)
    paths = speeds(rows)
    share = max(1, most // max(1, paths.height))
    place, among = pl.int_range(pl.len()).over(*_KEY), pl.len().over(*_KEY)
    kept = (place * share) // among != ((place - 1) * share) // among
    points = rows.with_columns(took_ns=pl.col("end_ns") - pl.col("start_ns")).filter((among <= share) | kept)
    return Bandwidth(paths, points, rows.height, others, None if paths.height else _nothing(others))


def _nothing(left_out: dict[str, int]) -> str:
    return f"{_NOTHING} {_left_out(left_out)}" if left_out else _NOTHING


def draw(frames: Bandwidth) -> go.Figure:
    """Megabytes against milliseconds, a colour a path."""
    if frames.empty:
        return sentence(frames.empty)
    figure = blank(height=380)
    figure.update_layout(
        xaxis=axis("ms from start to end", rangemode="tozero"), yaxis=axis("MiB moved", rangemode="tozero")
    )
    for number, row in enumerate(frames.paths.iter_rows(named=True)):
        mine = frames.points.filter(*(pl.col(name).eq_missing(pl.lit(row[name])) for name in _KEY))
        tint = _COLORS[number % len(_COLORS)]
        name = plain(_path(row))
        _wedge(figure, row, mine, tint, name)
        hollow = {"symbol": "circle-open"} if row["includes_queue"] else {}
        figure.add_scatter(
            mode="markers", x=(mine["took_ns"] / _MS).to_list(), y=(mine["bytes"] / _MIB).to_list(),
            marker={"color": tint, "size": 7, "opacity": 0.65, **hollow}, name=name, legendgroup=str(number),
            hovertemplate=f"{name}<br>%{{y:.3f}} MiB in %{{x:.3f}} ms<extra></extra>",
        )  # fmt: skip
    return figure


def _wedge(figure: go.Figure, row: dict[str, Any], mine: pl.DataFrame, tint: str, name: str) -> None:
    """The fitted line over the sizes that were moved, and between which lines it may lie."""
    if row["bandwidth_bytes_per_s"] is None:
        return
    sizes = mine["bytes"].to_numpy()
    fitted = row["latency_ns"] is not None
    ends = [int(sizes.min()) if fitted else 0, int(sizes.max())]
    pivot = float(np.median(sizes)) if fitted else 0.0  # the lines of the interval cross the fit here
    middle = (row["latency_ns"] or 0.0) + pivot / row["bandwidth_bytes_per_s"] * 1e9

    def times(speed: float) -> list[float]:
        return [(middle + (end - pivot) / speed * 1e9) / _MS for end in ends]

    heights = [end / _MIB for end in ends]
    low, high = row["bandwidth_low"], row["bandwidth_high"]
    if low is not None and high is not None:
        slow, fast = times(low), times(high)
        figure.add_scatter(
            mode="lines",
            x=[*slow, *fast[::-1], slow[0]],
            y=[*heights, *heights[::-1], heights[0]],
            fill="toself",
            line={"width": 0},
            fillcolor=_pale(tint),
            hoverinfo="skip",
            showlegend=False,
            name=name,
        )
    figure.add_scatter(
        mode="lines", x=times(row["bandwidth_bytes_per_s"]), y=heights, line={"width": 1.8, "color": tint},
        name=f"{name}: fit", showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def _pale(tint: str) -> str:
    red, green, blue = (int(tint[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.13)"


def _path(row: dict[str, Any]) -> str:
    """Gpu → host (lmcache.l1)."""
    part = "" if row["component"] is None else f" ({row['component']})"
    return f"{row['tier_from']} → {row['tier_to']}{part}"


def _left_out(left_out: dict[str, int]) -> str:
    told = ", ".join(f"{number:,} {kind}" for kind, number in left_out.items())
    return f"Left out: {told}."


def notes(frames: Bandwidth) -> tuple[str, ...]:
    """What is not in the numbers, and what the numbers are not."""
    if frames.empty:
        return ()
    said = []
    if frames.paths["includes_queue"].any():
        said.append(
            "Includes queue: the time runs from the asking to the report of the end. It is what the asker "
            "got, a lower bound of the path's bandwidth, and is in no fit of copies."
        )
    from kvtrace.analyses.bandwidth import OVERLAPPING

    overlapping = frames.paths.filter(pl.col("overlap") > OVERLAPPING).height
    if overlapping:
        said.append(
            f"{many(overlapping, 'path')} moved several transfers at a time: bandwidth is all bytes / the "
            "time in which any moved, so that single transfers lie below the line."
        )
    if frames.left_out:
        said.append(_left_out(frames.left_out))
    if frames.points.height < frames.transfers:
        said.append(f"{frames.points.height:,} of {frames.transfers:,} transfers are drawn, evenly by size.")
    return tuple(said)


def table(frames: Bandwidth) -> Table | None:
    """A line a path."""
    if frames.empty:
        return None
    rows = [
        (
            visible(_path(row)),
            "with queue" if row["includes_queue"] else "copy",
            count(row["transfers"]),
            size(row["bytes"]),
            _speed(row["bandwidth_bytes_per_s"]),
            _interval(row["bandwidth_low"], row["bandwidth_high"]),
            NONE if row["latency_ns"] is None else duration(row["latency_ns"]),
            f"{row['overlap']:.2f}",
        )
        for row in frames.paths.iter_rows(named=True)
    ]
    head = ("path", "time is of the", "transfers", "bytes", "GiB/s", "interval (95 %)", "latency", "overlap")
    caption = (
        "GiB is 2^30 bytes. Latency: of a transfer of 0 bytes; none with one size only, with a queue or "
        "where transfers overlap. Overlap: sum of durations / time in which any moved."
    )
    return Table(head, tuple(rows), caption, names=2)


def _speed(per_s: float | None) -> str:
    return NOT_OBSERVED if per_s is None else f"{per_s / _GIB:.3g}"


def _interval(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "too few"
    return f"{'0' if low is None else _speed(low)} to {'unbounded' if high is None else _speed(high)}"
