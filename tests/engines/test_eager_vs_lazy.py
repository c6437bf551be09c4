"""LMCache's client storing at once and storing lazily, in one engine with the same pool: what differs.

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest

if TYPE_CHECKING:
    from tests.engines.conftest import Recordings
    from tests.engines.native import Played

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rows(recordings: Recordings, lazy: Played) -> dict[str, dict[str, Any]]:
    """The session whose prompts come back from L1, beside the one that stores lazily till it dies."""
    found = kvtrace.analyze([recordings.native("l1_reuse"), lazy.run], "eager_vs_lazy")
    return {row["measure"]: row for row in found.to_dicts()}


def test_what_is_stored_at_once_is_reusable_before_the_request_is_over(rows: dict[str, Any]) -> None:
    row = rows["reuse_delay_p50_ns"]
    assert row["eager"] < 0 < row["lazy"]
    assert row["eager_rows"] >= 5
    assert row["lazy_rows"] >= 1


def test_only_the_lazy_run_drops_stale_parts_and_leaves_a_tail(rows: dict[str, Any]) -> None:
    for measure in ("stale_ratio", "never_stored_ratio"):
        assert rows[measure]["eager"] == 0, measure
        assert 0 < rows[measure]["lazy"] < 1, measure


def test_lazily_stored_state_is_reusable_for_a_smaller_share_of_the_time(rows: dict[str, Any]) -> None:
    row = rows["reusable_time_ratio"]
    assert 0 <= row["lazy"] < row["eager"] <= 1
    assert "removals were recorded for 0 of" in row["basis"]


def test_a_write_carries_whole_chunks_and_holds_blocks(rows: dict[str, Any]) -> None:
    assert rows["writes_per_request"]["lazy"] < 1
    assert rows["tokens_per_write"]["lazy"] % 256 == 0
    assert rows["block_seconds_per_request"]["lazy"] > 0
    assert rows["wait_store_ns"]["eager"] > 0


def test_the_command_knows_which_is_the_lazy_one(recordings: Recordings, lazy: Played) -> None:
    """LMCache's own setting says so."""
    command = [sys.executable, "-m", "kvtrace", "analyze", "eager_vs_lazy", str(lazy.run)]
    done = subprocess.run(
        [*command, str(recordings.native("l1_reuse").path), "--format", "json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "stores lazily; give the runs the other way round" in done.stderr
    assert done.stdout == ""
