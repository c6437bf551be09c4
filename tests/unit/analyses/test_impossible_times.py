"""Times that no clock shows and a file can hold: a question about a span as long as 64 bits has an answer.

start -2^63+1 |------------------------------------------------------| end 2^63-1     longer than 64 bits hold
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses import question
from kvtrace.report import write_report
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
FIRST, LAST = -(2**63) + 1, 2**63 - 1
WHO: Row = {"engine": "e0", "process": "p0", "evidence": "shim"}
LONG: Row = {**WHO, "start_ns": FIRST, "end_ns": LAST, "request_id": "r0", "observer": "scheduler"}
COPY: Row = {**LONG, "op": "load", "observer": "worker", "tier_from": "host", "tier_to": "gpu", "tokens": 5,
             "submit_ns": FIRST, "usable_ns": LAST}  # fmt: skip
MEMBER: Row = {"request_id": "r0", "phase": "prefill", "scheduled_tokens": 5, "output_tokens": 1,
               "computed_before": 5}  # fmt: skip
ROWS: tuple[Row, ...] = (
    {**LONG, "op": "request", "observer": "api", "first_token_ns": LAST - 1, "prompt_tokens": 10},
    {**LONG, "op": "lookup", "found_tokens": 5, "outcome": "ok"},
    {**LONG, "op": "lock_wait"},
    {**LONG, "op": "hold", "blocks": 3, "reason": "store"},
    {**LONG, "op": "queue", "reason": "capacity", "blocks": 5, "free_blocks": 1},
    {**LONG, "op": "wait", "reason": "load"},
    {**LONG, "op": "health", "request_id": None, "reason": "down"},
    {**LONG, "op": "step", "request_id": None, "members": [MEMBER]},
    {**LONG, "op": "step", "request_id": None, "start_ns": FIRST + 7, "members": [MEMBER]},
    {**LONG, "op": "route", "observer": "router"},
    *({**COPY, "start_ns": FIRST + n, "transfer_id": f"t{n}"} for n in range(3)),
    {**COPY, "op": "store", "tier_from": "gpu", "tier_to": "host"},
)
QUESTIONS = (
    "bandwidth", "blockers", "coverage", "critical_path", "exposure", "fallbacks", "four_events",
    "held_share", "hit_funnel", "hit_ratio", "hold", "inventory", "ledger", "lock_contract", "missed_by_lag",
    "residency", "store_lag", "visibility", "miss_ratio_curve", "slo", "waste",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    spans = [{"span_id": n, **row} for n, row in enumerate(ROWS, 1)]
    return write_run(tmp_path_factory.mktemp("long") / "run", span=spans)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_an_answer(run: Run, name: str) -> None:
    assert question(name)(run) is not None


def test_a_request_is_explained(run: Run) -> None:
    assert question("explain")(run, requests=("r0",)).height > 0


def test_a_duration_beyond_64_bits_is_null(run: Run) -> None:
    assert run.sql("SELECT ttft_ns, duration_ns FROM request").rows() == [(None, None)]


def test_what_began_before_1970_lasts_from_then_on(run: Run) -> None:
    """Copies, holds and lookups are counted as far as a clock can have seen them."""
    (row,) = question("ledger")(run).to_dicts()
    assert (row["lookup_wait_ns"], row["h2d_ns"], row["d2h_ns"], row["block_hold_ns"]) == (LAST,) * 4


def test_windows_of_requests_that_arrive_before_1970_are_not_divided(tmp_path: Path) -> None:
    other: Row = {**WHO, "op": "request", "observer": "api", "request_id": "r1", "start_ns": 5, "end_ns": 9}
    both = write_run(tmp_path / "run", span=[{**ROWS[0], "span_id": 1}, {**other, "span_id": 2}])
    assert question("exposure")(both)["request_id"].unique().to_list() == ["r1"]


def test_the_page_is_drawn(run: Run, tmp_path: Path) -> None:
    write_report([run], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 0
