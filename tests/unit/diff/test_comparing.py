from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.diff import measuring
from kvtrace.diff.comparing import Compared, compare
from kvtrace.diff.factors import differing
from kvtrace.diff.gates import Gate, Gates, Tail, default_gates
from kvtrace.errors import InputError, QueryError, UsageError
from tests.rows import write_run
from tests.unit.diff.drawn import draw_run, draw_runs

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.diff.findings import Finding
    from kvtrace.run import Run

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
    neutral = Gates((*TTFT.gates, Gate("recomputed_tokens", "tokens", 1.0)), named=False)
    found = compare(base, head, neutral)
    assert (of(found, "recomputed_tokens").verdict, found.code) == (None, 0)
    named = Gates((Gate("ttft_ns", "relative", 0.02), Gate("recomputed_tokens", "tokens", 1.0)))
    assert compare(base, head, TTFT).code == 0
    assert compare(base, head, named).code == 4


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
    base = [draw_run(tmp_path / f"a{n}", [None, None]) for n in range(3)]
    head = [draw_run(tmp_path / f"b{n}", [None, None]) for n in range(3)]
    assert compare(base, head, TTFT).code == 4
    assert compare(base, head, Gates(TTFT.gates, exact=("failed",), named=False)).code == 4


def test_a_few_requests_much_slower_fail_the_tail_alone(tmp_path: Path) -> None:
    even = [10_000_000 + k for k in range(1000)]
    odd = [3 * value if k < 20 else value for k, value in enumerate(even)]
    base = [draw_run(tmp_path / f"a{n}", even) for n in range(2)]
    head = [draw_run(tmp_path / f"b{n}", odd) for n in range(2)]
    found = compare(base, head, Gates((), (Tail("ttft_ns"),)))
    assert (found.code, of(found, "ttft_ns:tail").head) == (1, 40.0)
    assert of(found, "ttft_ns:tail").because.endswith("; these +20.0 ms mean; 20 of 1,000 requests carry it")


def test_without_ids_from_the_client_runs_are_unpaired_and_so_is_the_tail(tmp_path: Path) -> None:
    base, head = (draw_runs(tmp_path, side, NEAR, keyed=False) for side in "ab")
    found = compare(base, head, Gates(TTFT.gates, (Tail("ttft_ns"),)))
    assert of(found, "ttft_ns").paired is False
    assert "unpaired" in of(found, "ttft_ns").because
    assert of(found, "ttft_ns:tail").verdict == "inconclusive"


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


def test_what_must_be_the_same_on_both_sides_is_named_when_it_is_not(tmp_path: Path) -> None:
    def run(name: str, **engine: str) -> list:
        return draw_runs(tmp_path, name, [1], meta={"engines": {"e": {"product": "vllm", **engine}}})

    base = run("a", block_size="16", version="1")
    assert differing(base, run("b", block_size="16", version="2")) == []
    assert differing(base, run("c")) == []
    (said,) = differing(base, run("d", block_size="32"))
    assert said == "vllm.block_size differs: 16 in a0; 32 in d0"


def test_the_tail_of_one_run_a_side_is_judged_beside_noise_runs(tmp_path: Path) -> None:
    even = [10_000_000 + k for k in range(1000)]
    base, *noise = [draw_run(tmp_path / f"a{n}", even) for n in range(3)]
    head = draw_run(tmp_path / "b", [3 * value if k < 20 else value for k, value in enumerate(even)])
    gates = Gates((), (Tail("ttft_ns"),))
    assert compare([base], [head], gates).code == 4
    assert compare([base], [head], gates, noise).code == 1
