"""verdict against plain loops and the questions beside it, on drawn runs; and what lost records may change.

Of its three parts `worth_it` is held to `break_even` in test_break_even.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.analyses.verdict import verdict
from tests.property.drawn_funnel import Drawn, runs
from tests.property.oracle_compatibility import Ask, reads_across
from tests.property.test_compatibility import ENGINES, SALT, SERVER, Fields, apart, identities, rows_of, world
from tests.property.test_exposure import cases
from tests.rows import write_run

if TYPE_CHECKING:
    from kvtrace.run import Run

Row = dict[str, Any]
FAILED = ("failed", "partial", "timeout", "cancelled")
EVERYTHING_LOST = [{"source": "spool", "cause": "dropped", "count": 2}]
PARTS = ("same_state", "still_there")


def by_request(frame: Any) -> dict[str, Row]:
    return {row["request_id"]: row for row in frame.to_dicts()}


def opened(folder: str, run: Drawn, loss: list[Row]) -> Run:
    return write_run(
        Path(folder) / "run", span=run.span, block=run.block, request_key=run.request_key,
        identity=run.identity, loss=loss,
    )  # fmt: skip


def still_there(loads: list[Row], funnel: Row, fate: Row | None) -> str:
    """What its loads say of it, one after the other; no step of these requests is lost."""
    reasons = {row["reason"] for row in loads if row["outcome"] in FAILED}
    if "expired" in reasons:
        return "expired"
    if "not_found" in reasons:
        return "vanished"
    said = (
        None
        if fate is None or fate["verdict"] is None
        else {fate["verdict"], *(fate["also"] or "").split(", ")}
    )
    if said is not None and "loaded" not in said:
        return "unchecked"
    well = [row["outcome"] in (None, "ok") and row["end_ns"] is not None for row in loads]
    if all(well) and any(row["tier_to"] in ("gpu", "unknown") for row in loads):
        return "yes"
    promised, used = funnel["selected_tokens"], funnel["loaded_tokens"]
    if not used:
        return "unchecked"
    return "yes" if promised is not None and used >= promised else "maybe"


@given(runs())
@cases(8)
def test_what_its_loads_say_is_whether_it_was_still_there(run: Drawn) -> None:
    loads: dict[str, list[Row]] = {}
    for row in run.span:
        if row["op"] == "load":
            loads.setdefault(row["request_id"], []).append(row)
    with tempfile.TemporaryDirectory() as folder:
        one = opened(folder, run, [])
        hits, funnels, fates = (
            by_request(verdict(one)),
            by_request(hit_funnel(one)),
            by_request(fallbacks(one)),
        )
    for name, funnel in funnels.items():
        anything = (funnel["found_tokens"] or 0) > 0 or (funnel["selected_tokens"] or 0) > 0 or name in loads
        mine = loads.get(name, [])
        if not any(row["purpose"] == "handoff" for row in mine):
            assert (name in hits) == anything, run.of(name)
        if name in hits:
            expected = still_there(mine, funnel, fates.get(name))
            if expected != "maybe":
                assert hits[name]["still_there"] == expected, run.of(name)
            if hits[name]["still_there"] == "yes":
                assert mine or funnel["loaded_tokens"], run.of(name)


def half_of_them_well(run: Drawn) -> Drawn:
    """The run, whose every other request's loads end well."""
    well = {"outcome": "ok", "reason": None, "tier_from": "host", "tier_to": "gpu", "purpose": "reuse"}
    return replace(run, span=[
        row | well | {"end_ns": row["start_ns"] + 5}
        if row["op"] == "load" and int(row["request_id"][1:]) % 2 else row
        for row in run.span
    ])  # fmt: skip


@given(runs().map(half_of_them_well))
@cases(4)
def test_lost_records_make_answers_unchecked_and_turn_none_round(run: Drawn) -> None:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as part:
        before, after = by_request(verdict(opened(whole, run, []))), by_request(
            verdict(opened(part, run, EVERYTHING_LOST))
        )  # fmt: skip
    assert before.keys() == after.keys()
    assert not {row[of] for row in after.values() for of in PARTS} & {"yes"}
    for name, row in before.items():
        for of in PARTS:
            assert after[name][of] in (row[of], "unchecked"), (of, run.of(name))
            assert row[of] in ("yes", "unchecked") or after[name][of] == row[of], (of, run.of(name))


@settings(max_examples=4, deadline=None)
@given(st.lists(world(), min_size=6, max_size=6), st.sampled_from(([], EVERYTHING_LOST)))
def test_it_read_another_kind_of_state_just_where_one_of_its_reads_is_across_a_difference(
    worlds: list[tuple[list[Ask], Fields]], loss: list[Row]
) -> None:
    """Lost records prove nothing, and hide no difference."""
    tables: dict[str, list[Row]] = {"span": [], "request_key": [], "block": [], "identity": [SALT]}
    expected = {}
    for number, (drawn, plain) in enumerate(worlds):
        fields, asks = apart(number, drawn, plain)
        tables["identity"] += identities(fields)
        sides = {f"{name}{number}": {field: of[f"{name}{number}"] for field, of in fields.items()}
                 for name in ENGINES}  # fmt: skip
        for ask in asks:
            for table, rows in zip(("span", "request_key", "block"), rows_of(ask), strict=True):
                tables[table] += rows
            if ask.loaded is not None:
                own = [other if other is ask else replace(other, loaded=None) for other in asks]
                expected[ask.name] = bool(reads_across(own, sides))
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", None, process=[SERVER], loss=loss, **tables)
        hits = by_request(verdict(run))
    assert {name: hits[name]["same_state"] == "no" for name in expected} == expected
    assert not loss or "yes" not in {row["same_state"] for row in hits.values()}
