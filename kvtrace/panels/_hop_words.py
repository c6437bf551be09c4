"""The phases of a hop in words; what nobody saw says so, and is no 0."""

from __future__ import annotations

from typing import Any

from kvtrace.panels._hops import phases
from kvtrace.panels._text import duration

_COPIED = {"copy": "copy", "with_wait": "copy or waiting", "whole": "under way, copy not seen"}


def words(row: dict[str, Any]) -> str:
    """Submit 1.2 ms · copy 40 ms · poll 3.1 ms · usable 1.9 ms."""
    submit, copy, poll, usable = cells(row)
    return f"submit {submit}  ·  {copied(row)} {copy}  ·  poll {poll}  ·  usable {usable}"


def copied(row: dict[str, Any]) -> str:
    """What its second number is the time of."""
    return _COPIED[row["body"]]


def cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """The four phases as a reader sees them; one that nobody saw says so."""
    took = {
        phase.kind: None if phase.end_ns is None else phase.end_ns - phase.start_ns for phase in phases(row)
    }
    body = next((took[kind] for kind in ("copy", "copy_or_wait", "under_way") if kind in took), None)
    submit = _phase(took, "submit", row["asked_ns"], row["start_ns"])
    poll = _phase(took, "poll", row["end_ns"], row["reported_ns"])
    usable = _phase(took, "usable", row["reported_ns"], row["usable_ns"])
    if row["body"] == "whole":
        submit = poll = "not told apart"
    if row["body"] == "with_wait" and row["asked_ns"] == row["start_ns"]:
        submit = "not told apart"
    if row["name"] == "load_inside_step":
        poll = "none (inside a step)"
    if "ended_to_usable" in took:
        usable = f"{duration(took['ended_to_usable'])} after the end"
    if row["op"] == "load" and row["known_ns"] is not None and row["usable_ns"] is None:
        usable = "never"
    return submit, "end not observed" if body is None else duration(body), poll, usable


def _phase(took: dict[str, int | None], kind: str, start_ns: int | None, end_ns: int | None) -> str:
    """How long it took; clocks that turn its two times round are no time of 0."""
    crossed = start_ns is not None and end_ns is not None and end_ns < start_ns
    return "times cross" if crossed else duration(took.get(kind))
