"""LMCache inside the engine: its own engine, storage and local tiers run here, vLLM does not (no GPU).

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvtrace.run import Run, open_run

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).parent / "lmcache_engine_script.py"
TOKENS = 1024
BYTES = TOKENS * 2 * 2 * 32 * 4
"""Two layers, keys and values, 32 numbers of four bytes a token."""


@pytest.fixture(scope="module")
def played(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, int]]:
    """The run, and what the program itself saw."""
    folder = tmp_path_factory.mktemp("inprocess")
    command = [sys.executable, "-m", "kvtrace", "run", "--out", str(folder / "run"), "--"]
    command += [str(python), str(SCRIPT), str(folder / "disk")]
    environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return open_run(folder / "run"), json.loads(said)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def test_a_store_is_a_row_with_what_the_engine_handed_over(played: Any) -> None:
    run, _ = played
    (row,) = _rows(run, "FROM transfer WHERE op = 'store'")
    assert (row["request_id"], row["tokens"], row["bytes"], row["outcome"]) == ("a", TOKENS, BYTES, "ok")
    assert (row["tier_from"], row["tier_to"]) == ("gpu", "host")


def test_lookups_say_what_was_found_and_hold_it_until_they_are_unpinned(played: Any) -> None:
    run, seen = played
    rows = _rows(run, "FROM span WHERE name = 'lmcache_lookup' ORDER BY start_ns")
    found = {row["request_id"]: int(dict(row["attributes"])["found_tokens"]) for row in rows}
    assert found == {"b": seen["found"], "c": seen["missed"], "d": seen["below"]}
    assert [row["outcome"] for row in rows] == ["ok", "miss", "ok"]
    held = _rows(run, "FROM span WHERE op = 'lock_hold' ORDER BY start_ns")
    assert [(row["request_id"], row["mode"], row["tokens"]) for row in held] == [
        ("b", "read", TOKENS), ("d", "read", TOKENS),
    ]  # fmt: skip
    retrieved = {row["request_id"]: row for row in _rows(run, "FROM span WHERE name = 'lmcache_retrieve'")}
    for row in held:
        assert row["start_ns"] <= retrieved[row["request_id"]]["start_ns"] < row["end_ns"]


def test_a_pin_that_is_given_back_twice_is_seen(played: Any) -> None:
    """A retrieve unpins the objects in host memory, and the end of the request does so again."""
    run, _ = played
    rows = _rows(run, "FROM span WHERE name = 'lmcache_double_unpin'")
    assert [(row["request_id"], row["bytes"]) for row in rows] == [("b", BYTES // 4)] * 4


def test_what_the_disk_had_is_a_load_from_the_disk(played: Any) -> None:
    """The first retrieve finds host memory: no hop; the second reads below it."""
    run, seen = played
    retrieved = _rows(run, "FROM span WHERE name = 'lmcache_retrieve' ORDER BY start_ns")
    assert [row["tokens"] for row in retrieved] == [seen["got"], seen["loaded"]]
    assert [row["bytes"] for row in retrieved] == [BYTES, BYTES]
    (load,) = _rows(run, "FROM transfer WHERE op = 'load'")
    assert (load["request_id"], load["tier_from"], load["tier_to"]) == ("d", "disk", "host")
    assert (load["bytes"], load["component"]) == (BYTES, "lmcache.inprocess.localdisk")
    assert retrieved[1]["start_ns"] <= load["start_ns"] < load["end_ns"] <= retrieved[1]["end_ns"]
