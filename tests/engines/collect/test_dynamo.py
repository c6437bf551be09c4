"""Dynamo's router and simulated workers with a host tier: what exists, is visible, is selected, is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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
def whole(folder: Path) -> Run:
    """What was collected with the files that name blocks, what the router counted and what was reported."""
    files = [folder / name for name in ("request-trace.jsonl", "responses.jsonl", "frontend.log")]
    return open_run(import_files([folder / "run", *files], folder / "whole").run)


@pytest.fixture(scope="module")
def events(whole: Run) -> pl.DataFrame:
    """Its four_events, with the client's names."""
    found = question("four_events")(whole)
    names = whole.sql("SELECT alias AS client, request_id FROM alias WHERE kind = 'client'").unique()
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


def seen(run: Run) -> dict[tuple[str, str | None], dict[str, Any]]:
    """The rows of visibility by backend and tier."""
    return {(row["backend"], row["tier"]): row for row in question("visibility")(run).to_dicts()}


def test_a_router_could_see_the_tiers_in_which_it_counted_and_all_keys_on_its_plane(
    whole: Run, events: pl.DataFrame
) -> None:
    """The first round finds nothing; of the others each finds something in one of both tiers.

    How many blocks the GPU had the router's log may leave open, how many the tiers below it not.
    """
    found, most = seen(whole), PROMPTS * (ROUNDS - 1)
    places = {("dynamo.device", "gpu"), ("dynamo.host_pinned", "host")}
    for component, tier in places:
        row = found[component, tier]
        ((keys,),) = whole.sql(
            "SELECT count(DISTINCT key) FROM block WHERE event = 'stored' AND component = $of", of=component
        ).rows()
        assert row["keys"] == row["published_keys"] == keys > 0
        assert (row["visible"], row["evidence"]) == ("yes", "native")
        untold = PROMPTS * ROUNDS - row["routes"]
        assert untold == 0 or (tier == "gpu" and row["routes"] > 0)
        loaded = events.filter(pl.col("loaded_ns").is_not_null(), tier=tier)["client"].n_unique()
        assert loaded - untold <= row["routes_counting"] <= most
    untold = PROMPTS * ROUNDS - found["dynamo.device", "gpu"]["routes"]
    assert sum(found[place]["routes_counting"] for place in places) + untold >= most
    assert found["router", "disk"]["routes_counting"] == 0
    assert found["router", "disk"]["visible"] == "unknown", "no key of a disk was there to be seen"


def test_the_router_applied_every_message_that_was_collected_from_the_plane(whole: Run) -> None:
    row = seen(whole)["dynamo", None]
    ((messages,),) = whole.sql(
        "SELECT count(*) FROM (SELECT DISTINCT engine, tier, event, seq FROM block WHERE seq IS NOT NULL)"
    ).rows()
    assert (row["applied"], row["warned"], row["dropped"]) == (messages, 0, 0)
    assert (row["visible"], row["evidence"]) == ("yes", "native")


def test_without_the_routers_log_it_is_not_known_in_which_tier_it_saw_anything(collected: Run) -> None:
    """Its counters name no tier, its spans no counts: keys on the plane are not yet keys that it applied."""
    found = seen(collected)
    for place in (("dynamo.device", "gpu"), ("dynamo.host_pinned", "host")):
        row = found[place]
        assert (row["routes"], row["routes_counting"]) == (0, None)
        assert (row["visible"], row["evidence"]) == ("unknown", None)
