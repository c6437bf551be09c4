"""lock_contract against plain state machines, on drawn histories of objects and transfers; many a run."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.lock_contract import lock_contract
from tests.property.oracle_locks import judge
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
S = 1_000_000_000
READ_TTL, WRITE_TTL, BOUND, LAST = 10 * S, 20 * S, 8, 400 * S
OBJECTS = 20
INVARIANTS = (
    "released_once", "not_removed_while_locked", "read_within_ttl", "reservation_written_or_returned",
    "readable_was_written", "not_written_while_locked",
)  # fmt: skip
WORDS = (
    "reserved",
    "written",
    "locked",
    "locked",
    "locked",
    "unlocked",
    "unlocked",
    "removed",
    "failed",
    "missed",
)
USUAL = (("reserved", 1), ("written", 1), ("locked", 2))


@st.composite
def history(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What an object goes through: (event, seconds); most begin as they should, and then go astray."""
    steps = list(USUAL[: draw(st.sampled_from((0, 1, 2, 3, 3, 3)))])
    steps += draw(
        st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from((1, 2, 5, 9, 12, 23))), max_size=9)
    )
    at, rows = draw(st.integers(1, 9)), []
    for word, wait in steps:
        at += wait
        rows.append((word, at))
    if draw(st.integers(0, 3)) == 0:
        late = draw(st.integers(1, 15))
        rows.append((draw(st.sampled_from(("reserved", "locked"))), LAST // S - late))
    return rows


def placed(steps: list[tuple[str, int]], number: int) -> list[Row]:
    """The rows of one object."""
    own = {"key": f"k{number:02d}", "key_space": "s", "component": "lmcache.l1", "process": "l0"}
    ttl = {"locked": READ_TTL, "reserved": WRITE_TTL}
    why = {"failed": "l1_retrieve:write_locked", "missed": "l1_retrieve:not_found"}
    return [
        own
        | {"event": "failed" if word in why else word, "reason": why.get(word), "ttl_ns": ttl.get(word)}
        | {"time_ns": at * S, "seq": number * 100 + place, "evidence": "native"}
        for place, (word, at) in enumerate(steps)
    ]


@given(st.lists(history(), min_size=OBJECTS, max_size=OBJECTS), st.randoms(use_true_random=False))
@cases(15)
def test_every_object_is_judged_as_a_state_machine_would(
    histories: list[list[tuple[str, int]]], order: Any
) -> None:
    objects = [placed(steps, number) for number, steps in enumerate(histories)]
    call = {"event": "locked", "key": "k00", "key_space": "s", "component": "lmcache.l1", "process": "l0"}
    rows = [row for rows in objects for row in rows] + [call | {"time_ns": 0, "count": 1, "reason": "asked"}]
    rows.append(objects_end())
    order.shuffle(rows)
    expected: dict[str, set[tuple[str, int, str]]] = {name: set() for name in INVARIANTS}
    for number, mine in enumerate(histories):
        for name, found in judge(mine, LAST, READ_TTL, WRITE_TTL, BOUND * S).found.items():
            expected[name] |= {(f"k{number:02d}", at, why) for at, why in found}
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", None, block=rows)
        answer = lock_contract(run, bound_s=BOUND, only=INVARIANTS).filter(status="violated")
    for name in INVARIANTS:
        mine = answer.filter(invariant=name).select("key", "time_ns", "detail").rows()
        assert {(key, at, re.split("[ :,]", detail)[0]) for key, at, detail in mine} == expected[name]


def objects_end() -> Row:
    """The server recorded on until LAST."""
    return {"event": None, "component": "lmcache.l1", "process": "l0", "time_ns": LAST, "reason": "asked"}


@st.composite
def transfer(draw: st.DrawFn) -> Row:
    """A load, a store or a search in L2, that ends or does not."""
    at = draw(st.integers(0, 100))
    end = draw(st.sampled_from((0, 4, BOUND, BOUND + 1, 50, None)))
    op, name = draw(st.sampled_from((("load", None), ("store", None), (None, "l2.prefetch.lookup"))))
    return {
        "op": op, "name": name, "start_ns": at * S, "end_ns": None if end is None else (at + end) * S,
        "submit_ns": draw(st.sampled_from((None, at * S - 3 * S))),
        "process": draw(st.sampled_from(("p", "q"))),
        "outcome": draw(st.sampled_from((None, "ok", "open", "failed"))), "observer": "server",
        "tier_from": "disk", "tier_to": "host", "evidence": "native",
    }  # fmt: skip


@given(st.lists(transfer(), min_size=1, max_size=25), st.sampled_from((None, 5, 40, 200)))
@cases(25)
def test_what_hangs_or_is_late_is_found_as_by_looking_at_each(spans: list[Row], lost: int | None) -> None:
    rows = [row | {"request_id": f"r{number}", "span_id": number} for number, row in enumerate(spans)]
    last = {"p": 120 * S, "q": 30 * S}
    loss = [] if lost is None else [{"cause": "dropped", "process": "p", "count": 1, "from_ns": lost * S}]
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(
            Path(folder) / "run", None, span=rows, loss=loss,
            process=[{"process": name, "last_ns": at} for name, at in last.items()],
        )  # fmt: skip
        answer = lock_contract(run, bound_s=BOUND, only=("completes_within_bound",)).filter(status="violated")
    ends = dict(last)
    for row in rows:
        known = [row[name] for name in ("start_ns", "end_ns", "submit_ns") if row[name] is not None]
        ends[row["process"]] = max(ends[row["process"]], *known)
    expected = set()
    for row in rows:
        due = min(at for at in (row["start_ns"], row["submit_ns"]) if at is not None) + BOUND * S
        if row["end_ns"] is not None:
            broken = row["end_ns"] > due
        else:
            lossy = lost is not None and row["process"] == "p" and lost * S <= due
            broken = row["outcome"] != "failed" and ends[row["process"]] > due and not lossy
        if broken:
            expected.add((row["request_id"], due))
    assert set(answer.select("request_id", "time_ns").rows()) == expected
