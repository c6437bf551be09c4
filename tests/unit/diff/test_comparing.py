from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.diff import measuring
from kvtrace.diff.comparing import Compared, compare
from kvtrace.diff.factors import differing
from kvtrace.diff.gates import Gate, Gates, Tail, default_gates
from kvtrace.errors import InputError, QueryError, UsageError
from kvtrace.run import Run
from tests.rows import write_run
from tests.unit.diff.drawn import START, draw_run, draw_runs

if TYPE_CHECKING:
    from kvtrace.diff.findings import Finding

    Drawn = dict[str, list[Run]]

TTFT = Gates((Gate("ttft_ns", "relative", 0.02),))
NEAR = (1.0, 1.001, 0.999)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """Three runs a word; `same` is drawn as `base`, `slow` takes a tenth longer, `lossy` lost records."""
    folder = tmp_path_factory.mktemp("drawn")
    lost, twice = ([{"source": "s", "cause": cause, "count": 3}] for cause in ("dropped", "duplicate"))
    return {
        "base": draw_runs(folder, "base", NEAR),
        "same": draw_runs(folder, "same", NEAR),
        "slow": draw_runs(folder, "slow", [1.1 * near for near in NEAR]),
        "lossy": draw_runs(folder, "lossy", NEAR, loss=lost),
        "twice": draw_runs(folder, "twice", NEAR, loss=twice),
    }


def of(found: Compared, metric: str) -> Finding:
    return next(finding for finding in found.findings if finding.metric == metric)


def test_a_slower_head_fails_and_a_faster_one_passes(drawn: Drawn) -> None:
    base, slow = drawn["base"], drawn["slow"]
    found = compare(base, slow, TTFT)
    finding = of(found, "ttft_ns")
    assert found.code == 1
    assert (finding.verdict, finding.paired, finding.runs) == ("worse", True, "3+3")
    assert finding.change == pytest.approx(0.1, abs=1e-3)
    assert finding.because.endswith("; +1.95 ms mean and +2.71 ms p90; all 20 requests carry it")
    faster = compare(slow, base, TTFT)
    assert (of(faster, "ttft_ns").verdict, faster.code) == ("better", 0)


def test_default_gates_that_nobody_observed_are_neutral_and_named_ones_are_not(drawn: Drawn) -> None:
    base, head = drawn["base"], drawn["same"]
    gates = (*TTFT.gates, Gate("exposed_transfer_ns", "ns", 1e6))  # no step was recorded
    found = compare(base, head, Gates(gates, named=False))
    assert (of(found, "exposed_transfer_ns").verdict, found.code) == (None, 0)
    assert compare(base, head, TTFT).code == 0
    assert compare(base, head, Gates(gates)).code == 4


def test_runs_that_are_the_same_on_both_sides_are_the_same_whatever_their_number(drawn: Drawn) -> None:
    run = drawn["lossy"][0]
    found = compare([run], [run], default_gates())
    assert found.code == 0
    assert {finding.verdict for finding in found.findings} <= {"same", None}
    assert {finding.change for finding in found.findings} <= {0.0, None}
    assert of(found, "losses").verdict == "same"


def test_too_few_runs_are_inconclusive_and_name_the_runs_needed(drawn: Drawn) -> None:
    found = compare(drawn["base"][:2], drawn["slow"][:2], TTFT)
    assert found.code == 4
    assert "3+3" in of(found, "ttft_ns").because


def test_one_run_a_side_is_judged_beside_noise_runs(drawn: Drawn) -> None:
    base, head, noise = drawn["base"][:1], drawn["slow"][:1], drawn["same"]
    assert compare(base, head, TTFT).code == 4
    assert compare(base, head, TTFT, noise).code == 1


