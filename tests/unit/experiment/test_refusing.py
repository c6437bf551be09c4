"""Runs that may not stand side by side: the factor is named, the command's exit code is 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from kvtrace.errors import NotComparableError
from kvtrace.experiment.groups import group_names, groups
from kvtrace.experiment.groups.phase import begins
from kvtrace.experiment.groups.refusing import refused
from kvtrace.experiment.groups.warm import said
from kvtrace.experiment.plan import Fixed, Group, Plan
from tests.rows import write_run
from tests.unit.experiment.drawn import ENGINE, MS, START, draw_round

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

TIMES = [100.0, 200.0]


def asked(*runs: Run, plan: Plan | None = None) -> str:
    """The sentences about these runs; "": none."""
    given = plan or Plan()
    warm = [said(run, begins(run, given)) for run in runs]
    return "; ".join(refused(runs, given, group_names(runs), warm))


def refusal(tmp_path: Path, plan: Plan | None = None, *, second: dict[str, Any] | None = None) -> str:
    """The same about two groups whose second differs in this part of its run.json."""
    name = f"pair-{len(list(tmp_path.iterdir()))}"
    one = draw_round(tmp_path / name / "one", "no_reuse", TIMES)
    return asked(one, draw_round(tmp_path / name / "other", "gpu_prefix", TIMES, **(second or {})), plan=plan)


def engine(**more: str) -> dict[str, Any]:
    return {"engines": {"e": ENGINE | more}}


@pytest.mark.parametrize("field", ["model", "block_size", "version", "max_num_seqs"])
def test_another_engine_is_refused_by_name(tmp_path: Path, field: str) -> None:
    one = draw_round(tmp_path / "one", "no_reuse", TIMES, **engine(**{field: "a"}))
    other = draw_round(tmp_path / "other", "gpu_prefix", TIMES, **engine(**{field: "b"}))
    assert asked(one, other) == f"vllm.{field} differs: a in one; b in other"


def test_what_is_the_thing_tested_may_differ(tmp_path: Path) -> None:
    assert refusal(tmp_path, second=engine(kv_connector="LMCacheMPConnector", prefix_caching="true")) == ""


@pytest.mark.parametrize("factor", ["block_size", "vllm.block_size"])
def test_a_plan_lets_a_factor_differ(tmp_path: Path, factor: str) -> None:
    assert refusal(tmp_path, Plan(Fixed(may_differ=("model",))), second=engine(block_size="32"))
    assert refusal(tmp_path, Plan(Fixed(may_differ=(factor,))), second=engine(block_size="32")) == ""


def test_another_slo_or_workload_is_refused_as_an_error_of_its_own(tmp_path: Path) -> None:
    one = draw_round(tmp_path / "one", "no_reuse", TIMES, slo={"ttft_ns": 1}, workload="w")
    other = draw_round(tmp_path / "other", "tiered", TIMES, slo={"ttft_ns": 2}, workload="v")
    with pytest.raises(NotComparableError, match=r"slo differs: .*; workload differs: "):
        groups([one, other])


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        (Fixed(model="big"), "model differs: big in the plan; tiny in one"),
        (Fixed(gpus=2), "gpus differs: 2 in the plan; 1 in one"),
        (Fixed(prompt_tokens=65), "prompt_tokens differs: 65 in the plan; 64 in one"),
        (Fixed(output_tokens=(4, 9)), "output_tokens differs: 4 to 9 in the plan; 3 in one"),
        (Fixed(arrivals="all at once"), "arrivals differs: all at once in the plan; by turns in other"),
    ],
)
def test_what_the_plan_fixes_is_held_against_every_run(tmp_path: Path, fixed: Fixed, sentence: str) -> None:
    assert sentence in refusal(tmp_path, Plan(fixed), second={"fixed": {"arrivals": "by turns"}})
    fine = Fixed(model="tiny", gpus=1, prompt_tokens=64, output_tokens=(1, 3), arrivals="by turns")
    assert refusal(tmp_path, Plan(fine), second={"fixed": {"arrivals": "by turns"}}) == ""


def test_runs_without_a_plan_differ_in_what_their_own_plans_let_differ(tmp_path: Path) -> None:
    named = {"may_differ": ["block_size"]}
    one = draw_round(tmp_path / "one", "no_reuse", TIMES, **named)
    other = draw_round(tmp_path / "other", "tiered", TIMES, **engine(block_size="32"), **named)
    assert groups([one, other])["group"].n_unique() == 2
    third = draw_round(tmp_path / "third", "gpu_prefix", TIMES)
    with pytest.raises(NotComparableError, match="block_size differs"):
        groups([one, other, third])


def test_an_engine_that_says_no_parallel_size_may_have_any_number_of_gpus(tmp_path: Path) -> None:
    told = {"engines": {"e": {"product": "x", "model": "tiny"}}}
    run = draw_round(tmp_path / "one", "no_reuse", TIMES, **told)
    assert asked(run, plan=Plan(Fixed(gpus=2))) == ""


def test_the_same_request_with_another_prompt_is_refused(tmp_path: Path) -> None:
    one = draw_round(tmp_path / "one", "no_reuse", TIMES)
    longer = draw_round(tmp_path / "two", "gpu_prefix", TIMES, prompt_tokens=65)
    assert "the request kvx-0 has 64 in one; 65 in two" in asked(one, longer)
    assert asked(one, longer, plan=Plan(Fixed(may_differ=("prompt_tokens",)))) == ""


#  request      1000 |----|             measured phase from 1002
#    store           |--------| 1005
def test_a_warm_tier_whose_stores_were_not_over_is_refused_with_how_many_and_how_late(
    tmp_path: Path,
) -> None:
    before = START + 1002 * MS
    run = draw_round(tmp_path / "r", "tiered", TIMES, stored=5, measured_from_ns=before)
    assert asked(run) == (
        "the tier was not warm: in r (tiered) 2 of 2 stores of the warm-up were not over when the measured "
        "phase began, the last 3 ms later"
    )
    assert asked(draw_round(tmp_path / "ready", "tiered", TIMES, stored=2, measured_from_ns=before)) == ""
    assert asked(draw_round(tmp_path / "cold", "gpu_prefix", TIMES, stored=5, measured_from_ns=before)) == ""


def test_what_the_experiment_wrote_of_the_warm_up_is_taken_at_its_word(tmp_path: Path) -> None:
    told = {"stores": 9, "unfinished": 2, "late_ns": None, "open": 2}
    run = draw_round(tmp_path / "r", "mine", TIMES, warm=told)
    assert asked(run) == ""
    based = draw_round(tmp_path / "based", "mine", TIMES, warm=told, base="tiered")
    assert "2 of 9 stores" in asked(based), "run.json says what it stands on"
    assert asked(draw_round(tmp_path / "ring", "mine", TIMES, warm=told, base="mine")) == ""
    told_of = asked(run, plan=Plan(groups={"mine": Group(base="tiered")}))
    assert "2 of 9 stores" in told_of
    assert told_of.endswith("began, 2 of them without an end")
    assert asked(draw_round(tmp_path / "s", "tiered", TIMES, warm=told | {"unfinished": 0, "open": 0})) == ""


def test_a_base_that_only_run_json_names_makes_a_group_warm(tmp_path: Path) -> None:
    told = {"stores": 9, "unfinished": 2, "late_ns": None, "open": 2}
    run = draw_round(tmp_path / "r", "mine", TIMES, warm=told, base="tiered")
    assert "2 of 9 stores" in asked(run)
    over = draw_round(tmp_path / "s", "yours", TIMES, warm=told, base="mine")
    assert "in s (yours) 2 of 9 stores" in asked(over, run)
    assert "in s (yours) 2 of 9 stores" in asked(over, plan=Plan(groups={"mine": Group(base="tiered")}))
    assert asked(draw_round(tmp_path / "c", "a", TIMES, warm=told, base="a")) == "", "a circle ends"


@pytest.mark.parametrize(
    ("factor", "here", "there"),
    [("arrivals", "4 at once", "all at once"), ("prefix_working_set_tokens", 1, 2)],
)
def test_what_run_json_repeats_of_a_plan_is_held_against_each_other(
    tmp_path: Path, factor: str, here: object, there: object
) -> None:
    one = draw_round(tmp_path / "one", "no_reuse", TIMES, fixed={factor: here})
    other = draw_round(tmp_path / "two", "tiered", TIMES, fixed={factor: there})
    silent = draw_round(tmp_path / "three", "gpu_prefix", TIMES, fixed={factor: None})
    assert asked(one, other, silent) == f"{factor} differs: {here} in one; {there} in two"
    assert asked(one, silent) == ""


def test_a_parallel_size_that_no_engine_says_is_not_1(tmp_path: Path) -> None:
    engine = {"product": "x", "model": "tiny"}
    run = draw_round(tmp_path / "r", "no_reuse", TIMES, engines={"e": engine})
    assert asked(run, plan=Plan(Fixed(gpus=2))) == ""
    huge = {"e": engine | {"tensor_parallel_size": "9" * 5000}}
    assert asked(draw_round(tmp_path / "h", "no_reuse", TIMES, engines=huge), plan=Plan(Fixed(gpus=2))) == ""
    two = {"e": engine | {"tensor_parallel_size": "2", "data_parallel_size": None}}
    assert asked(draw_round(tmp_path / "t", "no_reuse", TIMES, engines=two), plan=Plan(Fixed(gpus=2))) == ""


def test_what_may_differ_is_not_held_against_the_plan_either(tmp_path: Path) -> None:
    run = draw_round(tmp_path / "r", "no_reuse", TIMES)
    for fixed in (Fixed(model="big"), Fixed(output_tokens=9), Fixed(prompt_tokens=0)):
        (name,) = [
            word for word in ("model", "output_tokens", "prompt_tokens") if getattr(fixed, word) is not None
        ]
        assert asked(run, plan=Plan(fixed)).startswith(f"{name} differs: ")
        assert asked(run, plan=Plan(msgspec.structs.replace(fixed, may_differ=(name,)))) == ""


#  request w   |----|          measured phase from 500
#    waits       |------------------ ...
def test_what_waits_in_a_queue_to_be_stored_is_not_over(tmp_path: Path) -> None:
    def run(name: str, left: int | None, **more: int) -> Run:
        mine = {"engine": "e", "process": "p"}
        return write_run(tmp_path / name, {"group": "tiered", "measured_from_ns": START + 500}, span=[
            {"op": "request", "request_id": "w", "start_ns": START, "end_ns": START + 100, **mine},
            {"op": None, "name": "lmcache_lazy_queue", "request_id": "w", "start_ns": START + 50,
             "end_ns": left, "tokens": 64, "attributes": [("range", "0-64")], **mine},
            {"op": "store", "request_id": "w", "start_ns": START + 60, "end_ns": START + 70,
             "tier_from": "gpu", "tier_to": "host", "outcome": "ok", **mine, **more},
            {"op": "request", "request_id": "m", "start_ns": START + 600, "end_ns": START + 700, **mine},
        ])  # fmt: skip

    assert "in never (tiered) 1 of 2 stores of the warm-up were not over" in asked(run("never", None))
    assert "in late (tiered) 1 of 2 stores" in asked(run("late", START + 501))
    assert asked(run("left", START + 60)) == ""
    once = run("once", START + 501, queued_ns=START + 50, end_ns=START + 600)
    assert "in once (tiered) 1 of 1 store of" in asked(once)


def test_a_warm_up_that_stored_nothing_is_not_warm(tmp_path: Path) -> None:
    later = START + 500 * MS
    run = draw_round(tmp_path / "r", "tiered", TIMES, measured_from_ns=later)
    assert asked(run) == ("the tier was not warm: in r (tiered) 1 request of the warm-up left no store")
    assert asked(draw_round(tmp_path / "c", "gpu_prefix", TIMES, measured_from_ns=later)) == ""
    assert asked(draw_round(tmp_path / "n", "tiered", TIMES, measured_from_ns=START)) == "", "no warm-up"
    load = {"op": "load", "request_id": "w", "start_ns": START, "end_ns": START + 1, "tier_from": "host",
            "tier_to": "gpu", "outcome": "ok", "engine": "e", "process": "p"}  # fmt: skip
    request = {"op": "request", "request_id": "w", "start_ns": START, "engine": "e", "process": "p"}
    full = {"group": "tiered", "measured_from_ns": later}
    assert asked(write_run(tmp_path / "full", full, span=[request, load])) == "", "the tier was full before"


def test_the_chain_of_bases_holds_where_no_run_of_the_middle_is_given(tmp_path: Path) -> None:
    told = {"stores": 9, "unfinished": 2, "late_ns": None, "open": 2}
    chain = {"tiered": None, "mine": "tiered", "yours": "mine"}
    run = draw_round(tmp_path / "s", "yours", TIMES, warm=told, base="mine", groups=chain)
    assert "in s (yours) 2 of 9 stores" in asked(run)
