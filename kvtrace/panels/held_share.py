"""A step line: GPU blocks that transfers keep from being reused, against the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._origin import first_ns
from kvtrace.panels._text import count, many, plain, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How many GPU blocks do transfers keep from being reused?"
READING = (
    "Blocks that nobody computes with and nobody may have yet, because a transfer still needs them. The line "
    "is broken where a hold's blocks were not counted; the dashed line is the whole pool."
)
_NOTHING = (
    "No hold of GPU blocks was recorded. kvtrace's own instruments inside an engine would fill this "
    "(kvtrace run), or any span with kvtrace.op = hold and kvtrace.blocks."
)
_HELD, _POOL = "#8d7b6a", "#d55e00"

_LONGEST = """
SELECT request_id, reason, sum(blocks)::BIGINT AS blocks, sum(block_seconds) AS block_seconds,
    count(*) FILTER (end_ns IS NULL) AS open, count(*) AS holds
FROM kept GROUP BY request_id, reason
ORDER BY block_seconds DESC NULLS FIRST, request_id, reason LIMIT $top
"""


@dataclass(frozen=True)
class HeldShare:
    """The drawn points, the longest holders, and how many holds and changes there are in all."""

    points: pl.DataFrame
    holders: pl.DataFrame
    start_ns: int | None
    holds: int
    changes: int
    empty: str | None = None


def data(run: Run, *, most: int = 4000, top: int = 10) -> HeldShare:
    """Blocks held over time; of many changes the highest of each stretch stays.

    Raises:
        UsageError: `most` is not between 100 and 20,000, or `top` not between 1 and 50.
    """
    from kvtrace.analyses.held_share import held_share
    from kvtrace.analyses.hold import hold

    if not 100 <= most <= 20_000 or not 1 <= top <= 50:
        raise UsageError("held_share: most must be between 100 and 20000, top between 1 and 50.")
    rows, kept = held_share(run), hold(run)
    connection = run.connection()
    connection.register("kept", kept.to_arrow())
    holders = connection.sql(_LONGEST, params={"top": top}).pl()
    connection.unregister("kept")
    first = first_ns(run)
    return HeldShare(
        _highest(rows, most), holders, first, kept.height, rows.height, None if rows.height else _NOTHING
    )


def _highest(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Of so many stretches the highest point and the last; gaps stay."""
    if rows.height <= most:
        return rows
    stretch = (pl.int_range(pl.len()) * (most // 2)) // pl.len()
    place = rows.with_row_index("place").with_columns(stretch=stretch)
    tops = place.sort("blocks", descending=True, nulls_last=False).group_by("stretch").first()
    ends = place.group_by("stretch").last()
    return pl.concat([tops, ends]).unique("place").sort("place").select(rows.columns)


def draw(frames: HeldShare) -> go.Figure:
    """Blocks against seconds after the run's first record."""
    if frames.empty:
        return sentence(frames.empty)
    rows, zero = frames.points, frames.start_ns or 0
    seconds = ((rows["time_ns"] - zero) / 1e9).to_list()
    figure = blank(height=320)
    figure.update_layout(
        xaxis=axis("seconds after the run's first record"), yaxis=axis("GPU blocks held", rangemode="tozero")
    )
    figure.add_scatter(
        mode="lines",
        line={"shape": "hv", "color": _HELD, "width": 1.6},
        fill="tozeroy",
        name="blocks held",
        x=seconds,
        y=rows["blocks"].to_list(),
        customdata=[
            [plain(f"{count(row['blocks'])} of {count(row['pool_blocks'])} blocks"), plain(_share(row))]
            for row in rows.iter_rows(named=True)
        ],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]} of the pool<extra></extra>",
    )
    pool = rows["pool_blocks"][0]
    if pool is not None:
        figure.add_scatter(
            mode="lines",
            line={"dash": "dash", "color": _POOL, "width": 1.4},
            name=f"pool: {pool:,} blocks",
            x=[seconds[0], seconds[-1]],
            y=[pool, pool],
            hoverinfo="skip",
        )
    return figure


def _share(row: dict[str, int | None]) -> str:
    return share(row["blocks"], row["pool_blocks"])


def notes(frames: HeldShare) -> tuple[str, ...]:
    """The highest point, and what the picture leaves out."""
    known = frames.points.filter(pl.col("blocks").is_not_null())
    said = []
    if known.height:
        top = known.sort("blocks", descending=True).row(0, named=True)
        part = "" if top["pool_blocks"] is None else f", {_share(top)} of the pool of {top['pool_blocks']:,}"
        said.append(f"At most {many(top['blocks'], 'block')} were held at once{part}.")
    if frames.points["pool_blocks"].is_null().all():
        said.append("How many blocks the pool has was not observed.")
    if frames.points.height < frames.changes:
        said.append(
            f"{frames.changes:,} changes: of every stretch of time the highest point and the last are drawn."
        )
    return tuple(said)


def table(frames: HeldShare) -> Table | None:
    """Who kept the most, in blocks times time."""
    rows = [
        (
            visible(row["request_id"]),
            visible(row["reason"]),
            count(row["holds"]),
            count(row["blocks"]),
            "not observed" if row["block_seconds"] is None else f"{row['block_seconds']:,.1f}",
            count(row["open"]),
        )
        for row in frames.holders.iter_rows(named=True)
    ]
    head = ("request", "for a", "holds", "blocks", "block seconds", "end not seen")
    caption = f"The {many(len(rows), 'request')} that kept the most, of {many(frames.holds, 'hold')}."
    return Table(head, tuple(rows), caption, names=2)
