"""Dynamo's router and simulated workers with a host tier: what exists, is visible, is selected, is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace.analyses import question
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.engines.collect.dynamo_session import PROMPTS, ROUNDS, WORDS
from tests.engines.environment import DYNAMO, engine_python, skip_when_missing

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

pytestmark = pytest.mark.engine
OWN_NETWORK = ("unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "--")
"""Dynamo's event plane binds the machine's own address: in a network of its own that is loopback."""
HOST_CREDIT = 0.75
"""--router-host-cache-hit-weight: what Dynamo's router counts of a block that lies in host memory."""
BLOCK = 16
EVENTS = ("exists_ns", "visible_ns", "selected_ns", "loaded_ns")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_when_missing(DYNAMO)
    python = engine_python(DYNAMO)
    made = tmp_path_factory.mktemp("dynamo")
    command = [sys.executable, "-m", "tests.engines.collect.dynamo_session", str(made), str(python)]
    done = subprocess.run([*OWN_NETWORK, *command], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def collected(folder: Path) -> Run:
    return open_run(folder / "run")


@pytest.fixture(scope="module")
def events(folder: Path) -> pl.DataFrame:
    """four_events of what was collected, and of the files that name blocks and what was reported."""
    files = [folder / name for name in ("request-trace.jsonl", "responses.jsonl", "frontend.log")]
    run = open_run(import_files([folder / "run", *files], folder / "whole").run)
    found = question("four_events")(run)
    names = run.sql("SELECT alias AS client, request_id FROM alias WHERE kind = 'client'").unique()
    return found.join(names, on="request_id").sort("client", "first_position")


def test_every_kind_of_source_came_and_nothing_was_lost(folder: Path, collected: Run) -> None:
    said = json.loads((folder / "run" / "run.json").read_text())
    assert said["kind"] == "collect"
    assert {entry["format"]: (entry["spans"] > 0, entry["other_rows"] > 0) for entry in said["inputs"]} == {
        "otlp-grpc": (True, False), "kv-events": (True, True), "prometheus": (False, True),
    }  # fmt: skip
    lost = collected.sql("SELECT source, op, cause, count, detail FROM loss").rows()
    assert lost == []
    tiers = collected.sql("SELECT DISTINCT tier FROM block WHERE event = 'stored' ORDER BY 1")
    assert tiers["tier"].to_list() == ["gpu", "host"]
    assert collected.sql("SELECT count(*) FROM span WHERE op = 'request'").item() == PROMPTS * ROUNDS
    assert collected.sql("SELECT count(*) FROM span WHERE op = 'route'").item() == PROMPTS * ROUNDS


def test_no_content_is_on_disk(folder: Path) -> None:
    prompt = b"w10 w11 w12"
    assert not [
        path for path in (folder / "run").rglob("*") if path.is_file() and prompt in path.read_bytes()
    ]


def test_the_first_round_finds_nothing_anywhere(events: pl.DataFrame) -> None:
    first = events.filter(pl.col("client").str.starts_with("round-0"))
    assert first["client"].n_unique() == PROMPTS
    assert first.select(pl.all_horizontal(pl.col(name).is_null() for name in EVENTS).all()).item()
    assert set(first["reported_tokens"]) == {0}


def test_what_left_the_gpu_exists_in_host_memory_is_visible_selected_and_loaded_in_this_order(
    events: pl.DataFrame,
) -> None:
    """Two workers hold 64 blocks each and the four prompts have 139: at least two of them left a GPU."""
    later = events.filter(~pl.col("client").str.starts_with("round-0"))
    loaded = later.filter(pl.col("loaded_ns").is_not_null())
    assert loaded["client"].n_unique() == PROMPTS * (ROUNDS - 1)
    assert set(loaded["locality"]) == {"local"}
    assert set(loaded["tier"]) <= {"gpu", "host"}
    assert loaded.filter(tier="host")["client"].n_unique() >= 2
    in_order = pl.all_horizontal(pl.col(a) <= pl.col(b) for a, b in pairwise(EVENTS))
    assert loaded.filter(~in_order).is_empty()
    evidence = loaded.select("exists_evidence", "selected_evidence", "loaded_evidence")
    assert evidence.unique().rows() == [("native",) * 3]
    # how many blocks the GPU had, the router's log leaves to its rounded forecast: then the plane alone knows
    assert set(loaded["visible_evidence"]) <= {"native", "derived"}


def test_what_was_loaded_is_what_the_worker_reported_and_more_than_the_router_credited(
    events: pl.DataFrame,
) -> None:
    """The router counts a host block as three quarters; a block that it sees may still be computed anew."""
    credit = pl.when(pl.col("tier") == "host").then(HOST_CREDIT).otherwise(1.0)
    per_request = events.filter(~pl.col("client").str.starts_with("round-0")).group_by("client").agg(
        pl.col("tokens").filter(pl.col("loaded_ns").is_not_null()).sum().alias("loaded"),
        (pl.col("tokens") * credit).filter(pl.col("visible_ns").is_not_null()).sum().alias("credited"),
        pl.first("reported_tokens", "predicted_tokens"),
    )  # fmt: skip
    for client, loaded, credited, reported, predicted in per_request.iter_rows():
        words = WORDS + 10 * int(client[-1])
        assert loaded == reported
        assert words - 2 * BLOCK < reported <= words
        assert predicted == pytest.approx(credited, abs=BLOCK)
