"""Groups side by side: numbers over rounds, steps between groups, null for what nobody saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses._text import NONE, NOT_OBSERVED
from kvtrace.cli._docs import columns
from kvtrace.errors import InputError, UsageError
from kvtrace.experiment.groups import COLUMNS, group_names, groups
from kvtrace.experiment.groups.measures import measured
from kvtrace.experiment.groups.words import change, level, limits
from kvtrace.experiment.plan import Fixed, Group, Plan, Slo
from kvtrace.run import open_run
from tests.rows import write_run
from tests.unit.experiment.drawn import MS, START, draw_round

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

SLOW = [100.0, 200.0, 300.0]
"""Three requests of different size."""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two rounds of no_reuse; two of tiered, each request 40 ms quicker, one ms up or down by the round.

    gpu_prefix is one run with a request more, of 10 s; mine one of 40 requests; failing one whose second
    fails, with a round in which all do.
    """
    folder = tmp_path_factory.mktemp("rounds")
    return [
        draw_round(folder / "t1", "tiered", [value - 41 for value in SLOW], stored=5),
        draw_round(folder / "t2", "tiered", [value - 39 for value in SLOW], stored=5),
        draw_round(folder / "n1", "no_reuse", [value + 1 for value in SLOW]),
        draw_round(folder / "n2", "no_reuse", [value - 1 for value in SLOW]),
        draw_round(folder / "g1", "gpu_prefix", [*SLOW, 10_000.0]),
        draw_round(folder / "m1", "mine", [float(value) for value in range(100, 140)]),
        draw_round(folder / "f1", "failing", [100.0, None, 300.0]),
        draw_round(folder / "f2", "failing", [None, None, None]),
    ]


@pytest.fixture(scope="module")
def rows(rounds: list[Run]) -> list[dict[str, Any]]:
    plan = Plan(
        Fixed(slo=Slo(ttft_ns=250 * MS)),
        groups={"mine": Group(base="tiered"), "tiered": Group(base="no_reuse")},
    )
    return list(groups(rounds, plan).to_dicts())


@pytest.fixture(scope="module")
def cells(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["group"], row["metric"]): row for row in rows}


def test_the_columns_are_those_that_are_documented(cells: dict[Any, Any]) -> None:
    assert list(columns(groups.__doc__)) == list(COLUMNS)
    assert {tuple(row) for row in cells.values()} == {tuple(COLUMNS)}


def test_groups_stand_in_the_order_of_the_plan_and_then_of_the_closed_loop(cells: dict[Any, Any]) -> None:
    against = dict.fromkeys(group for group, _ in cells)
    for (group, _), row in cells.items():
        against[group] = row["against"]
    assert list(against.items()) == [
        ("mine", "tiered"), ("tiered", "no_reuse"), ("no_reuse", "tiered"), ("gpu_prefix", "no_reuse"),
        ("failing", "gpu_prefix"),
    ]  # fmt: skip


def test_a_value_is_the_mean_of_its_rounds_with_students_interval(cells: dict[Any, Any]) -> None:
    """Medians of 201 and 199 ms: 200 +- t(1) * sqrt(2) / sqrt(2) = 12.706 ms."""
    row = cells["no_reuse", "ttft_p50_ns"]
    assert (row["value"], row["interval"], row["runs"], row["requests"]) == (200 * MS, "runs", 2, 6)
    assert row["ci_low"] == pytest.approx(200 * MS - 12.7062 * MS, rel=1e-6)
    assert row["ci_high"] == pytest.approx(200 * MS + 12.7062 * MS, rel=1e-6)


def test_a_mean_over_requests_is_held_against_the_same_requests(cells: dict[Any, Any]) -> None:
    row = cells["tiered", "ttft_mean_ns"]
    assert row["paired"]
    assert row["change"] == pytest.approx(-40 * MS)
    assert row["change_low"] < -40 * MS < row["change_high"] < 0
    assert cells["tiered", "ttft_p90_ns"]["paired"] is None


def test_a_request_that_one_group_lacks_moves_no_paired_mean(cells: dict[Any, Any]) -> None:
    row = cells["gpu_prefix", "ttft_mean_ns"]
    assert row["value"] > 2000 * MS
    assert row["change"] == pytest.approx(0, abs=1)
    assert row["change_low"] < 0 < row["change_high"], "three runs in all give it an interval"
    assert "one run on one side: it is taken to vary as those of the other do" in row["because"]