def test_a_request_that_failed_in_the_head_alone_is_an_exact_gates_regression(tmp_path: Path) -> None:
    base = [draw_run(tmp_path / f"a{n}", [1000, 2000, 3000]) for n in range(3)]
    head = [draw_run(tmp_path / f"b{n}", [1000, 2000, None]) for n in range(3)]
    found = compare(base, head, Gates((), exact=("failed",)))
    assert found.code == 1
    assert (of(found, "failed").base, of(found, "failed").head) == (0.0, 1.0)
    assert compare(head, base, Gates((), exact=("failed",))).code == 0


def test_a_run_with_losses_never_passes_an_exact_gate(drawn: Drawn) -> None:
    base, lossy, twice = drawn["base"], drawn["lossy"], drawn["twice"]
    assert compare(base, lossy, Gates((), exact=("failed",))).code == 4
    assert compare(lossy, base, Gates((), exact=("losses",))).code == 4
    assert compare(base, lossy, Gates((), exact=("losses",))).code == 1
    assert compare(base, twice, Gates((), exact=("failed", "losses"))).code == 0


def test_a_comparison_in_which_all_requests_failed_is_no_pass(tmp_path: Path) -> None:
    base, head = ([draw_run(tmp_path / name, [None, None])] for name in "ab")
    assert compare(base, head, TTFT).code == 4
    found = compare(base, head, Gates(TTFT.gates, exact=("failed",), named=False))
    assert ([finding.verdict for finding in found.findings], found.code) == ([None, "same"], 4)


def test_a_few_requests_much_slower_fail_the_tail_alone(tmp_path: Path) -> None:
    even = [10_000_000 + k for k in range(200)]
    odd = [3 * value if k < 20 else value for k, value in enumerate(even)]
    base = [draw_run(tmp_path / f"a{n}", even) for n in range(2)]
    head = [draw_run(tmp_path / f"b{n}", odd) for n in range(2)]
    found = compare(base, head, Gates((), (Tail("ttft_ns"),)))
    assert (found.code, of(found, "ttft_ns:tail").head) == (1, 40.0)
    assert of(found, "ttft_ns:tail").because.endswith("; these +20.0 ms mean; 20 of 200 requests carry it")


def test_without_ids_from_the_client_runs_are_unpaired_and_so_is_the_tail(tmp_path: Path) -> None:
    base, head = (draw_runs(tmp_path, side, [1], keyed=False) for side in "ab")
    found = compare(base, head, Gates(TTFT.gates, (Tail("ttft_ns"),)))
    assert of(found, "ttft_ns").paired is False
    assert of(found, "ttft_ns:tail").verdict == "inconclusive"
    assert "unpaired" in of(found, "ttft_ns:tail").because


def test_a_users_own_number_is_a_gate(drawn: Drawn, tmp_path: Path) -> None:
    base, head = drawn["base"], draw_runs(tmp_path, "b", NEAR, requests=25)
    gate = Gate("requests", "count", 0.0, query="SELECT count(*) FROM request")
    found = compare(base, head, Gates((gate,)))
    assert (of(found, "requests").change, found.code) == (5.0, 1)
    for query in ("SELECT 1, 2", "SELECT 'x'", "SELECT 1 FROM range(2)", "DROP VIEW request"):
        with pytest.raises(QueryError):
            compare(base[:1], head[:1], Gates((Gate("n", "count", 0.0, query=query),)))


def test_a_column_that_is_not_there_names_the_nearest(drawn: Drawn) -> None:
    with pytest.raises(UsageError, match=r"ledger.ttft: .*did you mean ttft_ns\?"):
        measuring.values(drawn["base"][0], "ledger.ttft")


def test_a_run_without_requests_or_given_twice_is_refused(drawn: Drawn, tmp_path: Path) -> None:
    base, head = drawn["base"][:2], drawn["slow"][:1]
    with pytest.raises(InputError, match="holds no request"):
        compare(base, [write_run(tmp_path / "none")], TTFT)
    with pytest.raises(UsageError, match="is given twice"):
        compare([base[0], base[0]], head, TTFT)
    with pytest.raises(UsageError, match="is given twice"):
        compare(base, [base[0]], TTFT)
    with pytest.raises(UsageError, match="both sides"):
        compare(base, [], TTFT)


