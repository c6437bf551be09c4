"""store_lag and missed_by_lag against plain loops, on drawn requests; many worlds a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.missed_by_lag import missed_by_lag
from kvtrace.analyses.store_lag import store_lag
from tests.property.oracle_stores import lag, missed
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
SIZE = 12
NAMES = ("r0", "r1", "r2")


@st.composite
def world(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Three requests that ask for the same few keys, look up, store, drop and hold."""
    at = st.integers(0, 40)
    spans: list[Row] = []
    keys: list[Row] = []

    def span(op: str, name: str, start: int, end: int | None, **more: Any) -> None:
        row = {
            "op": op,
            "request_id": name,
            "start_ns": start,
            "end_ns": end,
            "engine": "e",
            "observer": "worker",
        }
        spans.append(
            {"outcome": None, "reason": None, "tokens": None, "queued_ns": None, "usable_ns": None}
            | row
            | more
        )

    for name in NAMES:
        start = draw(at)
        span("request", name, start, draw(st.sampled_from((start + 20, start + 40, None))), observer="api")
        size = draw(st.sampled_from((16, 16, 16, None)))
        for place in range(draw(st.integers(0, 3))):
            key = {"request_id": name, "position": place, "key": f"k{place}", "key_space": "s"}
            keys.append(key | {"tokens": size or (8 if place else None)})
        if draw(st.booleans()):
            begin = draw(at)
            found = draw(st.sampled_from((0, 0, 16, 32, 48, None)))
            span("lookup", name, begin, begin + 2, found_tokens=found, observer="scheduler")
        starts = draw(st.lists(at, max_size=3, unique=True))
        for begin in starts:
            end = draw(st.sampled_from((begin, begin + 9, begin + 30, None)))
            usable = None if end is None else draw(st.sampled_from((None, end, end + 7)))
            queued = draw(st.sampled_from((None, begin, begin - 6)))
            tier = draw(st.sampled_from(("gpu", "gpu", "unknown", "host")))
            result = draw(st.sampled_from((None, "ok", "ok", "failed", "cancelled")))
            more = {"tier_from": tier, "tier_to": "disk", "tokens": draw(st.sampled_from((16, 32, None)))}
            span("store", name, begin, end, usable_ns=usable, queued_ns=queued, outcome=result, **more)
        if draw(st.integers(0, 3)) == 0:
            span(
                "drop",
                name,
                draw(at),
                99,
                reason=draw(st.sampled_from(("duplicate", "no_room", None))),
                tokens=0,
            )
        if draw(st.integers(0, 4)) == 0:
            span("hold", name, 50, draw(st.sampled_from((60, None))), reason="store", observer="scheduler")
    span("request", "s", 0, 5, observer="api")
    span("store", "s", 0, 5, tier_from="gpu", tier_to="host", tokens=16)
    return spans, keys


def packed(worlds: list[tuple[list[Row], list[Row]]]) -> dict[str, list[Row]]:
    """All worlds in one run, none knowing another: own requests, engines and keys."""
    tables: dict[str, list[Row]] = {"span": [], "request_key": []}
    for number, (spans, keys) in enumerate(worlds):
        own = f"w{number:02d}."
        for row in spans:
            named = {
                "request_id": own + row["request_id"],
                "engine": own,
                "process": own,
                "span_id": len(tables["span"]),
            }
            tables["span"].append(row | named)
        tables["request_key"] += [
            key | {"request_id": own + key["request_id"], "key": own + key["key"]} for key in keys
        ]
    return tables


@given(st.lists(world(), min_size=SIZE, max_size=SIZE))
@cases(12)
def test_every_request_is_judged_as_the_definition_says(worlds: list[tuple[list[Row], list[Row]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {
            row["request_id"]: row
            for row in store_lag(write_run(Path(folder) / "run", None, **packed(worlds))).to_dicts()
        }
    for number, (spans, keys) in enumerate(worlds):
        for name in NAMES:
            row, expected = found[f"w{number:02d}.{name}"], lag(spans, keys, name)
            assert {word: row[word] for word in expected} == expected


@given(st.lists(world(), min_size=SIZE, max_size=SIZE))
@cases(12)
def test_every_missed_key_is_found_by_looking_at_every_store(
    worlds: list[tuple[list[Row], list[Row]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = missed_by_lag(write_run(Path(folder) / "run", None, **packed(worlds))).rows()
    found = {(request, producer): (tokens, late) for request, producer, tokens, late in rows}
    expected = {}
    for number, (spans, keys) in enumerate(worlds):
        own = f"w{number:02d}."
        for (request, producer), answer in missed(spans, keys, list(NAMES)).items():
            expected[own + request, own + producer] = answer
    assert found == expected
