"""Residency against a replay of the events, and its laws, on drawn events."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.residency import residency
from tests.property.oracle_residency import BRING, states, tells_ends
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
WORDS = ("stored", "stored", "written", "published", "removed", "removed", "expired", "cleared", "accessed")


@st.composite
def events(draw: st.DrawFn) -> list[Row]:
    """Few keys in few places, at few instants: ties, repeats and clearings are common."""
    rows = []
    for _ in range(draw(st.integers(0, 24))):
        word = draw(st.sampled_from(WORDS))
        row: Row = {
            "event": word,
            "time_ns": draw(st.integers(0, 9)),
            "seq": draw(st.sampled_from((None, 1, 2))),
        }
        wild = (None,) if word == "cleared" else ()
        row["tier"] = draw(st.sampled_from(("gpu", "host", *wild)))
        row["component"] = draw(st.sampled_from(("c", *wild, None)))
        row["engine"] = draw(st.sampled_from(("e0", "e1", None)))
        row["locality"] = draw(st.sampled_from((None, None, "local")))
        row["key_space"] = draw(st.sampled_from(("s0", "s1", *wild)))
        row["key"] = None if word == "cleared" else draw(st.sampled_from("abc"))
        row["object_group"] = None if word == "cleared" else draw(st.sampled_from((None, "0", "1")))
        if word in BRING:
            row |= {
                "tokens": draw(st.sampled_from((16, 16, None))),
                "bytes": draw(st.sampled_from((5, 7, None))),
            }
        rows.append(row)
    return rows


def ask(rows: list[Row]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return residency(write_run(Path(folder) / "run", block=rows)).to_dicts()


def by_replay(rows: list[Row]) -> dict[tuple[str, str | None], dict[int, tuple[Any, ...]]]:
    """(tier, component) -> time -> (keys, bytes), at every time of an event."""
    told = tells_ends(rows)
    found: dict[tuple[str, str | None], dict[int, tuple[Any, ...]]] = {}
    for time_ns, there in states(rows).items():
        counted = {name: part for name, part in there.items() if (name[0], name[1], name[4]) in told}
        for place in {(row["tier"], row["component"]) for row in rows if row["event"] in BRING}:
            mine = {name: part for name, part in counted.items() if name[:2] == place}
            keys = {(*name[:5], name[6]) for name in mine}
            sizes = [part["bytes"] for part in mine.values()]
            size = None if None in sizes else sum(sizes)
            found.setdefault(place, {})[time_ns] = (len(keys), size)
    return found


@given(events())
@cases(45)
def test_every_state_is_that_of_the_replay(rows: list[Row]) -> None:
    answer = ask(rows)
    for place, instants in by_replay(rows).items():
        mine = {r["time_ns"]: (r["keys"], r["bytes"]) for r in answer if (r["tier"], r["component"]) == place}
        last: tuple[Any, ...] = (0, 0)
        for time_ns, state in sorted(instants.items()):
            last = mine.get(time_ns, last)
            assert last == state
        assert set(mine) <= set(instants)


@given(events())
@cases(10)
def test_no_count_is_negative_and_neighbours_differ(rows: list[Row]) -> None:
    answer = ask(rows)
    for before, row in zip([None, *answer], answer, strict=False):
        assert row["keys"] >= 0
        assert row["bytes"] is None or row["bytes"] >= 0
        if before and (before["tier"], before["component"]) == (row["tier"], row["component"]):
            assert before["time_ns"] < row["time_ns"]
            names = ("keys", "bytes", "tokens")
            assert [before[name] for name in names] != [row[name] for name in names]


@given(events(), st.integers(1, 1000))
@cases(8)
def test_shifting_all_times_shifts_the_answer(rows: list[Row], shift: int) -> None:
    later = ask([row | {"time_ns": row["time_ns"] + shift} for row in rows])
    assert [row | {"time_ns": row["time_ns"] + shift} for row in ask(rows)] == later


@given(events(), st.randoms(use_true_random=False))
@cases(8)
def test_the_order_of_the_rows_changes_nothing(rows: list[Row], random: Any) -> None:
    mixed = list(rows)
    random.shuffle(mixed)
    assert ask(mixed) == ask(rows)