def test_a_negative_time_is_an_error_that_names_the_request(tmp_path: Path) -> None:
    base, head = draw_run(tmp_path / "a", [5, 5]), draw_run(tmp_path / "b", [5, -5])
    with pytest.raises(InputError, match=r"ttft_ns: run 2: -5.0 \(request req-1\)"):
        compare([base], [head], TTFT)


def of_meta(name: str, meta: dict[str, object]) -> Run:
    """A run of which only run.json is read."""
    return Run(Path(name), meta, Path(name))


def test_what_may_differ_or_is_not_said_is_no_obstacle() -> None:
    base = of_meta("a", {"engines": {"e": {"product": "vllm", "block_size": "16", "version": "1"}}})
    newer = of_meta("b", {"engines": {"x": {"product": "vllm", "block_size": "16", "version": "2"}}})
    assert differing([base], [newer]) == []
    assert differing([base], [of_meta("c", {"engines": {"vllm": "0.32.0"}})]) == []


@pytest.mark.parametrize(
    ("product", "factor", "one", "other"),
    [
        ("vllm", "block_size", "16", "32"),
        ("vllm", "model", "tiny-llama", "tiny-qwen"),
        ("lmcache", "chunk_size", "256", "64"),
        ("vllm", "kv_cache_dtype", "auto", "fp8"),
        ("vllm", "tensor_parallel_size", "1", "2"),
    ],
)
def test_what_makes_the_work_another_is_named(product: str, factor: str, one: str, other: str) -> None:
    base, head = (
        of_meta(name, {"engines": {"e": {"product": product, factor: value}}})
        for name, value in (("a0", one), ("d0", other))
    )
    assert differing([base], [head]) == [f"{product}.{factor} differs: {one} in a0; {other} in d0"]


@pytest.mark.parametrize("factor", ["slo", "workload"])
def test_another_slo_or_workload_is_named(factor: str) -> None:
    base, head = (of_meta(name, {factor: {"ttft_ns": number}}) for number, name in enumerate("ab"))
    assert differing([base], [head]) == [f"{factor} differs: {{'ttft_ns': 0}} in a; {{'ttft_ns': 1}} in b"]


def test_copies_of_runs_move_by_nothing(drawn: Drawn) -> None:
    found = of(compare(drawn["base"], drawn["same"], TTFT), "ttft_ns")
    assert (found.verdict, found.change) == ("same", 0.0)


def test_a_single_request_a_run_is_compared_like_any_other(tmp_path: Path) -> None:
    gates = Gates(TTFT.gates, (Tail("ttft_ns"),))
    base, head, *noise = (
        [draw_run(tmp_path / f"r{ns}", [ns])] for ns in (10**7, 2 * 10**7, 10**7 + 1, 10**7 + 2)
    )
    found = compare(base, head, gates, [run for (run,) in noise])
    assert (of(found, "ttft_ns").verdict, found.code) == ("worse", 1)
    assert of(found, "ttft_ns").because.endswith("; +10 ms mean and +10 ms p90; 1 request carries it")
    assert of(found, "ttft_ns:tail").because.endswith(
        "no fewer than 390 requests a run can be called the same"
    )
    assert compare(base, head, gates).code == 4


