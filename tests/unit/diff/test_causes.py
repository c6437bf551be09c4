from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from kvtrace.diff import measuring
from kvtrace.diff.causes import Sided, cause, cause_of_tail, classes, traits
from kvtrace.diff.causes.requests import carriers
from kvtrace.diff.gates import own_unit
from tests.rows import write_run
from tests.unit.diff.drawn import START, draw_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.run import Run

MS = 1_000_000


def loaded(
    path: Path, load_ms: Sequence[float], *, prompts: Sequence[int | None] | None = None, **more: str
) -> Run:
    """A request a load, one after another:  |-- load disk->host --|-- step 10 ms --| first token and end."""
    span = []
    for number, each in enumerate(load_ms):
        name, start = f"{path.name}-r{number}", START + number * 1000 * MS
        done = start + round(each * MS)
        whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
        span += [
            {**whose, "op": "request", "request_id": name, "start_ns": start, "end_ns": done + 10 * MS,
             "first_token_ns": done + 10 * MS, "status": "ok", "workload_key": f"w{number}",
             "prompt_tokens": prompts[number] if prompts else None, **more},
            {**whose, "op": "load", "request_id": name, "start_ns": start, "end_ns": done,
             "tier_from": "disk", "tier_to": "host", "transfer_id": f"t{name}", "outcome": "ok"},
            {**whose, "op": "step", "start_ns": done, "end_ns": done + 10 * MS,
             "members": [{"request_id": name, "phase": "prefill", "scheduled_tokens": 8,
                          "output_tokens": 1, "computed_before": 0}]},
        ]  # fmt: skip
    return write_run(path, span=span)


def pair(folder: Path, base: Sequence[float], head: Sequence[float], **more: object) -> tuple[Run, Run]:
    """A run a side."""
    return loaded(folder / "a", base, **more), loaded(folder / "b", head, **more)  # type: ignore[arg-type]


def told(base: Run, head: Run, metric: str = "ttft_ns") -> str | None:
    values = [measuring.values(run, metric) for run in (base, head)]
    return cause(metric, own_unit(metric), Sided([base], [head], values))


