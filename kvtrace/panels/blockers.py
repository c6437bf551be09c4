"""Bars: whom requests waited for - held GPU blocks and others' waits, by the request that caused them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.errors import UsageError
from kvtrace.panels import _palette
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, bounded, count, duration, many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Who waited for whom?"
READING = (
    "One bar a request that others waited for: the time that its held GPU blocks and its waits cost them. "
    "Held blocks count only while they were enough to be the reason, each hold by its share."
)
_NOTHING = (
    "No request waited for another's wait or held GPU blocks, as far as was recorded. kvtrace's own "
    "instruments inside an engine (kvtrace run) record waits, holds and the blocks that a request lacks; so "
    "do spans with kvtrace.op = wait, hold or queue."
)
_WORDS = {"queue_capacity": "held GPU blocks", "interference": "its wait, between others' steps"}

_BLAMED = """
WITH bounds AS (
    SELECT DISTINCT request_id, bound FROM read_parquet($partition) WHERE "window" = $window
), mine AS (
    SELECT b.*, coalesce(x.bound, 'upper') AS bound
    FROM read_parquet($path) b LEFT JOIN bounds x USING (request_id)
    WHERE b."window" = $window AND (b.exposed_ns > 0 OR b.exposed_ns IS NULL)
), top AS (
    SELECT blocker_request_id AS blocker, sum(exposed_ns) AS all_ns FROM mine GROUP BY ALL
    ORDER BY all_ns DESC NULLS LAST, blocker LIMIT $top
)
SELECT blocker_request_id, class, reason, sum(exposed_ns)::DOUBLE AS exposed_ns,
    max(all_ns)::DOUBLE AS all_ns, count(DISTINCT request_id) AS requests,
    count(*) FILTER (exposed_ns IS NULL) AS unknown,
    CASE WHEN bool_or(bound = 'upper') THEN 'upper' ELSE 'exact' END AS bound,
    arg_max(request_id, exposed_ns) AS longest_id, max(exposed_ns) AS longest_ns
FROM mine JOIN top ON blocker_request_id IS NOT DISTINCT FROM blocker
GROUP BY blocker_request_id, class, reason ORDER BY all_ns DESC NULLS LAST, blocker_request_id, class, reason
"""
_ALL = """
SELECT count(DISTINCT blocker_request_id) AS blockers, count(DISTINCT request_id) AS requests,
    sum(exposed_ns)::DOUBLE AS exposed_ns
FROM read_parquet($path) WHERE "window" = $window AND exposed_ns > 0
"""


@dataclass(frozen=True)
class Blockers:
    """One row a (blocker, class, reason) of those that cost others the most, and the whole run's sums."""

    rows: pl.DataFrame
    blockers: int
    requests: int
    exposed_ns: float
    window: str
    empty: str | None = None


def data(run: Run, *, window: str = "e2e", top: int = 15) -> Blockers:
    """Whose holds and waits cost others the most.

    Raises:
        UsageError: no such window, or `top` is not between 1 and 50.
    """
    from kvtrace.analyses.blockers import shares
    from kvtrace.analyses.exposure import partition

    if window not in ("ttft", "decode", "e2e"):
        raise UsageError(f"blockers: no window {window}; there are ttft, decode, e2e.")
    if not 1 <= top <= 50:
        raise UsageError(f"blockers: top must be between 1 and 50, not {top}.")
    connection = run.connection()
    where = {"path": str(shares(run)), "window": window}
    rows = connection.sql(_BLAMED, params={**where, "partition": str(partition(run)), "top": top}).pl()
    ((blockers, requests, exposed_ns),) = connection.sql(_ALL, params=where).fetchall()
    return Blockers(rows, blockers, requests, exposed_ns or 0.0, window, None if rows.height else _NOTHING)


def _name(row: dict[str, Any]) -> str:
    return "somebody unnamed" if row["blocker_request_id"] is None else row["blocker_request_id"]


def _cause(row: dict[str, Any]) -> str:
    """What of the blocker others waited for."""
    words = _WORDS.get(row["class"], "its wait, in steps shared with others")
    return f"{words} ({row['reason'] or 'reason ' + NOT_OBSERVED})"


def draw(frames: Blockers) -> go.Figure:
    """One bar a blocker, cut by class."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.rows.iter_rows(named=True))
    labels = list(dict.fromkeys(plain(_name(row), 44) for row in rows))
    figure = blank(height=30 * len(labels) + 130, barmode="stack", bargap=0.34)
    figure.update_layout(
        xaxis=axis("time that others waited, summed over them (s)", rangemode="tozero"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for kind in dict.fromkeys(row["class"] for row in rows):
        mine = [row for row in rows if row["class"] == kind and row["exposed_ns"]]
        figure.add_bar(
            orientation="h",
            name=plain(_WORDS.get(kind, "its wait, in shared steps")),
            marker={"color": _palette.COLORS[kind]},
            y=[plain(_name(row), 44) for row in mine],
            x=[row["exposed_ns"] / 1e9 for row in mine],
            customdata=[
                [
                    plain(_cause(row)),
                    plain(bounded(duration(row["exposed_ns"]), row["bound"])),
                    plain(f"{many(row['requests'], 'request')} waited, {_longest(row)}"),
                ]
                for row in mine
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )
    return figure


def _longest(row: dict[str, Any]) -> str:
    if row["longest_ns"] is None:
        return f"whose part is {NOT_OBSERVED}"
    return f"longest {visible(row['longest_id'])} {bounded(duration(row['longest_ns']), row['bound'])}"


def notes(frames: Blockers) -> tuple[str, ...]:
    """The whole run in one sentence, and what nobody could divide."""
    if not frames.exposed_ns:
        return (
            f"Holders are known, their part is {NOT_OBSERVED}: nobody counted the blocks that were lacked.",
        )
    bound = "upper" if (frames.rows["bound"] == "upper").any() else "exact"
    whole = bounded(duration(frames.exposed_ns), bound)
    others = many(frames.blockers, "other request")
    said = [f"{many(frames.requests, 'request')} waited {whole} in all for {others}."]
    if unknown := int(frames.rows["unknown"].sum()):
        said.append(f"Of {many(unknown, 'wait')} for held blocks the part is {NOT_OBSERVED}.")
    return tuple(said)


def table(frames: Blockers) -> Table | None:
    """The numbers of the bars."""
    rows = [
        (
            visible(_name(row)),
            visible(_cause(row)),
            count(row["requests"]),
            bounded(duration(row["exposed_ns"]), row["bound"]),
            visible(row["longest_id"]) if row["longest_ns"] is not None else NOT_OBSERVED,
            bounded(duration(row["longest_ns"]), row["bound"]),
        )
        for row in frames.rows.iter_rows(named=True)
    ]
    head = ("waited for", "for", "requests waited", "time, all of them", "longest", "its time")
    caption = f"Those that cost others the most; window {frames.window}."
    return Table(head, tuple(rows), caption, names=2)
