"""The oracle itself: the worked example of questions.md, and the laws that follow from the definition."""

from collections import Counter
from typing import Any

from drawn import EXAMPLE, OWN_OPS, Run, added, cut, runs, runs_and_additions, runs_and_cuts, runs_and_shifts
from drawn import runs_and_strangers, shifted
from hypothesis import given
from oracle import critical_path_by_ticks, exposure_by_ticks

HIDDEN = ("compute", "wait", "queue", "load", "rest")
STRENGTH = ("compute", "wait_load", "wait_store", "wait_lookup", "wait_lock", "queue_capacity", "load")
STRENGTH += ("load_wait", "lock", "lookup", "store", "interference", "queue", "other")
CLASS_OF = {"load": "load", "store": "store", "lookup": "lookup", "lock_wait": "lock", "queue": "queue"}

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
    assert parts["load_wait", None]["work_ns"] == 59
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


def test_an_empty_run_has_no_rows() -> None:
    assert exposure(Run(())) == []
    assert path(Run(())) == []


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


@given(runs())
def test_exposed_parts_and_segments_sum_to_the_window(run: Run) -> None:
    for name in ("ttft", "decode", "e2e"):
        segments = path(run, name)
        lengths: Counter[tuple[Any, ...]] = Counter()
        for row in segments:
            lengths[row["request_id"], name, row["class"]] += row["end_ns"] - row["start_ns"]
        assert lengths == {key: ns for key, ns in by_class(exposure(run)).items() if key[1] == name}
        for before, after in zip(segments, segments[1:], strict=False):
            if before["request_id"] == after["request_id"]:
                assert (before["end_ns"], before["seq"] + 1) == (after["start_ns"], after["seq"])
    for request in run.spans:
        if request["op"] == "request" and (request.get("end_ns") or -1) > request["start_ns"]:
            mine = [ns for key, ns in by_class(exposure(run)).items() if key[::2][0] == request["request_id"]]
            assert sum(mine) >= request["end_ns"] - request["start_ns"]


@given(runs_and_shifts())
def test_a_shift_of_all_times_changes_nothing(run_and_shift: tuple[Run, int]) -> None:
    run, by_ns = run_and_shift
    assert exposure(shifted(run, by_ns)) == exposure(run)
    later = [
        {**row, "start_ns": row["start_ns"] + by_ns, "end_ns": row["end_ns"] + by_ns} for row in path(run)
    ]
    assert path(shifted(run, by_ns)) == later


@given(runs_and_cuts())
def test_an_interval_cut_in_two_changes_nothing(run_row_and_time: tuple[Run, dict[str, Any], int]) -> None:
    assert exposure(cut(*run_row_and_time)) == exposure(run_row_and_time[0])


@given(runs_and_additions())
def test_an_interval_under_a_stronger_class_changes_no_class(drawn: tuple[Run, str, int]) -> None:
    run, op, pick = drawn
    weaker_than = STRENGTH.index(CLASS_OF[op])
    hiding = [segment for segment in path(run) if STRENGTH.index(segment["class"]) < weaker_than]
    if hiding:
        segment = hiding[pick % len(hiding)]
        more = added(run, op, segment["request_id"], segment["start_ns"], segment["end_ns"])
        assert by_class(exposure(more)) == by_class(exposure(run))


@given(runs_and_strangers())
def test_a_request_apart_changes_no_other(without_and_with: tuple[Run, Run]) -> None:
    without, with_stranger = without_and_with
    others = [row for row in exposure(with_stranger) if row["request_id"] != "stranger"]
    assert others == exposure(without)


def test_every_own_op_has_a_class() -> None:
    assert set(CLASS_OF) == set(OWN_OPS)
