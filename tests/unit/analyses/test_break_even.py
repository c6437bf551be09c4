"""Loading against computing, on literal rows in ms: 0.1 ms a token, 5 ms a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.break_even import COLUMNS, break_even
from kvtrace.errors import UsageError
from tests.unit.analyses.break_even_rows import (
    FIXED_MS,
    GB,
    GIB,
    MS,
    copied,
    loading,
    one,
    others,
    prefill,
    took,
    world,
)
from tests.unit.analyses.exposure.drawing import request, scheduler, wait

if TYPE_CHECKING:
    from pathlib import Path

# 0        10                170
# |lookup 0|load 4 GiB ------|       1,000 tokens: computing them takes 100 ms


def test_4_gib_at_25_gib_a_second_take_160_ms_and_are_not_worth_a_recompute_of_100(tmp_path: Path) -> None:
    row = one(world(tmp_path, *loading(1000, copied(1000, 4 * GIB)), *others()))
    assert row["load_lower_bound_pipelined_ns"] == row["load_lower_bound_serial_ns"] == 160 * MS
    assert row["cost_ns"] == 160 * MS
    assert row["recompute_estimate_ns"] == 100 * MS
    assert (row["saved_ns"], row["verdict"]) == (-60 * MS, "not_worth")
    assert row["basis"] == "cost exposed; computing takes 100 ms to 100 ms (95 %), by 9 prefill steps"


# 0        10           110     170
# |        |load -------+-------|
#          |queue: full |               only 60 ms are exposed; 8,600 tokens take 860 ms
def test_800_ms_saved_with_60_ms_exposed_are_worth_it(tmp_path: Path) -> None:
    full = scheduler("queue", 10 * MS, 110 * MS, reason="capacity")
    row = one(world(tmp_path, *loading(8600, copied(8600, 4 * GIB)), full, *others()))
    assert (row["cost_ns"], row["recompute_estimate_ns"]) == (60 * MS, 860 * MS)
    assert (row["saved_ns"], row["verdict"]) == (800 * MS, "worth")


@pytest.mark.parametrize(
    ("size", "speed", "bound_ns"),
    [
        (4 * GIB, 25 * GIB, 160_000_000),
        (4 * GB, 25 * GIB, 149_011_612),
        (4 * GIB, 25 * GB, 171_798_692),
        (4 * GB, 25 * GB, 160_000_000),
    ],
)  # fmt: skip
def test_gib_and_gb_are_told_apart(tmp_path: Path, size: int, speed: int, bound_ns: int) -> None:
    row = one(world(tmp_path, *loading(1000, copied(1000, size, took_ms=size / speed * 1000)), *others()))
    assert row["load_lower_bound_pipelined_ns"] == pytest.approx(bound_ns, abs=1)


# 0   10          50                     disk->host 40 ms, host->gpu 30 ms behind it
# |   |disk ------|
# |         20 |--- host ---| 70         slowest 40, sum 70, exposed 60
def test_two_hops_take_the_slowest_of_them_pipelined_and_their_sum_in_series(tmp_path: Path) -> None:
    loads = (
        copied(1000, GIB, 10, 40, "disk->host", component="d"), copied(1000, GIB, 40, 30),
    )  # fmt: skip
    row = one(world(tmp_path, *loading(1000, *loads), *others()))
    assert row["load_lower_bound_pipelined_ns"] == 40 * MS
    assert row["load_lower_bound_serial_ns"] == 70 * MS
    assert row["cost_ns"] == 60 * MS
    assert row["moved_bytes"] == GIB


def test_lookup_and_the_wait_for_the_scheduler_to_use_it_are_part_of_the_cost(tmp_path: Path) -> None:
    load = copied(1000, GIB, submit_ns=8 * MS, start=10, took_ms=20, usable_ns=35 * MS)
    row = one(world(tmp_path, *loading(1000, load, lookup=6), *others()))
    assert row["cost_ns"] == (6 + 2 + 20 + 5) * MS
    assert row["verdict"] == "worth"


def test_whole_chunks_are_moved_and_only_what_is_used_is_useful(tmp_path: Path) -> None:
    row = one(world(tmp_path, *loading(640, copied(768, 768 * 2048), gpu_hit=640), *others()))
    assert (row["useful_bytes"], row["moved_bytes"]) == (640 * 2048, 768 * 2048)


def test_a_load_that_failed_cost_its_time_for_nothing(tmp_path: Path) -> None:
    rows = loading(0, copied(1000, GIB, outcome="failed"), selected_tokens=1000, computed=1100)
    row = one(world(tmp_path, *rows, *others()))
    assert (row["useful_bytes"], row["moved_bytes"], row["cost_ns"]) == (0, 0, 160 * MS)
    assert (row["recompute_estimate_ns"], row["verdict"]) == (0, "not_worth")
    assert row["basis"] == "cost exposed; nothing of it was used"


def test_attention_over_a_long_context_is_in_the_estimate(tmp_path: Path) -> None:
    pair_ns = 20.0  # of 1,000 tokens after 4,000 others 4.5 million pairs: 90 ms
    rows = loading(1000, copied(1000, GIB), gpu_hit=4000)
    rows[-1] = prefill(1900, took(100, 5000, pair_ns), 100, "r0", 5000)
    row = one(world(tmp_path, *rows, *others(pair_ns=pair_ns)))
    assert row["recompute_estimate_ns"] == pytest.approx((100 + 90) * MS, abs=0.001 * MS)


def test_a_step_more_is_counted_where_the_limit_of_a_step_is_known(tmp_path: Path) -> None:
    run = world(tmp_path / "told", *loading(1000, copied(1000, GIB)), *others())
    assert one(run)["recompute_estimate_ns"] == 100 * MS
    meta = {"engines": {"e0": {"max_num_batched_tokens": "400"}}}  # 1,100 tokens: 3 steps for 1
    run = world(tmp_path / "known", *loading(1000, copied(1000, GIB)), *others(), meta=meta)
    assert one(run)["recompute_estimate_ns"] == (100 + 2 * FIXED_MS) * MS


def test_wild_steps_do_not_move_the_estimate(tmp_path: Path) -> None:
    rows = others((*SIZES_TWICE,))
    rows[3]["end_ns"] += 900 * MS
    rows[8]["end_ns"] += 700 * MS
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *rows))
    assert row["recompute_estimate_ns"] == pytest.approx(100 * MS, rel=1e-3)


SIZES_TWICE = (100, 200, 300, 400, 600, 800, 1000, 1500) * 2


#  p0  |step ---------------|
#             |wait|            the engine was blocked: no computing
def test_a_wait_inside_a_step_is_no_computing(tmp_path: Path) -> None:
    rows = others()
    for row in rows:
        row["end_ns"] += 50 * MS
    waits = [wait(row["start_ns"] + 2 * MS, row["start_ns"] + 52 * MS, "store") for row in rows]
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *rows, *waits))
    assert row["recompute_estimate_ns"] == 100 * MS


#  |--- p0 ---|
#        |------ p1 ---|         p1 computes from the end of p0 on
def test_steps_that_overlap_count_one_after_the_other(tmp_path: Path) -> None:
    at, rows = 10_000.0, []
    for place, tokens in enumerate((100, 200, 300, 400, 600, 800, 1000, 1500)):
        begin = at - 10 if place else at
        rows.append(prefill(begin, at + took(tokens) - begin, tokens, f"p{place}"))
        at += took(tokens)
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *rows))
    assert row["recompute_estimate_ns"] == 100 * MS


#  rank 0  |--- p0 ---|
#  rank 1   |--- p0 ---|         one step, not a second one of 1 ms
def test_a_step_that_two_ranks_tell_is_one_step(tmp_path: Path) -> None:
    ranks = [
        row | {"observer": "worker", "process": f"e0/w{rank}", "start_ns": row["start_ns"] + rank * MS,
               "end_ns": row["end_ns"] + rank * MS}
        for row in [loading(1000)[-1], *others()] for rank in (0, 1)
    ]  # fmt: skip
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB))[:-1], *ranks))
    assert row["recompute_estimate_ns"] == 100 * MS
    assert row["basis"].endswith("by 9 prefill steps")


def test_noise_of_the_steps_is_the_error_of_the_estimate(tmp_path: Path) -> None:
    rows = others(SIZES_TWICE)
    for place, row in enumerate(rows):
        row["end_ns"] += round((row["end_ns"] - row["start_ns"]) * (-0.5, 0, 0.5)[place % 3])
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB, took_ms=90)), *rows))
    assert row["verdict"] == "unclear"
    assert row["saved_ns"] == row["recompute_estimate_ns"] - row["cost_ns"]


def test_another_engine_tells_nothing_of_this_one(tmp_path: Path) -> None:
    rows = others(engine="e1", process="e1/scheduler")
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *rows))
    assert (row["recompute_estimate_ns"], row["saved_ns"], row["verdict"]) == (None, None, "unclear")
    assert row["basis"] == "cost exposed; no estimate: too few prefill steps of different sizes"


def test_prefill_steps_of_one_size_give_no_estimate(tmp_path: Path) -> None:
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *others([100] * 12)))
    assert row["recompute_estimate_ns"] is None


def test_three_steps_give_an_estimate_without_error_and_no_verdict(tmp_path: Path) -> None:
    row = one(world(tmp_path, *loading(1000, copied(1000, GIB)), *others((500, 1000))))
    assert (row["recompute_estimate_ns"], row["verdict"]) == (100 * MS, "unclear")
    assert row["basis"] == "cost exposed; estimate without error from 3 prefill steps"


def test_more_tokens_than_any_step_computed_are_an_extrapolation(tmp_path: Path) -> None:
    rows = [*loading(8000, copied(8000, GIB)), *others()]
    assert one(world(tmp_path / "far", *rows))["basis"].endswith(
        "by 9 prefill steps, extrapolated from at most 1,500 tokens a step"
    )
    full = {"engines": {"e0": {"max_num_batched_tokens": "1500"}}}
    assert "extrapolated" not in one(world(tmp_path / "full", *rows, meta=full))["basis"]


# without steps of its engine the partition is no measure: 4 GiB at 25 GiB/s and a lookup of 6 ms
def test_where_the_partition_is_no_measure_the_cost_is_the_slowest_hop_and_the_lookup(
    tmp_path: Path,
) -> None:
    rows = loading(1000, copied(1000, 4 * GIB), lookup=6, computed=100, reported_cached_tokens=1000)[:-1]
    row = one(world(tmp_path, *rows))
    assert row["cost_ns"] == (160 + 6) * MS
    assert row["verdict"] == "unclear"
    assert row["basis"].startswith("cost from measured bandwidth")


def test_times_that_include_a_queue_are_no_speed_of_a_path(tmp_path: Path) -> None:
    load = copied(1000, 4 * GIB, observer="scheduler", process="e0/scheduler")
    row = one(world(tmp_path, *loading(1000, load), *others()))
    assert row["load_lower_bound_pipelined_ns"] is row["load_lower_bound_serial_ns"] is None
    assert row["cost_ns"] == 160 * MS
    assert row["basis"].endswith("; no bound: no copy host->gpu was measured")


def test_a_request_without_a_first_token_has_cost_at_least_so_much(tmp_path: Path) -> None:
    rows = loading(1000, copied(1000, GIB, took_ms=400))
    rows[0]["first_token_ns"] = rows[0]["end_ns"] = None
    rows[-1]["members"][0]["output_tokens"] = 0
    row = one(world(tmp_path, *rows, *others()))
    assert (row["cost_ns"], row["verdict"]) == (400 * MS, "not_worth")
    assert row["basis"].startswith("cost exposed so far: no first token")


# 0   10        70         170
# |   |500 -----|500 ------|              seen: 160 ms, more than the 100 of computing
# |   |500 -----|lost      |              60 ms or more: less than computing is not proven
def test_where_a_load_may_be_missing_it_cost_at_least_so_much(tmp_path: Path) -> None:
    first, second = copied(500, GIB // 2, 10, 60), copied(500, GIB // 2, 70, 100)
    seen = one(world(tmp_path / "seen", *loading(1000, first, second), *others()))
    assert (seen["cost_ns"], seen["verdict"]) == (160 * MS, "not_worth")
    gap = {"cause": "dropped", "process": "e0/worker", "count": 1, "op": "load", "from_ns": 70 * MS,
           "to_ns": 170 * MS}  # fmt: skip
    row = one(world(tmp_path / "lost", *loading(1000, first), *others(), loss=[gap]))
    assert (row["cost_ns"], row["verdict"]) == (60 * MS, "unclear")
    assert row["basis"].startswith("cost exposed, 1 record missing; computing takes")
    later = gap | {"from_ns": 2001 * MS, "to_ns": 9000 * MS}
    row = one(world(tmp_path / "later", *loading(1000, first), *others(), loss=[later]))
    assert (row["verdict"], "missing" in row["basis"]) == ("worth", False)
    dear = loading(1000, copied(1000, 4 * GIB))
    assert one(world(tmp_path / "dear", *dear, *others(), loss=[gap]))["verdict"] == "not_worth"


@pytest.mark.parametrize(("op", "answer"), [("lookup", "unclear"), (None, "unclear"), ("store", "worth")])
def test_a_loss_of_what_is_waited_for_leaves_the_cost_open(
    tmp_path: Path, op: str | None, answer: str
) -> None:
    loss = [{"cause": "dropped", "process": "e0/worker", "count": 2, "op": op}]
    rows = [*loading(1000, copied(1000, GIB, took_ms=20)), *others()]
    assert one(world(tmp_path, *rows, loss=loss))["verdict"] == answer


def test_a_load_without_times_has_no_cost(tmp_path: Path) -> None:
    load = {**copied(1000, GIB), "start_ns": None, "end_ns": None}
    row = one(world(tmp_path, *loading(1000, load), *others()))
    assert (row["cost_ns"], row["saved_ns"], row["verdict"]) == (None, None, "unclear")
    assert row["basis"].startswith("a load has no times; computing takes")


def test_a_handoff_is_no_choice_between_loading_and_computing(tmp_path: Path) -> None:
    handoff = copied(1000, GIB, purpose="handoff")
    assert not break_even(world(tmp_path, *loading(1000, handoff), *others())).height
    both = world(tmp_path / "both", *loading(1000, handoff, copied(500, GIB, 200, 20)), *others())
    row = one(both)
    assert (row["useful_bytes"], row["recompute_estimate_ns"], row["verdict"]) == (None, None, "unclear")


def test_a_forecast_is_no_load(tmp_path: Path) -> None:
    rows = loading(1000, copied(1000, GIB, evidence="predicted"))
    assert not break_even(world(tmp_path, *rows, *others())).height


def test_bytes_that_nobody_told_are_null_and_not_0(tmp_path: Path) -> None:
    row = one(world(tmp_path, *loading(1000, copied(1000, None)), *others()))
    assert row["useful_bytes"] is row["moved_bytes"] is row["load_lower_bound_serial_ns"] is None
    assert row["cost_ns"] == 160 * MS


def test_a_load_shared_by_two_requests_is_waited_for_by_both_and_weighed_by_neither(tmp_path: Path) -> None:
    shared = {
        **copied(1000, GIB),
        "request_id": None,
        "members": [{"request_id": "r0"}, {"request_id": "r1"}],
    }
    rows = [*loading(1000, shared), *loading(1000, name="r1", token=4000)]
    found = break_even(world(tmp_path, *rows, *others()))
    assert found["request_id"].to_list() == ["r0", "r1"]
    assert found["moved_bytes"].to_list() == [None, None]
    assert found["cost_ns"].to_list() == [160 * MS, 160 * MS]


def test_one_request_can_be_asked_for(tmp_path: Path) -> None:
    rows = [*loading(1000, copied(1000, GIB)), *loading(1000, copied(1000, GIB, request_id="r1"), name="r1")]
    run = world(tmp_path, *rows, *others())
    assert break_even(run, requests=("r1",))["request_id"].to_list() == ["r1"]


def test_a_run_without_loads_gives_no_rows_with_the_same_columns(tmp_path: Path) -> None:
    found = break_even(world(tmp_path, request(0, 100, 60)))
    assert found.schema == COLUMNS
    assert not found.height


@pytest.mark.parametrize("confidence", [0.4, 1.0, float("nan")])
def test_a_confidence_out_of_range_is_refused(tmp_path: Path, confidence: float) -> None:
    with pytest.raises(UsageError, match="confidence"):
        break_even(world(tmp_path, request(0, 100, 60)), confidence=confidence)


ODD: tuple[dict[str, Any], ...] = (
    {"bytes": 2**63 - 1, "tokens": 1}, {"bytes": -1}, {"tokens": -5}, {"tokens": 0}, {"bytes": 0},
    {"end_ns": None}, {"start_ns": -5, "end_ns": -1}, {"submit_ns": -(2**62)}, {"usable_ns": 2**62},
    {"outcome": "partial"}, {"outcome": "open", "end_ns": None}, {"tier_from": None},
)  # fmt: skip


def test_odd_rows_are_answered(tmp_path: Path) -> None:
    spans: list[dict[str, Any]] = []
    for place, odd in enumerate(ODD):
        name = f"r{place}"
        load = {**copied(1000, GIB, request_id=name), **odd}
        spans += loading(1000, load, name=name, token=2000 + 10 * place)
    found = break_even(world(tmp_path, *spans, *others()))
    assert found.height == len(ODD)
    assert set(found["verdict"]) <= {"worth", "not_worth", "unclear"}
