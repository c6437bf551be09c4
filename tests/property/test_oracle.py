"""The oracle itself: the worked example of docs/exposure.md, and the laws that follow from the definition."""

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from tests.property.drawn import (
    EXAMPLE,
    OWN_OPS,
    Run,
    added,
    cut,
    runs,
    runs_and_additions,
    runs_and_cuts,
    runs_and_shifts,
    runs_and_strangers,
    shifted,
)
from tests.property.oracle import critical_path_by_ticks, exposure_by_ticks

HIDDEN = ("compute", "wait", "queue", "load", "rest")
WAITS = ("wait_load", "wait_store", "wait_lookup", "wait_lock")
STRENGTH = (
    "compute",
    *WAITS,
    "queue_capacity",
    "load",
    "load_wait",
    "lock",
    "lookup",
    "store",
    "interference",
    "queue",
    "other",
)
CLASS_OF = {"load": "load", "store": "store", "lookup": "lookup", "lock_wait": "lock", "queue": "queue"}

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the oracle counts every tick

Answer = list[dict[str, Any]]


def exposure(run: Run) -> Answer:
    return exposure_by_ticks(run.spans, run.losses, run.processes)


def path(run: Run, window: str = "e2e") -> Answer:
    return critical_path_by_ticks(run.spans, run.losses, run.processes, window)


def by_class(answer: Answer) -> dict[tuple[Any, ...], int]:
    """Exposed time a (request, window, class); null counts for nothing here."""
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in answer:
        sums[row["request_id"], row["window"], row["class"]] += row["exposed_ns"] or 0
    return {key: exposed_ns for key, exposed_ns in sums.items() if exposed_ns}


def test_the_worked_example_has_its_numbers() -> None:
    answer = [row for row in exposure(EXAMPLE) if row["window"] == "ttft"]
    exposed = {(row["class"], row["hop"]): row["exposed_ns"] for row in answer}
    assert exposed == {
        ("queue_capacity", None): 20,
        ("load", "disk->host"): 30,
        ("load", "host->gpu"): 12,
        ("load_wait", None): 6,
        ("lookup", None): 0,
        ("other", None): 2,
        ("wait_load", None): 5,
        ("compute", None): 25,
    }
    parts = {(row["class"], row["hop"]): row for row in answer}
    hidden = {
        key: (row["total_ns"], *(row[f"hidden_by_{hider}_ns"] for hider in HIDDEN))
        for key, row in parts.items()
    }
    assert hidden["load", "disk->host"] == (40, 0, 0, 10, 0, 0)
    assert hidden["load", "host->gpu"] == (32, 0, 0, 0, 20, 0)
    assert hidden["load_wait", None] == (7, 0, 0, 1, 0, 0)  # [9, 10) is hidden, [62, 68) is not
    assert hidden["lookup", None] == (7, 0, 0, 7, 0, 0)
    assert parts["load_wait", None]["work_ns"] == 59 + 40  # without submit and usable: start and end
    assert parts["compute", None]["work_ns"] is None
    assert {(row["bound"], row["censored"], row["agreement"]) for row in answer} == {("exact", False, 48)}


def test_the_worked_example_has_its_path() -> None:
    segments = [tuple(row[key] for key in ("start_ns", "class", "hop", "span_id")) for row in path(EXAMPLE)]
    assert segments == [
        (0, "queue_capacity", None, 1),
        (20, "load", "disk->host", 3),
        (50, "load", "host->gpu", 4),
        (62, "load_wait", None, 4),
        (68, "other", None, None),
        (70, "wait_load", None, 6),
        (75, "compute", None, 5),
    ]


E0 = {"engine": "e0", "process": "e0/scheduler", "observer": "scheduler"}
REQUEST = {**E0, "op": "request", "span_id": 0, "request_id": "r0", "start_ns": 0, "end_ns": 50}
STEP = {**E0, "op": "step", "span_id": 1, "start_ns": 10, "end_ns": 30, "members": [{"request_id": "r0"}]}
WAIT = {**E0, "op": "wait", "span_id": 2, "reason": "store", "start_ns": 20, "end_ns": 40}
LOAD = {"op": "load", "span_id": 3, "request_id": "r0", "tier_from": "disk", "process": "p", "start_ns": 5}