def test_requests_that_failed_are_counted_and_in_no_quantile(rounds: list[Run]) -> None:
    found = measured(rounds[6], None)
    assert (found["completed"].value, found["errors"].value) == (2, 1)
    assert (found["ttft_p50_ns"].value, found["ttft_p50_ns"].rows) == (100 * MS, 2)
    assert found["ttft_p50_ns"].remark == "1 request without a first token stands beside it"


def test_times_between_tokens_are_those_of_all_tokens(cells: dict[Any, Any]) -> None:
    for metric in ("itl_p50_ns", "itl_p99_ns"):
        assert cells["tiered", metric]["value"] == 5 * MS
    assert cells["tiered", "itl_p50_ns"]["requests"] == 6


def test_what_a_group_did_not_see_is_null_and_never_0(cells: dict[Any, Any]) -> None:
    row = cells["no_reuse", "stored_bytes"]
    assert row["value"] is None
    assert row["because"] == "no store with its bytes was recorded"
    assert cells["tiered", "stored_bytes"]["value"] == 3000
    assert cells["tiered", "stored_bytes"]["change"] is None
    assert level(row) == NOT_OBSERVED
    assert change(row) == NOT_OBSERVED
    assert change(row | {"against": None}) == NONE


def test_a_metric_that_one_round_did_not_observe_is_null(cells: dict[Any, Any]) -> None:
    row = cells["failing", "ttft_p50_ns"]
    assert (row["value"], row["ci_low"], row["runs"]) == (None, None, 2)
    assert "no first token was observed" in row["because"]


def test_one_run_of_a_group_has_intervals_of_quantiles_alone(cells: dict[Any, Any]) -> None:
    row = cells["mine", "ttft_p50_ns"]
    assert row["interval"] == "bootstrap"
    assert row["ci_low"] < row["value"] == 119 * MS < row["ci_high"]
    assert cells["mine", "ttft_p99_ns"]["ci_high"] is None
    for metric in ("ttft_mean_ns", "completed", "itl_p50_ns"):
        assert (cells["mine", metric]["ci_low"], cells["mine", metric]["interval"]) == (None, None), metric


def test_one_run_a_side_has_a_change_without_an_interval(rounds: list[Run]) -> None:
    found = {row["metric"]: row for row in groups([rounds[0], rounds[2]]).to_dicts() if row["against"]}
    row = found["ttft_mean_ns"]
    assert (row["change"], row["change_low"], row["change_high"]) == (pytest.approx(-42 * MS), None, None)
    assert "one run a side" in row["because"]


def test_the_plan_sets_the_targets(cells: dict[Any, Any]) -> None:
    assert cells["no_reuse", "slo.ttft_ns"]["value"] == pytest.approx(2 / 3)
    assert ("no_reuse", "slo.itl_p99_ns") not in cells


def test_a_run_without_a_group_is_one_of_its_own(tmp_path: Path) -> None:
    assert group_names([draw_round(tmp_path / "b", None, SLOW)]) == ["b"]


def test_what_cannot_be_compared_at_all_is_one_sentence(tmp_path: Path, rounds: list[Run]) -> None:
    with pytest.raises(UsageError, match="give the runs"):
        groups([])
    with pytest.raises(UsageError, match="t1: is given twice"):
        groups([rounds[0], rounds[0]])
    with pytest.raises(InputError, match="holds no request"):
        groups([write_run(tmp_path / "empty", {"group": "tiered"})])


def test_limits_name_groups_and_metrics_once_a_reason(rows: list[dict[str, Any]]) -> None:
    told = list(limits(rows))
    assert len(told) == len(set(told))
    (alone,) = [line for line in told if line.startswith("No store with its bytes was recorded")]
    assert "no_reuse: bytes stored" in alone


def test_runs_that_name_no_group_are_groups_of_their_own_whatever_their_folders_are_called(
    tmp_path: Path,
) -> None:
    runs = [
        draw_round(tmp_path / "before" / "run", None, SLOW),
        draw_round(tmp_path / "after" / "run", None, SLOW, measured_from_ns=START + 1000 * MS),
        draw_round(tmp_path / "alone", None, SLOW), draw_round(tmp_path / "mine", "alone", SLOW),
        draw_round(tmp_path / "more", "alone", SLOW),
    ]  # fmt: skip
    names = group_names(runs)
    assert names == ["before/run", "after/run", f"{tmp_path.name}/alone", "alone", "alone"]
    rows = groups(runs[:2]).to_dicts()
    assert {(row["group"], row["runs"], row["against"]) for row in rows} == {
        ("before/run", 1, None), ("after/run", 1, "before/run"),
    }  # fmt: skip