def frame(*values: float) -> pl.DataFrame:
    """Requests w0, w1, w2 ... with these values."""
    return pl.DataFrame({"key": [f"w{n}" for n in range(len(values))], "value": [float(v) for v in values]})


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Three requests whose load takes 5 ms in base and 8 ms in head."""
    return pair(tmp_path_factory.mktemp("slower"), [5, 5, 5], [8, 8, 8])


def test_a_regression_names_how_far_it_went_the_class_of_time_and_the_requests(
    slower: tuple[Run, Run],
) -> None:
    assert told(*slower) == (
        "+3 ms mean and +3 ms p90, +3 ms of the mean disk->host load exposed; all 3 requests carry it"
    )
    exposed = told(*slower, metric="exposed_transfer_ns")
    assert exposed == told(*slower)


def test_the_requests_that_carry_it_and_what_they_have_in_common_are_named(tmp_path: Path) -> None:
    # two hundred tokens a request more than the one before: those over 3,000 wait 40 ms more
    prompts = [200 * (k + 1) for k in range(20)]
    runs = pair(tmp_path, [5] * 20, [5 + 40 * (prompt > 3000) for prompt in prompts], prompts=prompts)
    assert told(*runs) == (
        "+10 ms mean and +40 ms p90, +10 ms of the mean disk->host load exposed; "
        "5 of 20 requests carry it, all with prompts over 3,000 tokens"
    )
    slow = pl.Series([f"w{n}" for n in range(15, 20)])
    values = [measuring.values(run, "ttft_ns") for run in runs]
    assert cause_of_tail("ttft_ns", slow, Sided(runs[:1], runs[1:], values)) == (
        "these +40 ms mean, +40 ms of the mean disk->host load exposed; "
        "5 of 20 requests carry it, all with prompts over 3,000 tokens"
    )


def test_a_count_of_tokens_has_requests_and_no_class_of_time(slower: tuple[Run, Run]) -> None:
    sided = Sided(slower[:1], slower[1:], [frame(0, 1, 1), frame(6, 1, 1)])
    said = cause("recomputed_tokens", "tokens", sided)
    assert said == "+2 tokens mean and +4 tokens p90; 1 of 3 requests carries it"


def test_without_a_partition_that_is_exact_no_class_is_named(tmp_path: Path) -> None:
    runs = [draw_run(tmp_path / name, [ns, ns]) for name, ns in (("a", 1), ("b", 9))]
    assert told(*runs) == "+8 ns mean and +8 ns p90; all 2 requests carry it"


def test_a_request_with_an_upper_bound_in_one_run_is_no_part_of_the_class(tmp_path: Path) -> None:
    base, head = pair(tmp_path, [5, 5, 5], [8, 8, 95])
    lost = {"source": "s", "cause": "dropped", "count": 1, "process": "p"}
    lost |= {"from_ns": START + 2000 * MS, "to_ns": START + 2001 * MS}
    span = head.connection().sql("SELECT * FROM span").pl().to_dicts()
    said = told(base, write_run(tmp_path / "lossy", span=span, loss=[lost]))
    assert said is not None
    assert said.startswith("+32 ms mean and ")
    assert (
        "+3 ms of the mean disk->host load exposed (over 2 requests whose time is known to the end)" in said
    )


def test_requests_whose_partition_is_unknown_carry_the_change_like_any_other(tmp_path: Path) -> None:
    base, head = pair(tmp_path, [5] * 40, [8] * 40)
    lost = {"source": "s", "cause": "dropped", "count": 1, "process": "p"}
    lost |= {"from_ns": START + 10_000 * MS, "to_ns": START + 40_000 * MS}
    span = head.connection().sql("SELECT * FROM span").pl().to_dicts()
    assert told(base, write_run(tmp_path / "lossy", span=span, loss=[lost])) == (
        "+3 ms mean and +3 ms p90, +3 ms of the mean disk->host load exposed "
        "(over 10 requests whose time is known to the end); all 40 requests carry it"
    )


def test_who_carries_a_change_is_told_by_the_metric_and_not_by_its_greatest_class(tmp_path: Path) -> None:
    # six of ten wait 10 ms longer for a load, four 10 ms longer in the queue
    base = held(tmp_path / "a", [MS] * 10, [MS] * 10)
    head = held(tmp_path / "b", [MS] * 6 + [11 * MS] * 4, [11 * MS] * 6 + [MS] * 4)
    assert told(base, head, "exposed_transfer_ns") == (
        "+10 ms mean and +10 ms p90, +6 ms of the mean disk->host load exposed; all 10 requests carry it"
    )


def test_unpaired_runs_name_the_class_and_no_requests(slower: tuple[Run, Run], tmp_path: Path) -> None:
    query = "SELECT * REPLACE (NULL AS workload_key) FROM span"
    nameless = [
        write_run(tmp_path / run.path.name, span=run.connection().sql(query).pl().to_dicts())
        for run in slower
    ]
    said = told(*nameless)
    assert said == "+3 ms mean and +3 ms p90, +3 ms of the mean disk->host load exposed"


def held(path: Path, hold_ns: Sequence[int], load_ns: Sequence[int]) -> Run:
    """A request a hold:  |-- queue: a hold keeps blocks --|-- load disk->host --|-- step 10 ms --|."""
    span = []
    for number, (queued, each) in enumerate(zip(hold_ns, load_ns, strict=True)):
        name, start = f"{path.name}-r{number}", START + number * 100_000 * MS
        loading, done = start + queued, start + queued + each
        whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
        span += [
            {**whose, "op": "request", "request_id": name, "start_ns": start, "end_ns": done + 10 * MS,
             "first_token_ns": done + 10 * MS, "status": "ok", "workload_key": f"w{number}"},
            {**whose, "op": "queue", "reason": "capacity", "request_id": name, "start_ns": start,
             "end_ns": loading, "blocks": 10, "free_blocks": 0},
            {**whose, "op": "hold", "reason": "store", "request_id": "before", "start_ns": start,
             "end_ns": loading, "blocks": 20},
            {**whose, "op": "load", "request_id": name, "start_ns": loading, "end_ns": done,
             "tier_from": "disk", "tier_to": "host", "transfer_id": f"t{name}", "outcome": "ok"},
            {**whose, "op": "step", "start_ns": done, "end_ns": done + 10 * MS,
             "members": [{"request_id": name, "phase": "prefill", "scheduled_tokens": 8,
                          "output_tokens": 1, "computed_before": 0}]},
        ]  # fmt: skip
    return write_run(path, span=span)


def test_time_behind_held_blocks_is_a_class_of_exposed_transfer(tmp_path: Path) -> None:
    base = held(tmp_path / "a", [MS] * 20, [MS] * 20)
    head = held(tmp_path / "b", [13_800 * MS] + [MS] * 19, [MS] * 10 + [MS + 1000] * 10)
    assert told(base, head, "exposed_transfer_ns") == (
        "+690 ms mean and +1 µs p90, +690 ms of the mean queue: held GPU blocks; 1 of 20 requests carries it"
    )


def test_who_waits_behind_a_hold_of_unknown_size_is_no_part_of_the_class(tmp_path: Path) -> None:
    base = held(tmp_path / "a", [MS] * 4, [MS] * 4)
    head = held(tmp_path / "b", [3 * MS] * 4, [MS, MS, MS, 90 * MS])
    span = head.connection().sql("SELECT * FROM span").pl().to_dicts()
    max((row for row in span if row["op"] == "hold"), key=lambda row: row["start_ns"])["blocks"] = None
    grown = classes.grown("e2e", [base], [write_run(tmp_path / "unsized", span=span)], None)
    assert grown is not None
    assert (grown.words, grown.mean_ns, grown.requests) == ("queue: held GPU blocks", 2 * MS, 3)


def test_a_class_that_is_a_small_part_of_the_change_is_not_named(tmp_path: Path) -> None:
    # of 10 ms that each request waits longer 4 are of each of two classes, and 2 of a third
    whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
    runs = []
    for name, waits in (("a", (1, 1, 1)), ("b", (5, 5, 3))):
        marks = [START, *(START + sum(waits[: n + 1]) * MS for n in range(3))]
        member = {"request_id": name, "phase": "prefill", "scheduled_tokens": 8, "output_tokens": 1}
        end = marks[3] + MS
        span = [
            {**whose, "op": "request", "request_id": name, "start_ns": START, "end_ns": end, "status": "ok"}
            | {"first_token_ns": end, "workload_key": "w"},
            *(
                {**whose, "op": op, "request_id": name, "start_ns": marks[n], "end_ns": marks[n + 1]}
                for n, op in enumerate(("lookup", "load", "queue"))
            ),
            {**whose, "op": "step", "start_ns": marks[3], "end_ns": end, "members": [member]},
        ]
        runs.append(write_run(tmp_path / name, span=span))
    assert told(*runs) == "+10 ms mean and +10 ms p90; 1 request carries it"
    exposed = told(*runs, metric="exposed_transfer_ns")  # half of 8 ms
    assert exposed is not None
    assert exposed.startswith("+8 ms mean and +8 ms p90, +4 ms of the mean ")


def test_what_shrank_is_no_cause(slower: tuple[Run, Run]) -> None:
    assert classes.grown("ttft", slower[1:], slower[:1], None) is None


def test_a_gate_that_fell_and_should_not_names_the_requests_that_fell(slower: tuple[Run, Run]) -> None:
    sided = Sided(slower[:1], slower[1:], [frame(9, 0, 0), frame(3, 0, 0)])
    said = cause("ttft_ns", "ns", sided, higher_is_better=True)
    assert said == "-2 ns mean and -4.80 ns p90; 1 of 3 requests carries it"


def test_a_number_of_the_whole_run_has_no_requests(slower: tuple[Run, Run]) -> None:
    number = pl.DataFrame({"key": [None], "value": [1.0]}, schema_overrides={"key": pl.String})
    assert cause("slow", "count", Sided(slower[:1], slower[1:], [number, number])) is None


def table(**columns: Sequence[object]) -> pl.DataFrame:
    """Traits with all columns; those not given were not observed."""
    size = len(next(iter(columns.values())))
    kinds = {"prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "model": pl.String, "engine": pl.String}
    return pl.DataFrame(
        {name: columns.get(name, [None] * size) for name in (*kinds, "identity_id")},
        schema={**kinds, "identity_id": pl.String},
    )


THESE = pl.Series([True] * 10 + [False] * 30)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("prompt_tokens", [9000] * 10 + [7900] * 30, "all with prompts over 8,000 tokens"),
        ("prompt_tokens", [10] * 10 + [7900] * 30, "all with prompts of at most 1,000 tokens"),
        ("output_tokens", [90] * 10 + [13] * 30, "all with more than 20 tokens put out"),
        ("engine", ["e1"] * 10 + ["e2"] * 30, "all of engine e1"),
        ("model", ["a\n"] * 10 + ["b"] * 30, "all of model a\\u000a"),
        ("engine", ["e1"] * 9 + ["e2"] * 31, "9 of them of engine e1"),
        ("engine", ["e1"] * 12 + ["e2"] * 28, "all of engine e1, as 2 of the others"),
        ("engine", ["e1"] * 8 + ["e2"] * 32, None),  # only 8 of 10
        ("engine", ["e1"] * 14 + ["e2"] * 26, None),  # as 4 of 30
        ("engine", [None] * 10 + ["e2"] * 30, None),
        ("engine", ["e1"] * 10 + [None] * 30, None),  # others may be the same
        ("prompt_tokens", [9000] * 10 + [None] * 30, None),
        (
            "prompt_tokens",
            [9000] * 10 + [10] * 27 + [None] * 3,
            "all with prompts over 1,000 tokens, as 3 of the others",
        ),
        ("prompt_tokens", [9000] * 10 + [10] * 26 + [None] * 4, None),
        ("prompt_tokens", [None] * 2 + [9000] * 8 + [10] * 30, None),
        ("prompt_tokens", [8000] * 40, None),
    ],
)
def test_a_trait_is_named_when_these_have_it_and_the_others_do_not(
    column: str, values: list[object], said: str | None
) -> None:
    assert traits.common(table(**{column: values}), THESE) == said


@pytest.mark.parametrize(
    ("of_these", "of_others", "said"),
    [
        (2**53 + 4, 2**53 + 3, "all with prompts over 9,007,199,254,740,995 tokens"),
        (2**62 + 2, 2**62 + 1, "all with prompts over 4,611,686,018,427,387,905 tokens"),
        (2**63 - 1, 0, "all with prompts over 0 tokens"),
        (10**18, 10**18 - 1, "all with prompts over 999,999,999,999,999,999 tokens"),
        (1000, 999, "all with prompts over 999 tokens"),
        (1001, 999, "all with prompts over 1,000 tokens"),
    ],
)
def test_a_bound_between_prompts_of_any_size_is_exact(of_these: int, of_others: int, said: str) -> None:
    assert traits.common(table(prompt_tokens=[of_these] * 10 + [of_others] * 30), THESE) == said


@pytest.mark.parametrize(("number", "said"), [(1, None), (2, None), (3, "all with prompts over 370 tokens")])
def test_a_bound_that_parts_one_or_two_requests_from_forty_is_chance(number: int, said: str | None) -> None:
    these = pl.Series([k < number for k in range(40)])
    assert traits.common(table(prompt_tokens=list(range(400, 0, -10))), these) == said


def test_all_requests_have_nothing_that_others_have_not() -> None:
    assert traits.common(table(engine=["e"] * 4), pl.Series([True] * 4)) is None


def test_requests_that_move_no_farther_than_noise_carry_nothing() -> None:
    assert carriers(pl.Series([3.0, 3.0, 3.0])).to_list() == [True] * 3  # type: ignore[union-attr]
    assert carriers(pl.Series([40.0, 0.1, -0.1, 0.2])).to_list() == [True, False, False, False]  # type: ignore[union-attr]
    assert carriers(pl.Series([5.0, 5.0, -4.9, -4.9, 6.0, 5.2])) is not None
    assert carriers(pl.Series([-1.0, 0.5])) is None
    rng = np.random.default_rng(1)
    assert carriers(pl.Series(rng.normal(0.05, 1.0, 10_000))) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_ends_of_noise_carry_no_small_shift_of_all_requests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert carriers(pl.Series(rng.normal(0.02, 1.0, 20_000))) is None
    sides = [rng.lognormal(0, 0.8, (5000, 5)).mean(axis=1) for _ in range(2)]
    assert carriers(pl.Series(100 * (1.03 * sides[1] - sides[0]))) is None


def test_what_others_shrank_by_as_far_is_taken_off_what_carries() -> None:
    most = [-1.0] * 300 + [1.0] * 320
    assert carriers(pl.Series([*most, *[9.0] * 3])).sum() == 3  # type: ignore[union-attr]
    assert carriers(pl.Series([*most, *[9.0] * 3, *[-9.0] * 2])) is None  # 27 - 18 of 29


def planted(rng: np.random.Generator, chosen: np.ndarray, prompts: np.ndarray) -> str | None:
    moved = rng.normal(0, 3, prompts.size) + np.where(chosen, rng.normal(40, 5, prompts.size), 0)
    found = carriers(pl.Series(moved))
    if found is None:
        return None
    return traits.common(
        table(prompt_tokens=prompts.tolist(), output_tokens=rng.integers(1, 99, prompts.size).tolist()), found
    )


@pytest.mark.parametrize("seed", range(20))
def test_drawn_a_regression_of_long_prompts_is_named_and_one_without_a_trait_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = rng.choice([512, 1500, 4000, 7500, 8500, 12_000], 1000)
    said = planted(rng, prompts > 8000, prompts)
    assert said is not None
    assert "with prompts over 8,000 tokens" in said
    assert planted(rng, rng.random(1000) < 0.3, prompts) is None
