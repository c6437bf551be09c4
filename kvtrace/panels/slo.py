"""Stacked bars: who was served within the targets, who was not, and of whom nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvtrace.analyses.slo import ITL_P99_NS, TTFT_NS
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, duration, many, plain, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Who was served in time?"
READING = (
    "A bar a target: requests that were in time, those that were not or failed, and those of which it is not "
    "known. Attained is the share of those of which it is known."
)
_NOTHING = (
    "No request was recorded. vLLM's spans would fill this (--otlp-traces-endpoint), or kvtrace's own "
    "instruments inside an engine (kvtrace run)."
)
_WORDS = {
    "ttft_ns": "first token",
    "itl_p50_ns": "between tokens, median",
    "itl_p99_ns": "between tokens, p99",
    "e2e_ns": "finish",
}
_PARTS = (("in time", "#009e73"), ("late or failed", "#d55e00"), ("not known", "#c9ccd1"))


@dataclass(frozen=True)
class Slo:
    """The rows of the question, as they are."""

    rows: pl.DataFrame
    empty: str | None = None


def data(
    run: Run,
    *,
    ttft_ns: int | None = TTFT_NS,
    itl_p50_ns: int | None = None,
    itl_p99_ns: int | None = ITL_P99_NS,
    e2e_ns: int | None = None,
    by: Literal["group", "engine", "verdict"] = "group",
) -> Slo:
    """Requests within each target; the options are those of the question.

    Raises:
        UsageError: no target, a negative one, or `by` is something else.
    """
    from kvtrace.analyses.slo import slo

    rows = slo(run, ttft_ns=ttft_ns, itl_p50_ns=itl_p50_ns, itl_p99_ns=itl_p99_ns, e2e_ns=e2e_ns, by=by)
    return Slo(rows, None if rows.height else _NOTHING)


def _name(row: dict[str, Any]) -> str:
    group = "" if row["group"] is None else f"{visible(row['group'], 40)}: "
    return f"{group}{_WORDS[row['metric']]} within {duration(row['target_ns'])}"


def _parts(row: dict[str, Any]) -> tuple[int, int, int]:
    in_time = row["attained"] or 0
    return in_time, row["requests"] - in_time, row["censored"]


def draw(frames: Slo) -> go.Figure:
    """One stacked bar a target and group."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.rows.iter_rows(named=True))
    labels = [plain(_name(row)) for row in rows]
    figure = blank(height=44 * len(rows) + 110, barmode="stack", bargap=0.35)
    figure.update_layout(
        xaxis=axis("of the requests (%)", range=[0, 100]),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for place, (words, tint) in enumerate(_PARTS):
        figure.add_bar(
            orientation="h",
            name=words,
            y=labels,
            x=[100 * _parts(row)[place] / max(1, sum(_parts(row))) for row in rows],
            marker={"color": tint},
            customdata=[
                [label, f"{words}: {many(_parts(row)[place], 'request')}"]
                for row, label in zip(rows, labels, strict=True)
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )
    return figure


def notes(frames: Slo) -> tuple[str, ...]:
    """What is missing."""
    unseen = [row for row in frames.rows.iter_rows(named=True) if row["attained"] is None]
    if not unseen:
        return ()
    return (f"{', '.join(_name(row) for row in unseen[:6])}: {NOT_OBSERVED}. Nobody recorded what it takes.",)


def table(frames: Slo) -> Table | None:
    """The numbers of the bars."""
    rows = tuple(
        (
            NONE if row["group"] is None else visible(row["group"]),
            _WORDS[row["metric"]],
            duration(row["target_ns"]),
            share(row["attained"], row["requests"]),
            count(row["attained"]),
            count(row["requests"]),
            count(row["censored"]),
        )
        for row in frames.rows.iter_rows(named=True)
    )
    head = ("group", "time to", "target", "attained", "in time", "of requests", "not known")
    caption = (
        "Not known: still open or aborted before the target, or what the time is made of was not recorded."
    )
    return Table(head, rows, caption, names=2) if rows else None
