"""exact or upper: steps that were not seen, and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.analyses.exposure.drawing import ask, drawn, exposed, load, request, scheduler, step, value

if TYPE_CHECKING:
    from pathlib import Path


def bounds(run: Any) -> dict[str, str]:
    return {name: value(run, "bound", window=name) for name in ("ttft", "decode", "e2e")}


def lost(**more: Any) -> dict[str, Any]:
    return {"source": "spool", "process": "e0/scheduler", "cause": "dropped", "count": 1, **more}


def test_without_a_step_the_bound_is_upper_and_compute_is_there_with_null(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 30, 20), load(0, 10))
    rows = ask(run)
    assert [(row["class"], row["exposed_ns"], row["bound"]) for row in rows] == [
        ("compute", None, "upper"),
        ("load", 10, "upper"),
        ("other", 20, "upper"),
    ]
    compute = {name for name, cell in rows[0].items() if cell is None}
    assert compute >= {
        "total_ns",
        "exposed_ns",
        "work_ns",
        "open_ns",
        "hop",
        "agreement",
        "hidden_by_wait_ns",
    }
    assert all(row["hidden_by_compute_ns"] is None and row["agreement"] is None for row in rows)


def test_a_request_that_never_got_a_token_is_exact_where_its_engine_has_steps(tmp_path: Path) -> None:
    """r0 waited and failed: the steps of its engine are seen, it was in none of them."""
    run = drawn(tmp_path, request(0, 30), request(0, 30, request_id="r1"), step(0, 10, "r1"))
    assert value(run, "bound") == "exact"
    with_token = drawn(
        tmp_path / "token", request(0, 30, 20), request(0, 30, request_id="r1"), step(0, 10, "r1")
    )
    assert value(with_token, "bound") == "upper"
    elsewhere = drawn(tmp_path / "else", request(0, 30), step(0, 10, "r1", engine="e1"))
    assert value(elsewhere, "bound") == "upper"


def test_a_loss_of_the_scheduler_makes_the_windows_it_overlaps_upper(tmp_path: Path) -> None:
    """Lost during [60, 70): ttft [0, 40) is whole."""
    run = drawn(tmp_path, request(0, 100, 40), step(0, 90), loss=[lost(op="step", from_ns=60, to_ns=70)])
    assert bounds(run) == {"ttft": "exact", "decode": "upper", "e2e": "upper"}
    assert exposed(run, "ttft") == {"compute": 40}
    assert exposed(run, "decode") == {"other": 60}


def test_what_compute_would_have_had_falls_to_the_next_in_the_list(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 30), step(0, 30), scheduler("lookup", 5, 10), loss=[lost()])
    assert exposed(run) == {"lookup": 5, "other": 25}


@pytest.mark.parametrize("op", [None, "step", "queue", "wait"])
def test_these_losses_count_whenever_they_happened(tmp_path: Path, op: str | None) -> None:
    assert value(drawn(tmp_path, request(0, 30), step(0, 30), loss=[lost(op=op)]), "bound") == "upper"


@pytest.mark.parametrize(
    "neutral",
    [
        {"cause": "duplicate"},
        {"op": "load"},
        {"process": "e0/worker"},
        {"process": "e1/scheduler"},
        {"from_ns": 30, "to_ns": 40},  # half-open: the window ends where the loss begins
        {"to_ns": -1},
    ],
)
def test_these_losses_do_not(tmp_path: Path, neutral: dict[str, Any]) -> None:
    assert value(drawn(tmp_path, request(0, 30), step(0, 30), loss=[lost(**neutral)]), "bound") == "exact"


def test_a_loss_of_an_unknown_process_may_be_anybody_s(tmp_path: Path) -> None:
    assert value(drawn(tmp_path, request(0, 30), step(0, 30), loss=[lost(process=None)]), "bound") == "upper"