def test_one_run_by_two_paths_is_one_run(tmp_path: Path) -> None:
    run = draw_round(tmp_path / "r", "a", SLOW)
    (tmp_path / "link").symlink_to(run.path)
    with pytest.raises(UsageError, match="is given twice"):
        groups([run, open_run(tmp_path / "link")])


def test_an_interval_of_a_share_or_count_holds_nothing_impossible(tmp_path: Path) -> None:
    times = ([100.0] * 4, [100.0, 100.0, None, 3000.0])
    runs = [draw_round(tmp_path / str(at), "a", list(each)) for at, each in enumerate(times)]
    found = {row["metric"]: row for row in groups(runs, Plan(Fixed(slo=Slo(ttft_ns=250 * MS)))).to_dicts()}
    assert (found["slo.ttft_ns"]["ci_low"], found["slo.ttft_ns"]["ci_high"]) == (0.0, 1.0)
    assert found["errors"]["ci_low"] == 0.0
    assert found["errors"]["value"] == 0.5


def test_equal_rounds_against_one_run_tell_no_spread(tmp_path: Path) -> None:
    same = [draw_round(tmp_path / name, "no_reuse", SLOW) for name in ("one", "two")]
    other = draw_round(tmp_path / "other", "tiered", [100.0, None, 300.0])
    cells = {(row["group"], row["metric"]): row for row in groups([*same, other]).to_dicts()}
    for metric, moved in (("errors", 1.0), ("ttft_mean_ns", 0.0)):
        row = cells["tiered", metric]
        assert (row["change"], row["change_low"], row["change_high"]) == (moved, None, None)
        assert "no spread is known" in row["because"]


def test_what_a_number_rests_on_are_requests(tmp_path: Path) -> None:
    mine = {"engine": "e", "process": "p", "observer": "worker", "evidence": "shim"}
    store = {"op": "store", "start_ns": START, "end_ns": START + 9, "tier_from": "gpu", "tier_to": "host",
             "bytes": 10, "outcome": "ok"} | mine  # fmt: skip
    requests = [
        {"op": "request", "request_id": name, "start_ns": START, "end_ns": START + 9, "status": "ok",
         "prompt_tokens": 64, "gpu_hit_tokens": 16} | mine
        for name in ("a", "b", "c")
    ]  # fmt: skip
    stores = [store | {"request_id": "a", "transfer_id": str(at), "start_ns": START + at} for at in range(4)]
    both = [{"request_id": name, "phase": "decode", "scheduled_tokens": 1} for name in ("a", "b")]
    shared = store | {"members": both, "transfer_id": "both", "start_ns": START + 5}
    run = write_run(tmp_path / "r", {"group": "a"}, span=[*requests, *stores, shared])
    rows = {row["metric"]: (row["value"], row["requests"]) for row in groups([run]).to_dicts()}
    assert rows["stored_bytes"] == (50, 2)
    assert rows["hit.gpu"] == (0.25, 3)


def test_how_few_of_the_ends_are_known_is_said(tmp_path: Path) -> None:
    rows = [
        {"op": "request", "request_id": f"q{at}", "start_ns": START + at, "end_ns": START + at + 100,
         "status": None if at else "ok", "engine": "e", "process": "p"} for at in range(10)
    ]  # fmt: skip
    found = measured(write_run(tmp_path / "s", {"group": "x"}, span=rows), None)
    assert (found["completed"].value, found["errors"].value) == (1, 0)
    assert found["completed"].remark == "of 9 requests it is not known how they ended"


def test_which_requests_a_paired_change_leaves_out_is_said(tmp_path: Path) -> None:
    one = draw_round(tmp_path / "k1", "no_reuse", [100.0, 5000.0, 1000.0])
    two = draw_round(tmp_path / "k2", "gpu_prefix", [100.0, None])
    cells = {(row["group"], row["metric"]): row for row in groups([one, two]).to_dicts()}
    for metric in ("ttft_mean_ns", "e2e_mean_ns"):
        row = cells["gpu_prefix", metric]
        assert (row["change"], row["paired"]) == (0, True)
        assert row["because"].startswith(
            "the change is over the 1 request that have a value in each of 2 runs; 3 others are left out, "
            "1 of them without a value (failed, aborted or not observed)"
        )
    assert "left out" not in (cells["gpu_prefix", "completed"]["because"] or "")
