"""Bytes that lay in a tier or moved for nothing: few objects, few tokens, all of them drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.waste import COLUMNS, waste
from tests.rows import write_run
from tests.unit.analyses.cache_rows import asked, event
from tests.unit.analyses.exposure.drawing import load, request, scheduler, step, store

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
PART = {"component": "lmcache.l1"}


def answer(folder: Path, *spans: Row, **tables: list[Row]) -> list[Row]:
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    return waste(write_run(folder / "run", span=rows, **tables)).to_dicts()


def stored(folder: Path, *events: Row) -> tuple[Any, ...]:
    """(objects, bytes, never read, their bytes, of these gone)."""
    (row,) = answer(folder, block=list(events))
    names = ("stored_objects", "stored_bytes", "never_read_objects", "never_read_bytes", "gone_unread_bytes")
    return tuple(row[name] for name in names)


def written(at: float, key: str = "k", size: int | None = 8, **more: Any) -> Row:
    return event("written", at, key, bytes=size, **more)


def step_of(start: int, end: int, before: int, tokens: int, name: str = "r0") -> Row:
    member = {"request_id": name, "scheduled_tokens": tokens, "computed_before": before, "phase": "prefill"}
    return scheduler("step", start, end, request_id=None, members=[member])


def served(name: str = "r0", start: int = 0, end: int | None = 100, **more: Any) -> Row:
    told = {"prompt_tokens": 100, "gpu_hit_tokens": 24, "selected_tokens": 56, "status": "ok"} | more
    return request(start, end, request_id=name, **told)


def brought(start: int, end: int, tokens: int | None, name: str = "r0", **more: Any) -> Row:
    size = None if tokens is None else 2 * tokens
    return load(start, end, request_id=name, tokens=tokens, bytes=size, outcome="ok", **(PART | more))


def test_a_run_without_a_row_has_the_columns(tmp_path: Path) -> None:
    frame = waste(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_what_was_written_and_not_read_before_it_went_is_waste(tmp_path: Path) -> None:
    """Three objects; c is still there.

    a  written |------- read ---| removed
    b  written |----------------| removed
    c  written |-----------------------------
    """
    rows = [written(1, key) for key in "abc"]
    rows += [asked("accessed", 2, "a"), event("removed", 3, "a"), event("removed", 3, "b")]
    assert stored(tmp_path, *rows) == (3, 24, 2, 16, 8)


def test_a_touch_is_no_read(tmp_path: Path) -> None:
    rows = [written(1), event("accessed", 2), asked("locked", 2)]
    assert stored(tmp_path, *rows) == (1, 8, 1, 8, 0)


def test_each_stay_must_be_read_for_itself(tmp_path: Path) -> None:
    rows = [written(1), asked("accessed", 2), event("removed", 3), written(4), event("removed", 5)]
    assert stored(tmp_path, *rows) == (2, 16, 1, 8, 8)


def test_a_clear_ends_every_stay_of_its_place(tmp_path: Path) -> None:
    rows = [written(1, "a"), written(1, "b"), asked("accessed", 2, "b"), event("cleared", 3, None)]
    assert stored(tmp_path, *rows, written(4, "a")) == (3, 24, 2, 16, 8)


def test_written_twice_is_there_once_and_a_call_is_no_second_word(tmp_path: Path) -> None:
    rows = [written(1), written(2), asked("written", 1), asked("accessed", 3)]
    assert stored(tmp_path, *rows) == (1, 8, 0, 0, 0)


def pooled(word: str, at: int, key: str, client: int, **more: Any) -> Row:
    """What a client of a pool says of an object."""
    row = {"event": word, "time_ns": at, "key": key, "key_space": "mooncake:unknown:unknown", "bytes": 8}
    row |= {"component": "mooncake.store", "process": f"p{client}", "engine": f"e{client}", "tier": "peer"}
    return {**row, "evidence": "shim", **more}


def test_what_another_client_of_a_shared_tier_reads_is_read(tmp_path: Path) -> None:
    """Neither client is the place: one reads what the other stored.

    p0  stored k, j |---- reads j ----|
    p1              |---- reads k ----|
    """
    rows = [pooled("stored", 1, "k", 0), pooled("stored", 1, "j", 0), pooled("accessed", 2, "j", 0)]
    assert stored(tmp_path, *rows) == (2, 16, 1, 8, 0)
    assert stored(tmp_path / "both", *rows, pooled("accessed", 2, "k", 1)) == (2, 16, 0, 0, 0)
    gone = [pooled("removed", 2, "k", 1), pooled("accessed", 3, "k", 0)]
    assert stored(tmp_path / "gone", *rows, *gone) == (2, 16, 1, 8, 8)


@pytest.mark.parametrize("tier", ["host", "disk", "unknown", None])
def test_a_tier_of_ones_own_is_not_that_of_another_process(tmp_path: Path, tier: str | None) -> None:
    rows = [pooled(word, at, "k", client, tier=tier, component="c")
            for word, at, client in (("stored", 1, 0), ("stored", 1, 1), ("accessed", 2, 1))]  # fmt: skip
    assert stored(tmp_path, *rows) == (2, 16, None, None, None)


def test_a_pools_client_that_knows_the_replica_it_reads_reads_what_is_in_the_pool(tmp_path: Path) -> None:
    put = store(0, 1, observer="client", tier_to="peer", component="mooncake.store", bytes=8)
    block = [pooled("stored", 1, "k", 0), pooled("accessed", 2, "k", 1, tier="host")]
    (row,) = answer(tmp_path, put, block=block)
    assert (row["tier"], row["stored_objects"], row["never_read_objects"]) == ("peer", 1, 0)


@pytest.mark.parametrize(
    ("clear", "gone"),
    [
        ({"component": "mooncake.store"}, 8),
        ({"component": None, "tier": "peer"}, 8),
        ({"component": None, "tier": None}, 0),
        ({"component": None, "tier": None, "process": None, "engine": None}, 8),
        ({"component": "lmcache.l1"}, 0),
    ],
)
def test_what_is_shared_is_cleared_by_whoever_names_it(tmp_path: Path, clear: Row, gone: int) -> None:
    rows = [pooled("stored", 1, "k", 0), pooled("stored", 1, "j", 0), pooled("accessed", 2, "j", 0)]
    cleared = pooled("cleared", 3, "", 1) | {"key": None, "bytes": None} | clear
    assert stored(tmp_path, *rows, cleared) == (2, 16, 1, 8, gone)


def test_what_landed_from_below_was_stored_by_nobody(tmp_path: Path) -> None:
    rows = [
        written(1, "a"),
        written(2, "b", reason="landed"),
        event("removed", 3, "b"),
        asked("accessed", 4, "a"),
    ]
    assert stored(tmp_path, *rows) == (1, 8, 0, 0, 0)


def test_where_nobody_records_reads_what_was_never_read_is_not_known(tmp_path: Path) -> None:
    assert stored(tmp_path, written(1), event("accessed", 2)) == (1, 8, None, None, None)


def test_bytes_that_one_event_does_not_say_are_no_zero(tmp_path: Path) -> None:
    assert stored(tmp_path, written(1, "a"), written(1, "b", None), asked("accessed", 2, "a")) == (
        2,
        None,
        1,
        None,
        0,
    )


def test_without_events_stores_say_what_was_stored(tmp_path: Path) -> None:
    (row,) = answer(tmp_path, store(1, 2, bytes=7, **PART), store(3, 4, bytes=7, outcome="failed", **PART))
    assert (row["tier"], row["stored_objects"], row["stored_bytes"]) == ("host", None, 7)


def parts(folder: Path, *spans: Row, **tables: list[Row]) -> tuple[Any, ...]:
    """Tokens: (judged, recomputed, twice, rounding) of the one tier."""
    (row,) = answer(folder, *spans, **tables)
    for name in ("judged", "recomputed", "twice", "rounding"):
        tokens = row[f"{name}_tokens"]
        assert row[f"{name}_bytes"] == (None if tokens is None else 2 * tokens)
    return tuple(row[f"{name}_tokens"] for name in ("judged", "recomputed", "twice", "rounding"))


def keys_of(name: str, number: int = 10, size: int = 10) -> list[Row]:
    return [
        {"request_id": name, "attempt": 1, "position": place, "key_space": "s", "key": f"k{place}",
         "tokens": size, "time_ns": 1, "source": "drawn"}
        for place in range(number)
    ]  # fmt: skip


def test_chunks_that_the_gpu_held_in_part_are_rounding(tmp_path: Path) -> None:
    """Chunks of 10: 24 tokens in the GPU, 56 wanted, 60 moved.

    |== 24 ==|======= 56 =======|        used
           |20------ 60 --------|        moved
    """
    spans = [served(), brought(10, 20, 60), step_of(30, 40, 80, 20)]
    assert parts(tmp_path, *spans, request_key=keys_of("r0")) == (60, 0, 0, 4)


def test_what_was_moved_and_computed_all_the_same_is_recomputed(tmp_path: Path) -> None:
    """The first step begins at 50 and not at 80."""
    spans = [served(), brought(10, 20, 60), step_of(30, 40, 50, 50)]
    assert parts(tmp_path, *spans, request_key=keys_of("r0")) == (60, 30, 0, 4)


def test_the_last_token_of_a_prompt_is_rounding(tmp_path: Path) -> None:
    whole = {"gpu_hit_tokens": 0, "selected_tokens": 100}
    spans = [served(**whole), brought(10, 20, 100), step_of(30, 40, 99, 1)]
    assert parts(tmp_path, *spans, request_key=keys_of("r0")) == (100, 0, 0, 1)


def test_a_preemption_loses_what_was_loaded(tmp_path: Path) -> None:
    """Computed again from 60 on: 20 of the loaded [24, 80), and what never was."""
    spans = [
        served(), brought(10, 20, 60), step_of(30, 40, 80, 20),
        scheduler("queue", 41, 50, reason="preempted"), step_of(50, 60, 60, 40),
    ]  # fmt: skip
    assert parts(tmp_path, *spans, request_key=keys_of("r0")) == (60, 20, 0, 4)


def test_what_a_later_load_brings_again_is_loaded_twice(tmp_path: Path) -> None:
    spans = [
        served(), brought(10, 20, 60), step_of(30, 40, 80, 20),
        scheduler("queue", 41, 50, reason="preempted"), brought(51, 55, 40), step_of(60, 70, 80, 20),
    ]  # fmt: skip
    (row,) = answer(tmp_path, *spans, request_key=keys_of("r0"))
    assert (row["loads"], row["loaded_bytes"], row["judged_bytes"]) == (2, 200, 120)
    assert (row["twice_tokens"], row["twice_bytes"], row["recomputed_tokens"]) == (40, 80, 0)


def test_a_load_without_times_is_the_first_admissions(tmp_path: Path) -> None:
    untimed = brought(10, 20, 60) | {"start_ns": None, "end_ns": None}
    again = scheduler("queue", 41, 50, reason="preempted")
    spans = [served(), untimed, step_of(30, 40, 80, 20), again, step_of(50, 60, 60, 40)]
    (row,) = answer(tmp_path, *spans, request_key=keys_of("r0"))
    assert (row["loads"], row["judged_requests"], row["judged_bytes"]) == (1, 1, 120)


@pytest.mark.parametrize(("end", "twice"), [(100, 60), (39, 0)])
def test_a_key_that_a_running_request_holds_is_loaded_twice(tmp_path: Path, end: int, twice: int) -> None:
    """r1 loads at 40 what r0 loaded at 10: twice while r0 runs, reuse once it is over."""
    spans = [
        served(end=end), brought(10, 20, 60), step_of(30, 35, 80, 20),
        served("r1", 36), brought(40, 50, 60, "r1"), step_of(60, 70, 80, 20, "r1"),
    ]  # fmt: skip
    keys = [*keys_of("r0"), *keys_of("r1")]
    assert parts(tmp_path, *spans, request_key=keys) == (120, 0, twice, 8)


def test_of_a_load_without_times_nobody_knows_what_others_held(tmp_path: Path) -> None:
    untimed = brought(40, 50, 60, "r1") | {"start_ns": None, "end_ns": None}
    spans = [served(), brought(10, 20, 60), step_of(30, 35, 80, 20)]
    spans += [served("r1", 36), untimed, step_of(60, 70, 80, 20, "r1")]
    assert parts(tmp_path, *spans, request_key=[*keys_of("r0"), *keys_of("r1")]) == (120, 0, None, 8)


def test_without_keys_nobody_knows_what_others_held(tmp_path: Path) -> None:
    assert parts(tmp_path, served(), brought(10, 20, 60), step_of(30, 40, 80, 20)) == (60, 0, None, 4)


def test_a_request_whose_gpu_hit_is_unknown_is_not_judged(tmp_path: Path) -> None:
    (row,) = answer(tmp_path, served(gpu_hit_tokens=None), brought(10, 20, 60), step(30, 40))
    assert (row["loads"], row["loaded_bytes"], row["judged_requests"], row["rounding_bytes"]) == (
        1,
        120,
        0,
        None,
    )


def test_a_request_that_two_places_served_is_not_judged(tmp_path: Path) -> None:
    disk = {"tier_from": "disk", "component": "d"}
    spans = [served(), brought(10, 20, 40), brought(20, 25, 20, **disk), step_of(30, 40, 80, 20)]
    rows = answer(tmp_path, *spans, request_key=keys_of("r0"))
    assert [(r["tier"], r["loads"], r["judged_requests"]) for r in rows] == [("host", 1, 0), ("disk", 1, 0)]


def test_an_event_of_a_part_and_a_transfer_of_its_product_are_one_row(tmp_path: Path) -> None:
    block = [event("stored", 1, bytes=8, component="vllm.offloading.cpu")]
    spans = [served(), brought(10, 20, 60, component="vllm.offloading"), step_of(30, 40, 80, 20)]
    (row,) = answer(tmp_path, *spans, block=block)
    assert (row["component"], row["stored_bytes"], row["loaded_bytes"]) == ("vllm.offloading.cpu", 8, 120)