def test_a_workload_key_twice_in_a_run_leaves_all_unpaired_and_says_so(drawn: Drawn, tmp_path: Path) -> None:
    span = drawn["slow"][0].connection().sql("SELECT * REPLACE ('w' AS workload_key) FROM span")
    twice = write_run(tmp_path / "twice", span=span.pl().to_dicts())
    found = of(compare(drawn["base"], [*drawn["slow"][1:], twice], TTFT), "ttft_ns")
    assert found.paired is False
    assert "unpaired (no request is in every run, or one is twice in a run)" in found.because


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_side_alone_observed_is_no_pass_even_of_a_default_gate(
    drawn: Drawn, tmp_path: Path, *, turned: bool
) -> None:
    blind, seeing = [draw_run(tmp_path / "b0", [None] * 20)], drawn["base"][:2]
    sides = (blind, seeing) if turned else (seeing, blind)
    gate = Gate("requests", "count", 0.0, query="SELECT count(*) FROM request")
    found = compare(*sides, Gates((*TTFT.gates, gate), (Tail("ttft_ns"),), named=False))
    assert found.code == 4
    for metric in ("ttft_ns", "ttft_ns:tail"):
        finding = of(found, metric)
        assert finding.verdict == "inconclusive"
        assert finding.because == "observed in 2 runs and not in b0"


def test_a_count_that_one_side_alone_observed_is_no_pass(tmp_path: Path) -> None:
    span = [{"op": "request", "request_id": "a", "start_ns": START, "end_ns": START + 9, "evidence": "shim"}]
    told, untold = (
        write_run(tmp_path / name, span=[{**span[0], "status": status}])
        for name, status in (("a", "ok"), ("b", None))
    )
    found = compare([told], [untold], Gates((), exact=("failed",), named=False))
    assert (of(found, "failed").because, found.code) == ("observed in 1 run and not in b", 4)


def test_zeros_alone_have_no_ratio_and_are_no_pass(drawn: Drawn) -> None:
    gate = Gate("none", "relative", 0.02, query="SELECT 0")
    found = compare(drawn["base"], drawn["same"], Gates((gate,), named=False))
    assert (found.code, "have no ratio" in of(found, "none").because) == (4, True)


def test_a_tail_of_zeros_is_not_told_to_take_a_unit_that_no_tail_has(tmp_path: Path) -> None:
    runs = [draw_runs(tmp_path, name, [0.0]) for name in "ab"]
    finding = of(compare(*runs, Gates((), (Tail("ttft_ns"),))), "ttft_ns:tail")
    assert finding.because == (
        "all values of some run are 0, and have no ratio, which is what a tail counts; "
        'gate the metric with [[gate]] and unit = "absolute"'
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_is_an_error_that_names_the_gate(drawn: Drawn, value: str) -> None:
    gate = Gate("own", "count", 0.0, query=f"SELECT '{value}'::DOUBLE")
    with pytest.raises(InputError, match=f"own: run 1: {value} cannot be compared"):
        compare(drawn["base"][:1], drawn["slow"][:1], Gates((gate,)))


def test_the_tail_of_one_run_a_side_is_judged_beside_noise_runs(tmp_path: Path) -> None:
    even = [10_000_000 + k for k in range(200)]
    base, *noise = [draw_run(tmp_path / f"a{n}", even) for n in range(3)]
    head = draw_run(tmp_path / "b", [3 * value if k < 20 else value for k, value in enumerate(even)])
    gates = Gates((), (Tail("ttft_ns"),))
    assert compare([base], [head], gates).code == 4
    assert compare([base], [head], gates, noise).code == 1


def test_what_the_noise_runs_alone_observed_of_an_exact_gate_says_nothing(tmp_path: Path) -> None:
    """They are no side of an exact gate: base and head did not observe it, so that it is neutral."""
    base, head, *noise = draw_runs(tmp_path, "r", [1.0] * 4)
    silent = []
    for run in (base, head):
        query = "SELECT * REPLACE (NULL AS status) FROM span"
        span = run.connection().sql(query).pl().to_dicts()
        silent.append(write_run(tmp_path / f"silent-{run.path.name}", span=span))
    gates = Gates((), exact=("failed",), named=False)
    found = compare(silent[:1], silent[1:], gates, noise)
    assert (of(found, "failed").verdict, found.code) == (None, 0)
