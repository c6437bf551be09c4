"""Runs that load before their first token, and what a faster path saves of each, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.unit.analyses.exposure.drawing import load, request, scheduler, step, store, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]
Rows = list[Row]
LATEST = 40
PATHS = ("host->gpu", "disk->host")
NO_REASON_OF_ITS_OWN = ("remote_kv", "lookup", "unknown")


@st.composite
def loading_runs(draw: st.DrawFn) -> Rows:
    """One engine, one to three requests: most load, most of them before the step that serves it first."""

    def span(low: int, high: int) -> tuple[int, int]:
        start = draw(st.integers(low, high))
        return start, draw(st.integers(start + 1, max(high, start) + 2))

    rows: Rows = []
    for number in range(draw(st.integers(1, 3))):
        name = f"r{number}"
        arrival = draw(st.integers(0, 12))
        begin = draw(st.integers(arrival + 4, LATEST - 4))
        token = draw(st.integers(begin + 1, LATEST))
        rows += [request(arrival, token + 5, token, request_id=name), step(begin, token, name)]
        for _ in range(draw(st.sampled_from((0, 1, 1, 2)))):
            start, end = span(arrival, begin)
            more = draw(st.sampled_from(({}, {}, {"submit_ns": arrival}, {"usable_ns": end + 3})))
            rows.append(load(start, end, draw(st.sampled_from(PATHS)), request_id=name, **more))
        own: tuple[Callable[[int, int], Row], ...] = (
            lambda s, e: scheduler("lookup", s, e),
            lambda s, e: scheduler("lookup", max(0, s - 9), e + 9),
            lambda s, e: scheduler("lock_wait", s, e),
            lambda s, e: scheduler("queue", s, e + 6, reason="capacity"),
            lambda s, e: scheduler("queue", s, e + 6, reason="policy"),
            lambda s, e: scheduler("queue", s, e + 6, reason="remote_kv"),
            lambda s, e: scheduler("queue", s, e + 6, reason="unknown"),
            store,
        )
        for _ in range(draw(st.integers(0, 3))):
            make = draw(st.sampled_from(own))
            rows.append({**make(*span(arrival, token)), "request_id": name})
    names = [None, "r0", "r1", "r9"]
    for _ in range(draw(st.integers(0, 2))):
        rows.append(step(*span(0, LATEST), draw(st.sampled_from(names[1:]))))
    for _ in range(draw(st.integers(0, 2))):
        reason, name = draw(st.sampled_from(("load", "load", "store"))), draw(st.sampled_from(names))
        rows.append(wait(*span(0, LATEST), reason, name))
    return rows


@dataclass(frozen=True)
class Tail:
    """The part of a load that is gone, and whether a lookup encloses the load."""

    request_id: str
    start: int
    end: int
    inside: bool


def saved_by_ticks(rows: Rows, path: str, factor: float) -> dict[str, tuple[int, int, int]]:
    """Request -> what is saved of its ttft in the lowest, the predicted and the highest replay."""
    asked = {row["request_id"]: row for row in rows if row["op"] == "request"}
    tails = [tail for row in rows if _is(row, path) for tail in _tails(rows, row, asked, factor)]
    return {
        name: tuple(_saved(rows, row, path, tails, mode) for mode in ("low", "predicted", "high"))  # type: ignore[misc]
        for name, row in asked.items()
    }


def _is(row: Row, path: str) -> bool:
    return row["op"] == "load" and f"{row['tier_from']}->{row['tier_to']}" == path


def _tails(rows: Rows, row: Row, asked: dict[str, Row], factor: float) -> Iterator[Tail]:
    start, end = row["start_ns"], row["end_ns"]
    left = min(end - start, round((end - start) / factor))
    if left == end - start:
        return
    mine = [one for one in rows if one["op"] == "lookup" and one["request_id"] == row["request_id"]]
    begin, last = asked[row["request_id"]]["start_ns"], asked[row["request_id"]]["end_ns"]
    covered = all(
        any(one["start_ns"] <= tick < one["end_ns"] for one in mine)
        for tick in range(max(start, begin), min(end, last))
    )
    yield Tail(row["request_id"], start + left, end, covered)


def _saved(rows: Rows, asked: Row, path: str, tails: list[Tail], mode: str) -> int:
    name = asked["request_id"]
    steps = [row for row in rows if row["op"] == "step"]
    first = min(row["start_ns"] for row in steps if _serves(row, name))
    first = max(first, asked["start_ns"])
    gone = [
        tick for tick in range(asked["start_ns"], asked["first_token_ns"])
        if _is_gone(rows, name, tick, path, tails, mode)
    ]  # fmt: skip
    before = sum(tick < first for tick in gone)
    now = ready = min(first, asked["first_token_ns"]) - before
    if mode != "low":
        under_way = [row["end_ns"] for row in steps if row["start_ns"] < ready]
        now = min(max([ready, *under_way]), ready + before)
    return ready + before - now + len(gone) - before


def _serves(row: Row, name: str) -> bool:
    return any(member["request_id"] == name for member in row["members"])


def _is_gone(rows: Rows, name: str, tick: int, path: str, tails: list[Tail], mode: str) -> bool:
    there = [tail for tail in tails if tail.start <= tick < tail.end]
    own = [tail for tail in there if tail.request_id == name]
    behind = mode == "low" and bool(there) and not own
    return (bool(own) or behind) and not _holds(rows, name, tick, path, (own, tails), mode, behind=behind)


def _holds(
    rows: Rows,
    name: str,
    tick: int,
    path: str,
    tails: tuple[list[Tail], list[Tail]],
    mode: str,
    *,
    behind: bool,
) -> bool:
    """Whether something else of the request is going on that does not end with what is shortened."""
    active = [row for row in rows if row["op"] != "request" and row["start_ns"] <= tick < row["end_ns"]]
    own = [row for row in active if row["request_id"] == name]
    serving = any(row["op"] == "step" and _serves(row, name) for row in active)
    waits = [row for row in active if row["op"] == "wait"]
    follow = [
        row for row in waits
        if row["reason"] == "load" and (
            behind or row["request_id"] == name or (row["request_id"] is None and serving)
        )
    ]  # fmt: skip
    stays = [row for row in waits if row not in follow]
    if stays or (serving and not follow):
        return True
    inside = mode != "high" and any(tail.inside for tail in tails[0])
    for row in own:
        reason = row.get("reason")
        ends_with_it = {
            "queue": reason in NO_REASON_OF_ITS_OWN or (reason == "policy" and mode == "low")
            or (reason == "capacity" and behind),
            "lookup": inside,
            "load": _is(row, path) and _is_in_tail(row, tick, tails[1]),
        }.get(row["op"], row["op"] == "wait")  # fmt: skip
        if not ends_with_it:
            return True
    return False


def _is_in_tail(row: Row, tick: int, tails: list[Tail]) -> bool:
    return any(
        tail.request_id == row["request_id"] and tail.end == row["end_ns"] and tail.start <= tick
        and tail.start >= row["start_ns"]
        for tail in tails
    )  # fmt: skip
