"""LMCache inside the engine, layer by layer and with lookups sent ahead: its engine, clients and servers.

Minutes: `pytest -m engine`. See test_lmcache_inprocess.py.
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
SCRIPT = Path(__file__).parent / "lmcache_later_script.py"
TOKENS = 1024
BYTES = TOKENS * 2 * 2 * 32 * 4
"""Two layers, keys and values, 32 numbers of four bytes a token."""


def _play(python: Path, folder: Path, what: str) -> tuple[Run, dict[str, Any]]:
    """The run, and what the program itself saw."""
    (folder / "disk").mkdir()
    command = [sys.executable, "-m", "kvtrace", "run", "--out", str(folder / "run"), "--"]
    command += [str(python), str(SCRIPT), what, str(folder / "disk")]
    environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    run = open_run(folder / "run")
    assert _rows(run, "FROM loss WHERE cause = 'hook_failure'") == []
    return run, json.loads(said)


@pytest.fixture(scope="module")
def layers(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    return _play(python, tmp_path_factory.mktemp("layers"), "layers")


@pytest.fixture(scope="module")
def ahead(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    return _play(python, tmp_path_factory.mktemp("ahead"), "ahead")


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def _found(row: dict[str, Any]) -> str | None:
    return dict(row["attributes"] or {}).get("found_tokens")


def test_stores_that_take_turns_layer_by_layer_have_a_row_each(layers: Any) -> None:
    run, _ = layers
    rows = {row["request_id"]: row for row in _rows(run, "FROM span WHERE name = 'lmcache_store'")}
    told = {
        name: (row["op"], row["tokens"], row["bytes"], row["outcome"], row["reason"])
        for name, row in rows.items()
    }
    assert told == {
        "a": ("store", TOKENS, BYTES, "ok", None),
        "e": ("store", TOKENS // 2, BYTES // 2, "ok", None),
        "again": ("drop", TOKENS, None, "skipped", "duplicate"),
        "more": ("store", 76, 76 * BYTES // TOKENS, "ok", None),  # the rest was there
        "f": ("store", None, BYTES // 4, "cancelled", "unknown"),  # one of two layers of 512 tokens
    }
    assert rows["a"]["start_ns"] < rows["e"]["start_ns"] < rows["a"]["end_ns"] < rows["e"]["end_ns"]


def test_a_retrieve_layer_by_layer_is_a_row_and_copies_what_it_copied(layers: Any) -> None:
    run, seen = layers
    assert (seen["found"], seen["got"], seen["same"], seen["below"]) == (TOKENS, TOKENS, True, TOKENS)
    rows = _rows(run, "FROM span WHERE name = 'lmcache_retrieve' ORDER BY start_ns")
    told = [
        (row["request_id"], row["attribution"], row["tokens"], row["bytes"], row["outcome"]) for row in rows
    ]
    assert told == [
        ("b", "request", TOKENS, BYTES, "ok"),
        ("c", "request", 0, 0, "failed"),
        (None, "operation", TOKENS, BYTES, "ok"),
    ]


def test_a_retrieve_that_finds_nothing_raises_what_lmcache_raises(layers: Any) -> None:
    _, seen = layers
    assert seen["nothing"] == "UnboundLocalError"


def test_each_layer_that_the_disk_had_is_a_load_inside_its_retrieve(layers: Any) -> None:
    run, _ = layers
    loads = _rows(run, "FROM transfer WHERE op = 'load'")
    assert [(row["tier_from"], row["tier_to"], row["bytes"]) for row in loads] == [
        ("disk", "host", BYTES // 2)
    ] * 2
    (retrieve,) = _rows(run, "FROM span WHERE name = 'lmcache_retrieve' AND request_id IS NULL")
    for load in loads:
        assert retrieve["start_ns"] <= load["start_ns"] < load["end_ns"] <= retrieve["end_ns"]


def test_a_lookup_that_is_sent_ahead_is_a_row_of_the_engine_and_one_of_the_client(ahead: Any) -> None:
    run, seen = ahead
    assert (seen["b"], seen["c"], seen["d"]) == (TOKENS, 0, TOKENS)
    engine = {row["request_id"]: row for row in _rows(run, "FROM span WHERE name = 'lmcache_lookup'")}
    client = {row["request_id"]: row for row in _rows(run, "FROM span WHERE name = 'lmcache_lookup_client'")}
    for name, found, outcome in (("b", "1024", "ok"), ("c", "0", "miss"), ("d", "1024", "ok")):
        for row in (engine[name], client[name]):
            assert (row["tokens"], _found(row), row["outcome"]) == (TOKENS, found, outcome)
        assert client[name]["start_ns"] <= engine[name]["start_ns"]
        assert engine[name]["start_ns"] < engine[name]["end_ns"]
    assert (client["x"]["outcome"], _found(client["x"])) == ("cancelled", None)
    assert engine["x"]["outcome"] == "ok"


def test_what_a_lookup_reads_ahead_is_a_load_before_its_answer(ahead: Any) -> None:
    run, seen = ahead
    assert (seen["got"], seen["loaded"]) == (TOKENS, TOKENS)
    loads = {row["request_id"]: row for row in _rows(run, "FROM transfer WHERE op = 'load'")}
    assert set(loads) == {"d", "x"}
    (lookup,) = _rows(run, "FROM span WHERE name = 'lmcache_lookup' AND request_id = 'd'")
    load = loads["d"]
    assert (load["tier_from"], load["tier_to"], load["bytes"]) == ("disk", "host", BYTES)
    assert lookup["start_ns"] <= load["start_ns"] < load["end_ns"] <= lookup["end_ns"]
    retrieved = _rows(run, "FROM span WHERE name = 'lmcache_retrieve' ORDER BY start_ns")
    assert [(row["request_id"], row["tokens"], row["bytes"]) for row in retrieved] == [
        ("b", TOKENS, BYTES), ("d", TOKENS, BYTES),
    ]  # fmt: skip


def test_a_client_that_waits_says_what_it_was_answered(python: Path, tmp_path: Path) -> None:
    run, seen = _play(python, tmp_path, "waited")
    assert seen == {"b": TOKENS, "c": 0, "s": 0}
    rows = _rows(run, "FROM span WHERE name = 'lmcache_lookup_client' ORDER BY start_ns")
    assert [(row["request_id"], row["outcome"], _found(row), row["observer"]) for row in rows] == [
        ("b", "ok", "1024", "scheduler"), ("c", "miss", "0", "scheduler"), ("s", "skipped", "0", "scheduler"),
    ]  # fmt: skip
