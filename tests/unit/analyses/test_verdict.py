"""Three questions of a hit, on literal rows: the right state, still there, worth it. Seconds.

r0 on a: asks k, misses, stores  |--[1 ===== 2]|          the server writes k at 1.5
r1 on b: asks k, finds, loads                  |--[6 == 7]|step 0.1|
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses._served import served
from kvtrace.analyses.verdict import COLUMNS, verdict
from tests.rows import write_run
from tests.unit.analyses.break_even_rows import GIB, MS, copied, loading, others, world
from tests.unit.analyses.cache_rows import asked, event
from tests.unit.analyses.cache_rows import written as placed
from tests.unit.analyses.exposure.drawing import request, scheduler
from tests.unit.analyses.identity_rows import SERVER, S, produced, reused, said, span

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
ALIKE = {"dtype": "bfloat16", "model": "m"}


def hit(path: Path, *parts: dict[str, list[Row]], name: str = "r1", **more: list[Row]) -> Row:
    """The verdict of a request of the run with all these rows."""
    tables: dict[str, list[Row]] = {"process": [SERVER]}
    for part in (*parts, more):
        for table, rows in part.items():
            tables[table] = [*tables.get(table, []), *rows]
    return answered(write_run(path / "run", None, **tables), name)


def answered(run: Run, name: str = "r0") -> Row:
    (row,) = verdict(run, requests=(name,)).to_dicts()
    return row


def test_state_written_by_an_engine_of_the_same_kind_is_the_same(tmp_path: Path) -> None:
    row = hit(tmp_path, produced(), reused(), identity=[*said("a", **ALIKE), *said("b", **ALIKE)])
    assert (row["same_state"], row["still_there"]) == ("yes", "yes")
    assert row["same_state_basis"] == "2 keys, written as what its engine reads"


def test_state_of_another_dtype_is_not_the_same_however_well_it_was_loaded(tmp_path: Path) -> None:
    sides = [*said("a", **ALIKE), *said("b", dtype="float16", model="m")]
    row = hit(tmp_path, produced(), reused(), identity=sides)
    assert (row["same_state"], row["still_there"]) == ("no", "yes")
    assert row["same_state_basis"] == "dtype: bfloat16 written, float16 read"


def test_an_engine_reads_its_own_state_whatever_it_said_of_it(tmp_path: Path) -> None:
    assert hit(tmp_path, produced("a"), reused("a"))["same_state"] == "yes"


def test_engines_that_said_nothing_are_unchecked(tmp_path: Path) -> None:
    row = hit(tmp_path, produced(), reused())
    assert row["same_state"] == "unchecked"
    assert row["same_state_basis"] == "written by a, and one of both did not say what its state is"


def test_a_key_whose_writer_was_not_seen_is_unchecked(tmp_path: Path) -> None:
    row = hit(tmp_path, reused(), identity=said("b", **ALIKE))
    assert (row["same_state"], row["same_state_basis"]) == ("unchecked", "who wrote it was not seen")


def test_records_lost_prove_nothing_and_hide_no_difference(tmp_path: Path) -> None:
    loss = [{"cause": "dropped", "process": "b/1", "count": 3}]
    alike = [*said("a", **ALIKE), *said("b", **ALIKE)]
    row = hit(tmp_path / "alike", produced(), reused(), identity=alike, loss=loss)
    assert row["same_state"] == "unchecked"
    assert row["same_state_basis"].endswith("; 3 records missing")
    sides = [*said("a", **ALIKE), *said("b", dtype="float16")]
    assert hit(tmp_path / "no", produced(), reused(), identity=sides, loss=loss)["same_state"] == "no"


def test_keys_of_another_maker_hide_no_difference_and_keys_of_no_size_prove_nothing(tmp_path: Path) -> None:
    sides = [*said("a", **ALIKE), *said("b", dtype="float16", model="m")]
    once_more = [row | {"key_space": "dynamo:engine:unknown", "key": f"a{row['key']}"}
                 for row in reused()["request_key"]]  # fmt: skip
    row = hit(tmp_path / "two", produced(), reused(), request_key=once_more, identity=sides)
    assert row["same_state"] == "no"
    part = reused()
    part["request_key"][1]["tokens"] = None
    row = hit(tmp_path / "one", produced(), part, identity=[*said("a", **ALIKE), *said("b", **ALIKE)])
    assert row["same_state"] == "unchecked"
    assert row["same_state_basis"].startswith("how many tokens its keys are was not recorded")


def test_blended_state_is_unverified(tmp_path: Path) -> None:
    blend = {"span": [span("blend", "r1", "b", 6, 7, tokens=64)]}
    row = hit(tmp_path, produced(), reused(), blend, identity=[*said("a", **ALIKE), *said("b", **ALIKE)])
    assert (row["same_state"], row["same_state_basis"]) == (
        "unchecked", "blended: state of other positions, unverified",
    )  # fmt: skip


def test_an_engines_own_host_memory_holds_its_own_state(tmp_path: Path) -> None:
    row = answered(world(tmp_path, *loading(1000, copied(1000, GIB)), *others()))
    assert (row["same_state"], row["same_state_basis"]) == ("yes", "read from its engine's own host memory")


def test_host_memory_with_a_disk_below_it_may_hold_anybodys(tmp_path: Path) -> None:
    below = copied(1000, GIB, 5, 3, "disk->host", component="d", request_id="p0")
    row = answered(world(tmp_path, *loading(1000, copied(1000, GIB)), below, *others()))
    assert (row["same_state"], row["same_state_basis"]) == (
        "unchecked", "which keys it read was not recorded",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "answer", "basis"),
    [
        ("not_found", "vanished", "a load failed: not found"),
        ("expired", "expired", "a load failed: its protection had run out"),
        ("io", "unchecked", "a load failed: io"),
    ],
)
def test_a_failed_load_says_whether_it_was_still_there(
    tmp_path: Path, reason: str, answer: str, basis: str
) -> None:
    load = copied(1000, GIB, outcome="failed", reason=reason)
    row = answered(world(tmp_path, *loading(0, load, selected_tokens=1000, computed=1100), *others()))
    assert (row["still_there"], row["still_there_basis"]) == (answer, basis)
    assert row["worth_it"] == "no"


def test_a_lock_that_ran_out_before_the_read_is_told_by_the_contract(tmp_path: Path) -> None:
    blocks = [
        *placed(0.1), asked("locked", 1), event("locked", 1),
        event("failed", 15, reason="l1_retrieve:not_found"), event("removed", 14),
    ]  # fmt: skip
    reading = {"op": "load", "name": "mp.retrieve", "request_id": "r", "process": "l0", "observer": "server",
               "engine": "l0", "component": "lmcache.l1", "tier_from": "host", "tier_to": "gpu",
               "outcome": "failed", "span_id": 7, "start_ns": 14 * S, "end_ns": 16 * S}  # fmt: skip
    names = [{"request_id": "r", "key_space": "lmcache:unknown:m", "key": "k", "position": 0, "tokens": 64}]
    run = write_run(tmp_path / "run", None, span=[reading], block=blocks, request_key=names)
    row = answered(run, "r")
    assert row["still_there"] == "expired"
    assert row["still_there_basis"].startswith("ttl_expired: 1 key gone when read")


def test_what_was_found_and_never_read_is_unchecked_in_all_three(tmp_path: Path) -> None:
    declined = [request(0, 100, 60, prompt_tokens=1536, gpu_hit_tokens=0, selected_tokens=0, status="ok"),
                scheduler("lookup", 10, 20, found_tokens=1024, outcome="ok")]  # fmt: skip
    row = answered(world(tmp_path, *declined))
    asked_three = ("same_state", "still_there", "worth_it")
    assert [row[name] for name in asked_three] == ["unchecked"] * 3
    assert {row[f"{name}_basis"] for name in asked_three} == {"nothing was read"}


@pytest.mark.parametrize(("took_ms", "answer"), [(60, "yes"), (160, "no")])
def test_whether_it_was_worth_it_is_what_break_even_says(tmp_path: Path, took_ms: int, answer: str) -> None:
    row = answered(world(tmp_path, *loading(1000, copied(1000, GIB, took_ms=took_ms)), *others()))
    assert row["worth_it"] == answer
    assert row["worth_it_basis"].startswith("cost exposed; computing takes 100 ms")


def test_a_miss_and_a_handoff_are_no_hits(tmp_path: Path) -> None:
    handed = loading(1000, copied(1000, GIB, purpose="handoff"))
    own = [row for row in handed if row["op"] != "lookup"]  # a decode engine asks no cache for it
    found = verdict(world(tmp_path, *loading(0, name="r1"), *own))
    assert found.schema == COLUMNS
    assert not found.height


LOADS_LOST = {"cause": "dropped", "process": "e0/worker", "count": 1, "op": "load"}
ARRIVAL = request(0, 1000 * MS, 500 * MS, status="ok")
FAILED = copied(500, GIB, 40, 20, outcome="failed", reason="not_found")


# seen    |load of 500, ok| |load of 500, not found|     vanished
# lost    |load of 500, ok|        ?                     nobody knows
def test_where_the_record_of_a_load_was_lost_nobody_knows_whether_all_ended_well(tmp_path: Path) -> None:
    good = copied(500, GIB, 10, 20)
    assert answered(world(tmp_path / "seen", ARRIVAL, good, FAILED))["still_there"] == "vanished"
    row = answered(world(tmp_path / "lost", ARRIVAL, good, loss=[LOADS_LOST]))
    assert (row["still_there"], row["still_there_basis"]) == (
        "unchecked", "all loads that were seen ended well; 1 record missing",
    )  # fmt: skip
    assert answered(world(tmp_path / "whole", ARRIVAL, good))["still_there"] == "yes"


@pytest.mark.parametrize(("from_ms", "to_ms", "answer"), [(1001, 2000, "yes"), (900, 950, "unchecked")])
def test_a_loss_outside_the_life_of_a_request_hides_nothing_of_it(
    tmp_path: Path, from_ms: int, to_ms: int, answer: str
) -> None:
    loss = [LOADS_LOST | {"from_ns": from_ms * MS, "to_ns": to_ms * MS}]
    assert answered(world(tmp_path, ARRIVAL, copied(500, GIB), loss=loss))["still_there"] == answer


def test_a_loss_of_loads_leaves_what_the_steps_say_and_one_of_steps_does_not(tmp_path: Path) -> None:
    rows = [*loading(1000, copied(1000, GIB)), *others()]
    row = answered(world(tmp_path / "load", *rows, loss=[LOADS_LOST]))
    assert (row["still_there"], row["still_there_basis"]) == ("yes", "1000 tokens read and used")
    any_op = LOADS_LOST | {"op": None}  # of a process that records no steps
    assert answered(world(tmp_path / "worker", *rows, loss=[any_op]))["still_there"] == "yes"
    any_op |= {"process": "e0/scheduler"}
    assert answered(world(tmp_path / "any", *rows, loss=[any_op]))["still_there"] == "unchecked"


@pytest.mark.parametrize(
    "second",
    [{"end_ns": None, "outcome": "open"}, {"end_ns": None, "outcome": None}, {"outcome": "unknown"},
     {"outcome": "failed", "reason": "no_room"}, {"tier_from": "disk", "tier_to": "host", "end_ns": None}],
)  # fmt: skip
def test_a_load_that_has_not_ended_well_is_none_that_has(tmp_path: Path, second: Row) -> None:
    rows = [copied(500, GIB, 10, 20), copied(500, GIB, 40, 20) | second]
    assert answered(world(tmp_path, ARRIVAL, *rows))["still_there"] == "unchecked"


def test_an_open_load_is_no_doubt_where_all_that_was_selected_was_used(tmp_path: Path) -> None:
    late = copied(500, GIB, 40, 20, outcome="open") | {"end_ns": None}
    row = answered(world(tmp_path, *loading(1000, copied(500, GIB, 10, 20), late), *others()))
    assert (row["still_there"], row["still_there_basis"]) == ("yes", "1000 tokens read and used")


# told     |request|  |a forecast: lookup, load|        nobody saw one
def test_what_was_only_forecast_was_neither_found_nor_read(tmp_path: Path) -> None:
    load = copied(1000, GIB, evidence="predicted")
    asked_for = scheduler("lookup", 5 * MS, 6 * MS, found_tokens=1000, outcome="ok", evidence="predicted")
    run = world(tmp_path, ARRIVAL, asked_for, load)
    assert not verdict(run).height
    (facts,) = served(run).to_dicts()
    assert (facts["loads"], facts["found"], facts["inquiries"]) == (0, None, 0)
    assert facts["h2d_ns"] is facts["lookup_wait_ns"] is facts["moved"] is None
    (asked_alone,) = served(run, ("r0",)).to_dicts()
    assert asked_alone == facts


def test_a_forecast_beside_a_load_adds_nothing_to_it(tmp_path: Path) -> None:
    load = copied(1000, GIB, took_ms=60)
    forecasts = [copied(1000, GIB, 100, 900, "disk->host", evidence="predicted"),
                 copied(500, GIB, 80, 10, outcome="failed", reason="not_found", evidence="predicted"),
                 copied(500, GIB, 80, 10, "gpu->host", op="store", evidence="predicted")]  # fmt: skip
    alone = served(world(tmp_path / "alone", *loading(1000, load), *others()), ())
    both = served(world(tmp_path / "both", *loading(1000, load, *forecasts), *others()), ())
    assert both.equals(alone)
