from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.diff.causes import moved
from kvtrace.diff.comparing import compare
from kvtrace.diff.gates import Gate, Gates
from tests.rows import write_run
from tests.unit.diff.drawn import START, draw_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

MS = 1_000_000


def loaded(path: Path, load_ms: float) -> Run:
    """Three requests, one after another:  |-- load disk->host --|-- step 10 ms --| first token and end."""
    span = []
    for number in range(3):
        name, start = f"{path.name}-r{number}", START + number * 1000 * MS
        done = start + round(load_ms * MS)
        whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
        span += [
            {**whose, "op": "request", "request_id": name, "start_ns": start, "end_ns": done + 10 * MS,
             "first_token_ns": done + 10 * MS, "status": "ok", "workload_key": f"w{number}"},
            {**whose, "op": "load", "request_id": name, "start_ns": start, "end_ns": done,
             "tier_from": "disk", "tier_to": "host", "transfer_id": f"t{name}", "outcome": "ok"},
            {**whose, "op": "step", "start_ns": done, "end_ns": done + 10 * MS,
             "members": [{"request_id": name, "phase": "prefill", "scheduled_tokens": 8,
                          "output_tokens": 1, "computed_before": 0}]},
        ]  # fmt: skip
    return write_run(path, span=span)


def test_a_regression_names_the_class_of_time_that_grew(tmp_path: Path) -> None:
    base = [loaded(tmp_path / f"a{n}", 5 + n / 100) for n in range(3)]
    head = [loaded(tmp_path / f"b{n}", 8 + n / 100) for n in range(3)]
    found = compare(base, head, Gates((Gate("ttft_ns", "relative", 0.02),)))
    (finding,) = found.findings
    assert finding.verdict == "worse"
    assert finding.because.endswith(
        "a request of head takes +3 ms on average, +3 ms of it load disk->host "
        "(9 requests in all runs of head)"
    )
    assert moved("exposed_transfer_ns", base, head) is not None
    assert moved("recomputed_tokens", base, head) is None


def test_without_a_partition_that_is_exact_no_class_is_named(tmp_path: Path) -> None:
    runs = [draw_run(tmp_path / name, [1000, 2000]) for name in "ab"]
    assert moved("ttft_ns", runs[:1], runs[1:]) is None


def test_what_shrank_is_no_cause(tmp_path: Path) -> None:
    assert moved("ttft_ns", [loaded(tmp_path / "a", 8)], [loaded(tmp_path / "b", 5)]) is None