def e2e(*spans: dict[str, Any], losses: tuple[dict[str, Any], ...] = ()) -> dict[str, tuple[Any, ...]]:
    """Exposed, total and open time a class."""
    answer = [row for row in exposure(Run(spans, losses)) if row["window"] == "e2e"]
    return {row["class"]: (row["exposed_ns"], row["total_ns"], row["open_ns"]) for row in answer}


def test_a_wait_of_nobody_is_another_request_s_only_outside_the_step() -> None:
    assert e2e(REQUEST, STEP, WAIT) == {
        "compute": (10, 10, 0),
        "wait_store": (10, 10, 0),
        "interference": (10, 10, 0),
        "other": (20, 20, 0),
    }


def test_a_wait_without_a_reason_is_no_class_but_stops_compute() -> None:
    wait = {**WAIT, "reason": None, "request_id": "r0"}
    assert e2e(REQUEST, STEP, wait) == {"compute": (10, 10, 0), "other": (40, 40, 0)}


def test_a_wait_of_another_engine_is_nothing() -> None:
    assert e2e(REQUEST, STEP, {**WAIT, "engine": "e1"}) == {"compute": (20, 20, 0), "other": (30, 30, 0)}


def test_a_step_without_scheduled_tokens_does_not_compute_but_makes_the_bound_exact() -> None:
    idle = {**STEP, "members": [{"request_id": "r0", "scheduled_tokens": 0}]}
    assert e2e(REQUEST, idle) == {"other": (50, 50, 0)}


def test_an_upper_bound_gives_the_time_of_compute_to_the_next_class() -> None:
    lookup = {**REQUEST, "op": "lookup", "span_id": 4, "start_ns": 12, "end_ns": 14}
    loss = {"cause": "dropped", "op": "step", "process": "e0/scheduler"}
    assert e2e(REQUEST, STEP, lookup, losses=(loss,)) == {
        "compute": (None, None, None),
        "lookup": (2, 2, 0),
        "other": (48, 48, 0),
    }
    for neutral in ({"cause": "duplicate"}, {"op": "load"}, {"process": "e0/worker"}, {"from_ns": 50}):
        assert e2e(REQUEST, STEP, lookup, losses=({**loss, **neutral},))["compute"] == (20, 20, 0)


def test_an_open_row_lasts_to_the_last_record_of_its_process() -> None:
    later = {**LOAD, "op": "publish", "span_id": 5, "request_id": None, "start_ns": 25, "end_ns": 25}
    assert e2e(REQUEST, LOAD, later)["load"] == (20, 20, 20)
    assert e2e(REQUEST, {**LOAD, "process": None})["load"] == (45, 45, 45)


def test_a_transfer_counts_once_as_seen_nearest_the_copy() -> None:
    seen = {**LOAD, "transfer_id": "t"}
    client = {**seen, "observer": "client", "start_ns": 0, "end_ns": 50}
    workers = [{**seen, "observer": "worker", "span_id": n, "end_ns": end} for n, end in ((6, 9), (7, 12))]
    assert e2e(REQUEST, client, *workers)["load"] == (7, 7, 0)
    assert e2e(REQUEST, client, *workers, {**client, "transfer_id": None, "end_ns": 2})["load"] == (9, 9, 0)


def test_an_unfinished_request_ends_at_the_last_record_of_its_engine() -> None:
    answer = exposure(Run(({**REQUEST, "end_ns": None}, STEP, WAIT, {**LOAD, "end_ns": 90})))
    assert {(row["window"], row["censored"]) for row in answer} == {("ttft", True), ("e2e", True)}
    assert sum(row["exposed_ns"] for row in answer if row["window"] == "e2e") == 40


