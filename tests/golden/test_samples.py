"""What the real stack did, on the shipped recordings: the client, the engine and the cache agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import kvtrace
import polars as pl
import pytest
from kvtrace.report import write_report
from kvtrace.sinks.parquet.compact import compact_run
from polars.testing import assert_frame_equal
from tests.golden import truths
from tests.golden.conftest import SAMPLES
from tests.golden.truths import ALWAYS, ASKED, Recording
from tests.unit.importer.drawn import imported, tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

NAMES = ("concurrent", "l1-reuse", "l2-loads", "server-killed", "stores-dropped")
"""Recordings of vLLM with LMCache; those of Dynamo: test_dynamo_samples.py."""
ROWS = """
    SELECT
        coalesce(product, 'not observed') AS product, span.observer, span.op, count(*) AS rows,
        span.process LIKE 'engine-host/%' AS from_inside
    FROM span LEFT JOIN process USING (process) GROUP BY ALL ORDER BY ALL NULLS LAST
"""
"""How many rows of each kind, of which product; those that `kvtrace run` recorded from inside apart."""
SAME = ("span", "request", "transfer")
"""Every other noun is a view of the same rows."""


@pytest.fixture
def recording(sample: Callable[[str], Run]) -> Callable[[str], Recording]:
    return lambda name: Recording(sample(name), SAMPLES / name / "raw")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("truth", ALWAYS + ASKED, ids=lambda truth: truth.__name__)
def test_of_every_recording(
    recording: Callable[[str], Recording], truth: Callable[[Recording], None], name: str
) -> None:
    truth(recording(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_span_became_a_row_of_its_operation(
    sample: Callable[[str], Run], request: pytest.FixtureRequest, name: str
) -> None:
    found = sample(name).connection().sql(ROWS).pl()
    path = Path(__file__).parent / "rows" / f"{name}.csv"
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        found.write_csv(path)
    assert_frame_equal(found, pl.read_csv(path, schema=found.schema))


@pytest.mark.parametrize("name", [*NAMES, "native-offload"])
@pytest.mark.parametrize("window", ["ttft", "decode", "e2e"])
def test_where_the_scheduler_was_recorded_every_window_is_exact(
    sample: Callable[[str], Run], name: str, window: str
) -> None:
    assert set(kvtrace.analyze(sample(name), "exposure", window=window)["bound"]) == {"exact"}


@pytest.mark.parametrize("name", ["dynamo-1.5.1", "dynamo-eventplane", "dynamo-hosttier"])
def test_where_only_exported_spans_are_known_every_window_is_an_upper_bound(
    sample: Callable[[str], Run], name: str
) -> None:
    """No record says which step computed for whom."""
    assert set(kvtrace.analyze(sample(name), "exposure", window="e2e")["bound"]) == {"upper"}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_were_held_for_a_transfer_were_given_back_once(
    sample: Callable[[str], Run], name: str
) -> None:
    (row,) = kvtrace.analyze(sample(name), "lock_contract", only=("freed_once",)).to_dicts()
    assert (row["status"], row["evidence"]) == ("pass", "shim")


@pytest.mark.parametrize("name", ["concurrent", "server-killed"])
def test_blocks_that_were_held_for_a_transfer_were_handed_to_nobody(
    sample: Callable[[str], Run], name: str
) -> None:
    """Where requests came one by one and every store ended soon, none was handed out in the meantime."""
    (row,) = kvtrace.analyze(sample(name), "lock_contract", only=("held_block_not_reused",)).to_dicts()
    assert (row["status"], row["evidence"]) == ("pass", "shim")


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"server-killed"}))
def test_a_server_that_ended_well_lost_nothing(recording: Callable[[str], Recording], name: str) -> None:
    truths.nothing_was_lost(recording(name))


def test_more_is_found_than_moved(recording: Callable[[str], Recording]) -> None:
    truths.more_is_found_than_moved(recording("l1-reuse"))
    sums = recording("l1-reuse").rows(
        "SELECT (SELECT sum(found_tokens)::BIGINT FROM lookup), "
        "(SELECT sum(tokens)::BIGINT FROM transfer WHERE op = 'load')"
    )
    assert sums == [(11_520, 5_888)]


@pytest.mark.parametrize("name", ["concurrent", "l1-reuse", "l2-loads"])
def test_a_full_load_is_1280_tokens_and_2621440_bytes(
    recording: Callable[[str], Recording], name: str
) -> None:
    truths.a_full_load_is_1280_tokens_and_2621440_bytes(recording(name))


def test_a_prompt_below_a_chunk_is_not_looked_up(recording: Callable[[str], Recording]) -> None:
    truths.a_prompt_below_a_chunk_is_not_looked_up(recording("l1-reuse"))


@pytest.mark.parametrize("name", ["stores-dropped", "l2-loads"])
def test_stores_without_room_are_drops(recording: Callable[[str], Recording], name: str) -> None:
    truths.drops_keep_nothing_for_an_unknown_reason(recording(name))
    truths.drops_are_the_stores_that_wrote_nothing(recording(name))
    truths.what_had_no_room_is_never_stored_and_missed_again(recording(name))


def test_what_l1_lost_is_found_below_it(recording: Callable[[str], Recording]) -> None:
    truths.some_lookup_finds_512_tokens_in_l1_and_768_below(recording("l2-loads"))


def test_the_killed_servers_losses_are_counted(recording: Callable[[str], Recording]) -> None:
    killed = recording("server-killed")
    truths.the_killed_server_lost_spans(killed)
    truths.after_the_kill_nothing_of_the_cache_was_seen(killed)
    first_ns = killed.rows("SELECT from_ns <= to_ns, to_ns FROM loss WHERE process = 'lmcache-1'")
    assert first_ns[0][0]
    assert first_ns[0][1] < killed.marks_ns()["cache_server_killed"]


def test_after_the_kill_requests_wait(recording: Callable[[str], Recording]) -> None:
    truths.the_first_request_after_the_kill_waits_for_its_lookup(recording("server-killed"))
    truths.the_fourth_request_after_the_kill_waits_for_held_blocks(recording("server-killed"))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_says_what_was_recorded_and_what_was_left_out(
    recording: Callable[[str], Recording], name: str
) -> None:
    meta = recording(name).run.meta
    assert meta["synthetic"] is False
    inside = [name for name in meta["engines"] if name.startswith("vllm-")]
    assert len(inside) == 1
    told = meta["engines"].pop(inside[0])
    assert (told["version"], told["block_size"], told["num_gpu_blocks"]) == ("0.32.0", "128", "40")
    spools = [entry["format"] for entry in meta["inputs"]].count("spool")
    if spools == 4:
        server = meta["engines"].pop("lmcache-1")
        assert (server["version"], server["chunk_size"]) == ("0.5.5", "256")
    assert meta["engines"] == {"vllm": "0.32.0", "lmcache": "0.5.5", "torch": "2.13.0+cpu"}
    assert meta["recording"]["scenario"].replace("_", "-") == name
    formats = {entry["format"]: entry["name"] for entry in meta["inputs"]}
    assert formats["otlp-proto-frames"] == "otlp.binpb"
    assert spools >= 3
    assert formats["openai-responses"] == "responses.jsonl"
    assert formats["vllm-kv-events"] == "kv-events.jsonl"
    assert formats["lmcache-storage-trace"] == "storage.lct"
    assert formats["otlp-metrics"] == "otlp-metrics.binpb"
    assert "unknown" not in formats
    assert (meta["content_kept"], meta["content_dropped"]) == (False, {})


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_imported_from_its_own_run_is_the_same(
    sample: Callable[[str], Run], tmp_path: Path, name: str
) -> None:
    again = imported(tmp_path, sample(name).path)
    assert tables(again, *SAME) == tables(sample(name), *SAME)


def test_losses_survive_an_import_of_the_run(sample: Callable[[str], Run], tmp_path: Path) -> None:
    again = imported(tmp_path, sample("server-killed").path)
    assert tables(again, "loss") == tables(sample("server-killed"), "loss")


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_imported_twice_at_once_counts_once(
    sample: Callable[[str], Run], tmp_path: Path, name: str
) -> None:
    traces = SAMPLES / name / "raw" / "otlp.binpb"
    twice = imported(tmp_path, traces, SAMPLES / name / "raw")
    assert tables(twice, *SAME, "alias") == tables(sample(name), *SAME, "alias")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_in_two_and_given_backwards_is_the_same(tmp_path: Path, name: str) -> None:
    raw = SAMPLES / name / "raw"
    content = (raw / "otlp.binpb").read_bytes()
    at = frames = 0
    while at < len(content) // 2:
        at += 4 + int.from_bytes(content[at : at + 4], "big")
        frames += 1
    assert frames > 1
    (log,) = raw.glob("lookup_hashes*.jsonl")
    cut = imported(tmp_path / "cut", content[at:], log, content[:at])
    whole = imported(tmp_path / "whole", content, log)
    assert tables(cut, *SAME, "alias", "request_key") == tables(whole, *SAME, "alias", "request_key")


def test_a_process_is_the_same_in_whatever_order_its_spans_come(tmp_path: Path) -> None:
    content = (SAMPLES / "l1-reuse" / "raw" / "otlp.binpb").read_bytes()
    bodies, at = [], 0
    while at < len(content):
        end = at + 4 + int.from_bytes(content[at : at + 4], "big")
        bodies.append(content[at:end])
        at = end
    backwards = imported(tmp_path / "backwards", b"".join(reversed(bodies)))
    assert tables(backwards, "process") == tables(imported(tmp_path / "forwards", content), "process")


def test_compaction_of_a_recording_changes_no_noun(tmp_path: Path) -> None:
    run = imported(tmp_path, SAMPLES / "l1-reuse" / "raw")
    before = tables(run)
    compact_run(run.path)
    assert tables(run) == before


def test_the_page_says_in_words_why_the_first_and_the_fourth_request_after_the_kill_were_slow(
    sample: Callable[[str], Run], tmp_path: Path
) -> None:
    run = sample("server-killed")
    ids = dict(run.sql("SELECT alias, request_id FROM alias WHERE kind = 'client'").rows())
    write_report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Its lookup waited 5.00 s and timed out; everything was recomputed" in page
    (fourth,) = re.findall(r"it waited for GPU blocks \(needed 12, free 3\) that 3 requests held.*?<", page)
    assert all(ids[name] in fourth for name in ("req-008", "req-009", "req-010"))
