"""hit_funnel against its oracle on drawn runs, its laws, and what it must have in common with fallbacks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.analyses.ledger import ledger
from tests.property.drawn_funnel import Drawn, runs
from tests.property.oracle_funnel import funnel_by_loops
from tests.property.test_exposure import cases
from tests.rows import write_run

Rows = dict[str, dict[str, Any]]
PARTS = ("rounding", "last_token", "declined", "vanished", "lock", "failed", "unexplained")


def answers(run: Drawn) -> tuple[Rows, Rows, Rows]:
    """The funnel, fallbacks and the ledger by request."""
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(
            Path(folder) / "run",
            span=run.span,
            block=run.block,
            request_key=run.request_key,
            identity=run.identity,
        )
        frames = hit_funnel(opened), fallbacks(opened), ledger(opened)
    return tuple({row["request_id"]: row for row in frame.to_dicts()} for frame in frames)  # type: ignore[return-value]


def known(row: dict[str, Any], *names: str) -> bool:
    return all(row[f"{name}_tokens"] is not None for name in names)


def laws(row: dict[str, Any]) -> None:
    """What holds of every row."""
    if known(row, "gpu_hit", "loaded", "computed", "prompt"):
        assert row["gpu_hit_tokens"] + row["loaded_tokens"] + row["computed_tokens"] == row["prompt_tokens"]
    if known(row, "found", "gpu_hit", "loaded"):
        beyond = max(0, row["found_tokens"] - row["gpu_hit_tokens"])
        parts = sum(row[f"lost_{part}"] or 0 for part in PARTS)
        assert beyond - row["loaded_tokens"] == parts
    if known(row, "exists", "visible", "found"):
        assert row["exists_tokens"] - row["found_tokens"] == row["lost_invisible"] + row["lost_unreported"]
    assert (row["recomputed_tokens"] or 0) >= 0


@given(runs())
@cases(12)
def test_the_funnel_is_what_plain_loops_give(run: Drawn) -> None:
    funnel, verdicts, ledgers = answers(run)
    want = funnel_by_loops(run)
    assert set(funnel) == set(want) == set(ledgers)
    for name, row in funnel.items():
        assert row == want[name], run.of(name)
        laws(row)
    assert set(verdicts) <= set(funnel)
    for name, row in verdicts.items():
        mine = funnel[name]
        expected = mine["selected_tokens"] if mine["selected_tokens"] is not None else mine["found_tokens"]
        assert row["expected_tokens"] == expected
        assert row["loaded_tokens"] == mine["loaded_tokens"]
        assert row["recomputed_tokens"] == mine["recomputed_tokens"] == ledgers[name]["recomputed_tokens"]
        assert row["verdict"] == ledgers[name]["verdict"]