def test_the_first_token_is_the_end_of_the_first_step_that_gave_one() -> None:
    giving = {**STEP, "members": [{"request_id": "r0", "scheduled_tokens": 1, "output_tokens": 1}]}
    answer = exposure(Run((REQUEST, giving, {**giving, "start_ns": 12, "end_ns": 20})))
    lengths: Counter[str] = Counter()
    for row in answer:
        lengths[row["window"]] += row["exposed_ns"]
    assert lengths == {"ttft": 30, "decode": 20, "e2e": 50}


def test_an_empty_run_has_no_rows() -> None:
    assert exposure(Run(())) == []
    assert path(Run(())) == []


@law
@given(runs())
def test_total_is_exposed_plus_hidden_and_at_most_work(run: Run) -> None:
    for row in exposure(run):
        if row["exposed_ns"] is None:
            assert (row["class"], row["bound"]) == ("compute", "upper")
            continue
        assert row["total_ns"] == row["exposed_ns"] + sum(
            row[f"hidden_by_{hider}_ns"] or 0 for hider in HIDDEN
        )
        assert row["work_ns"] is None or row["total_ns"] <= row["work_ns"]
        assert row["open_ns"] <= row["total_ns"]


@law
@given(runs())
def test_exposed_parts_and_segments_sum_to_the_window(run: Run) -> None:
    for name in ("ttft", "decode", "e2e"):
        segments = path(run, name)
        lengths: Counter[tuple[Any, ...]] = Counter()
        for row in segments:
            lengths[row["request_id"], name, row["class"]] += row["end_ns"] - row["start_ns"]
        assert lengths == {key: ns for key, ns in by_class(exposure(run)).items() if key[1] == name}
        for before, after in pairwise(segments):
            if before["request_id"] == after["request_id"]:
                assert (before["end_ns"], before["seq"] + 1) == (after["start_ns"], after["seq"])
    for request in run.spans:
        if request["op"] == "request" and (request.get("end_ns") or 0) > request["start_ns"]:
            mine = (request["request_id"], "e2e")
            parts = [exposed_ns for key, exposed_ns in by_class(exposure(run)).items() if key[:2] == mine]
            assert sum(parts) == request["end_ns"] - request["start_ns"]


@law
@given(runs_and_shifts())
def test_a_shift_of_all_times_changes_nothing(run_and_shift: tuple[Run, int]) -> None:
    run, by_ns = run_and_shift
    assert exposure(shifted(run, by_ns)) == exposure(run)
    later = [
        {**row, "start_ns": row["start_ns"] + by_ns, "end_ns": row["end_ns"] + by_ns} for row in path(run)
    ]
    assert path(shifted(run, by_ns)) == later


@law
@given(runs_and_cuts())
def test_an_interval_cut_in_two_changes_nothing(run_row_and_time: tuple[Run, dict[str, Any], int]) -> None:
    assert exposure(cut(*run_row_and_time)) == exposure(run_row_and_time[0])


@law
@given(runs_and_additions())
def test_an_interval_under_a_stronger_class_changes_no_class(drawn: tuple[Run, str, int]) -> None:
    run, op, pick = drawn
    weaker_than = STRENGTH.index(CLASS_OF[op])
    hiding = [segment for segment in path(run) if STRENGTH.index(segment["class"]) < weaker_than]
    if hiding:
        segment = hiding[pick % len(hiding)]
        more = added(run, op, segment["request_id"], segment["start_ns"], segment["end_ns"])
        assert by_class(exposure(more)) == by_class(exposure(run))


@law
@given(runs_and_strangers())
def test_a_request_apart_changes_no_other(without_and_with: tuple[Run, Run]) -> None:
    without, with_stranger = without_and_with
    others = [row for row in exposure(with_stranger) if row["request_id"] != "stranger"]
    assert others == exposure(without)


def test_every_own_op_has_a_class() -> None:
    assert set(CLASS_OF) == set(OWN_OPS)
