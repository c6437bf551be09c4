"""Timelines: the slowest requests, lane by lane, each with its critical path on top."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels import _partition, _timelines
from kvtrace.panels._bars import Placed, frame, traces
from kvtrace.panels._card import Story, Table
from kvtrace.panels._lanes import PATH, lanes, longest
from kvtrace.panels._layout import sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, duration, many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "Where did the slowest requests spend their time?"
READING = (
    "Time runs from each request's arrival. The thick lane is its critical path: what it was waiting for at "
    "every instant. The lanes below are what was recorded, hidden or not; a load or store is hollow until it "
    "begins, full while it copies, striped until it is reported, dotted until it is usable."
)
MOST_BARS = 4000
_BY = ("both", "e2e", "ttft")
_NO_ROW = (
    "No request is in this run; a front end's request spans would fill this (vLLM: --otlp-traces-endpoint)."
)
_NO_FIRST = (
    "No request's first token was observed; a front end's request spans with a time to first token would "
    "fill this (vLLM: --otlp-traces-endpoint)."
)
_UPPER = (
    "The critical path of {which} is an upper bound: nobody can tell when it computed (no step names it, or "
    "records of its scheduler were lost), so that time lies inside the other parts, each of which took at "
    "most what is shown (<=)."
)


@dataclass(frozen=True)
class Slowest:
    """Requests (the slowest to the end first, then others with a late first token), their paths and spans.

    A request has the bound of its path; null where it has no path. `told` are the sentences of `explain`.
    """

    requests: pl.DataFrame
    path: pl.DataFrame
    spans: pl.DataFrame
    told: pl.DataFrame
    empty: str | None = None


def data(run: Run, *, by: str = "both", top: int = 10) -> Slowest:
    """Which requests took longest to their end, to their first token, or either; and what happened to them.

    Raises:
        UsageError: `by` is not e2e, ttft or both, or `top` is not between 1 and 50.
    """
    from kvtrace.analyses.critical_path import critical_path
    from kvtrace.analyses.explain import told
    from kvtrace.analyses.exposure import partition

    if by not in _BY:
        raise UsageError(f"slowest: by must be one of {', '.join(_BY)}, not {by}.")
    if not 1 <= top <= 50:
        raise UsageError(f"slowest: top must be between 1 and 50, not {top}.")
    requests = _timelines.slowest(run, by, top)
    ids = tuple(requests["request_id"].to_list())
    if not ids:
        none = (pl.DataFrame(),) * 3
        return Slowest(requests, *none, _NO_FIRST if by == "ttft" else _NO_ROW)
    window: Literal["ttft", "e2e"] = "ttft" if by == "ttft" else "e2e"
    path = critical_path(run, window=window, requests=ids)
    bounds = _partition.bounds(run, partition(run), window, ids)
    requests = requests.join(bounds, on="request_id", how="left", maintain_order="left")
    return Slowest(requests, path, _timelines.spans(run, ids), told(run, ids))


def draw(frames: Slowest) -> go.Figure:
    """All requests under each other, on one axis."""
    if frames.empty:
        return sentence(frames.empty)
    groups = lanes(frames.requests, (frames.path, frames.spans))
    kept, _ = longest(groups, MOST_BARS)
    y = 0.0
    ticks: list[tuple[float, str]] = []
    titles: list[tuple[float, str]] = []
    placed: list[Placed] = []
    for number, ((request, found), bars) in enumerate(zip(groups, kept, strict=True), start=1):
        titles.append((y + 0.2, _title(number, request)))
        y += 1.5
        for lane in found:
            ticks.append((y, plain(lane)))
            placed += [Placed(y, 1.0 if lane == PATH else 0.62, bar) for bar in bars[lane]]
            y += 1.15 if lane == PATH else 1.0
        y += 0.7
    figure = frame(max(frames.requests["shown_ns"].to_list()), ticks, y)
    for at, text in titles:
        figure.add_annotation(
            text=text, x=0, xref="paper", xanchor="left", y=at, yref="y", yanchor="middle", showarrow=False
        )
    traces(figure, placed)
    return figure


def _title(number: int, request: dict[str, Any]) -> str:
    took = f"TTFT {duration(request['ttft_ns'])}, end to end {_end_to_end(request)}"
    return f"<b>{number}  {plain(request['request_id'], 56)}</b>  {plain(took)}"


def _end_to_end(request: dict[str, Any]) -> str:
    if request["duration_ns"] is not None:
        return duration(request["duration_ns"])
    return f"open, >= {duration(request['shown_ns'])}"


def notes(frames: Slowest) -> tuple[str, ...]:
    """Whose numbers are bounds, and what the picture leaves out."""
    if frames.empty:
        return ()
    said = []
    upper, shown = int((frames.requests["bound"] == "upper").sum()), frames.requests.height
    if upper:
        which = "every request shown" if upper == shown else f"{upper:,} of the {shown:,} requests shown"
        said.append(_UPPER.format(which=which))
    _, left_out = longest(lanes(frames.requests, (frames.path, frames.spans)), MOST_BARS)
    if left_out:
        said.append(
            f"{many(left_out, 'bar')} shorter than those drawn are left out; every lane keeps its longest."
        )
    return tuple(said)


def stories(frames: Slowest) -> tuple[Story, ...]:
    """Why each of them was slow, in the sentences of `explain`."""
    said: dict[str, list[str]] = defaultdict(list)
    for row in frames.told.iter_rows(named=True):
        said[row["request_id"]].append(row["sentence"])
    numbered = enumerate(frames.requests["request_id"].to_list(), start=1)
    return tuple(Story(f"{number}  {visible(name)}", tuple(said[name])) for number, name in numbered)


def table(frames: Slowest) -> Table | None:
    """What is known of these requests."""
    if frames.empty:
        return None
    head = ("", "slowest by", "request", "TTFT", "end to end", "prompt tokens", "in the GPU before")
    rest = ("found of asked", "loaded to the GPU", "output tokens", "status")
    rows = [_cells(number, row) for number, row in enumerate(frames.requests.iter_rows(named=True), start=1)]
    ranked = frames.requests["ranked"][0]
    few = (
        f"{len(rows)} of {many(ranked, 'request')}"
        if ranked > len(rows)
        else f"All {many(ranked, 'request')}"
    )
    caption = f"{few}; “slowest by” is the rank by time to the end / to the first token."
    return Table(head + rest, tuple(rows), caption, names=3)


def _cells(number: int, row: dict[str, Any]) -> tuple[str, ...]:
    places = "/".join(NONE if row[key] is None else str(row[key]) for key in ("e2e_place", "ttft_place"))
    found = NOT_OBSERVED
    if row["found_tokens"] is not None:
        found = f"{count(row['found_tokens'])} of {count(row['requested_tokens'])}"
    return (
        str(number),
        places,
        visible(row["request_id"]),
        duration(row["ttft_ns"]),
        _end_to_end(row),
        count(row["prompt_tokens"]),
        count(row["gpu_hit_tokens"]),
        found,
        count(row["loaded_tokens"]) if row["loads"] else "none seen",
        count(row["output_tokens"]),
        visible(row["status"]),
    )
