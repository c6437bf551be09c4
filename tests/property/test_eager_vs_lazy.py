"""Laws of what is compared of two runs: what each measure is by a plain walk over drawn rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.analyses.eager_vs_lazy.measures import delays, writes
from kvtrace.analyses.store_lag import store_lag
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import request, scheduler, store

LAST = 400
Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """One request, its stores (begin, end or open, good, tokens), and the tokens that went stale."""

    start: int
    end: int
    stores: tuple[tuple[int, int | None, bool, int], ...]
    stale: tuple[int, ...]


@st.composite
def requests(draw: st.DrawFn) -> Kept:
    start = draw(st.integers(0, 100))
    end = draw(st.integers(start + 1, 200))
    begin = st.integers(start, 250)
    stores = draw(
        st.lists(
            begin.flatmap(
                lambda at: st.tuples(
                    st.just(at), st.none() | st.integers(at + 1, 300), st.booleans(), st.integers(1, 64)
                )
            ),
            max_size=3,
        )
    )
    return Kept(start, end, tuple(stores), tuple(draw(st.lists(st.integers(1, 64), max_size=2))))


worlds = st.lists(requests(), min_size=1, max_size=12)


def rows(world: list[Kept], shift: int = 0) -> list[Row]:
    found = [scheduler("health", shift, LAST + shift, reason="healthy", request_id=None)]
    for number, one in enumerate(world):
        own = [request(one.start + shift, one.end + shift)]
        for begin, end, good, tokens in one.stores:
            outcome = "ok" if good else "failed"
            stop = None if end is None else end + shift
            own.append(store(begin + shift, stop, tokens=tokens, outcome=outcome, evidence="shim"))
        own += [
            scheduler("drop", 300 + shift, 300 + shift, tokens=tokens, reason="stale") for tokens in one.stale
        ]
        found += [row | {"request_id": f"r{number}"} for row in own]
    return [{"span_id": number, **row} for number, row in enumerate(found, 1)]


def asked(spans: list[Row], horizon: int) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", span=spans)
        lag = store_lag(run)
        found = writes(run, lag) | delays(run, lag, horizon)
    return {measure: each.value for measure, each in found.items()}


def walked(world: list[Kept], horizon: int) -> dict[str, float | None]:
    """Instant by instant. A request is over; one with an open store is later than all."""
    decided = [tokens for one in world for *_, tokens in one.stores] + [t for one in world for t in one.stale]
    stale = sum(tokens for one in world for tokens in one.stale)
    writes = sum(good for one in world for _, _, good, _ in one.stores)
    ready: list[tuple[Kept, int | None]] = []
    unended = 0
    fates: list[bool] = []
    for one in world:
        good = [end for _, end, good, _ in one.stores if good]
        ends = [end for end in good if end is not None]
        if good and None not in good:
            ready.append((one, max(ends)))
        elif good:
            unended += 1
            ready.append((one, None))
        elif decided:
            ready.append((one, None))
        if ends or (not good and decided):
            fates.append(not ends)
    windows = usable = 0
    for one, at in ready:
        window = range(one.end, min(LAST, one.end + horizon))
        windows += len(window)
        usable += sum(at is not None and tick >= at for tick in window)
    return {
        "writes_per_request": writes / len(world) if decided else None,
        "stale_ratio": stale / sum(decided) if decided else None,
        "reuse_delay_p50_ns": half(sorted(at - one.end for one, at in ready if at is not None), unended),
        "never_stored_ratio": sum(fates) / len(fates) if fates else None,
        "reusable_time_ratio": usable / windows if windows else None,
    }


def half(after: list[int], unended: int) -> float | None:
    """The first that half of all are not above; no number where it is one that has not ended."""
    place = (len(after) + unended + 1) // 2
    return float(after[place - 1]) if 0 < place <= len(after) else None


@settings(max_examples=6, deadline=None)
@given(worlds, st.integers(50, LAST))
def test_each_measure_is_what_a_walk_over_all_instants_gives(world: list[Kept], horizon: int) -> None:
    found = asked(rows(world), horizon)
    for measure, expected in walked(world, horizon).items():
        assert found[measure] == (None if expected is None else pytest.approx(expected)), measure


@settings(max_examples=2, deadline=None)
@given(worlds, st.integers(1, 10**9))
def test_later_is_no_other_run(world: list[Kept], shift: int) -> None:
    assert asked(rows(world), LAST) == asked(rows(world, shift), LAST)
