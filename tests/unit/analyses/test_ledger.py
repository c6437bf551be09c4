"""The quantities of a request side by side: one column a test, numbers small enough to add up."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.ledger import COLUMNS, ledger
from tests.rows import write_run
from tests.unit.analyses.serving import (
    PROMPT,
    Row,
    asked,
    decode,
    load,
    loaded,
    lookup,
    prefill,
    scheduler,
    store,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path


def account(folder: Path, *spans: Row, name: str = "r0", **tables: Any) -> dict[str, Any]:
    (row,) = ledger(written(folder, *spans, **tables), requests=(name,)).to_dicts()
    return row


def test_a_run_without_rows_has_the_columns(tmp_path: Path) -> None:
    frame = ledger(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_a_request_that_got_what_the_cache_offered(tmp_path: Path) -> None:
    row = account(
        tmp_path, asked(0, 1280), lookup(1280), loaded(1280, bytes=4096), prefill(1280, 256), decode(70),
        decode(90), store(100, 130), scheduler("hold", 100, 130),
    )  # fmt: skip
    assert row == {
        "request_id": "r0", "gpu_hit_tokens": 0, "external_hit_tokens": 1280, "loaded_bytes": 4096,
        "lookup_wait_ns": 10, "lock_wait_ns": None, "d2h_ns": 30, "h2d_ns": 20, "network_ns": None,
        "recomputed_tokens": 0, "store_completed_ns": 130, "block_hold_ns": 30, "ttft_ns": 60,
        "itl_p50_ns": 10, "itl_p99_ns": 20, "status": "ok", "verdict": "loaded",
    }  # fmt: skip


def test_what_somebody_records_for_others_is_0_for_who_has_none(tmp_path: Path) -> None:
    row = account(
        tmp_path, asked(0, 0), asked(0, 0, "r1"), lookup(0, "miss", request_id="r1"),
        loaded(5, request_id="r1"),
        store(50, 60, request_id="r1"), scheduler("hold", 50, 60, request_id="r1"),
        scheduler("lock_wait", 50, 60, request_id="r1"), loaded(5, path="peer->host", request_id="r1"),
    )  # fmt: skip
    names = (
        "lookup_wait_ns",
        "lock_wait_ns",
        "d2h_ns",
        "h2d_ns",
        "network_ns",
        "block_hold_ns",
        "loaded_bytes",
    )
    assert [row[name] for name in names] == [0] * 7
    assert row["store_completed_ns"] is None


def test_what_nobody_records_is_null(tmp_path: Path) -> None:
    row = account(tmp_path, asked(None, None))
    names = (
        "lookup_wait_ns",
        "lock_wait_ns",
        "d2h_ns",
        "h2d_ns",
        "network_ns",
        "block_hold_ns",
        "loaded_bytes",
    )
    assert [row[name] for name in names] == [None] * 7
    assert (row["itl_p50_ns"], row["verdict"], row["external_hit_tokens"]) == (None, None, None)


def test_what_another_engine_records_says_nothing_of_this_one(tmp_path: Path) -> None:
    other = {"request_id": "r1", "engine": "e1"}
    row = account(
        tmp_path, asked(0, 0), asked(0, 0, "r1", engine="e1"), store(50, 60, **other), lookup(0, **other)
    )
    assert (row["d2h_ns"], row["lookup_wait_ns"]) == (None, None)


def test_copies_that_overlap_count_once(tmp_path: Path) -> None:
    row = account(tmp_path, asked(0, 768), load(20, 40), load(30, 50), load(60, 70))
    assert row["h2d_ns"] == 40


def test_a_store_is_counted_beyond_the_end_of_its_request(tmp_path: Path) -> None:
    assert account(tmp_path, asked(), store(90, 250))["d2h_ns"] == 160


def test_a_lookup_is_counted_while_the_request_lives(tmp_path: Path) -> None:
    assert account(tmp_path, asked(), lookup(0, start=95))["lookup_wait_ns"] == 5


def test_an_open_hold_counts_to_the_last_record_of_its_process(tmp_path: Path) -> None:
    row = account(
        tmp_path, asked(), scheduler("hold", 90, None), scheduler("queue", 190, 200, request_id="r1")
    )
    assert row["block_hold_ns"] == 110


@pytest.mark.parametrize(
    ("path", "null"),
    [("unknown->gpu", {"h2d_ns", "network_ns"}), ("unknown->host", {"network_ns"}), ("disk->host", set())],
)
def test_a_hop_with_an_unknown_end_may_have_been_any(tmp_path: Path, path: str, null: set[str]) -> None:
    others = [load(20, 30, request_id="r1"), load(20, 30, "object->host", request_id="r1")]
    row = account(tmp_path, asked(0, 0), asked(0, 0, "r1"), *others, load(20, 40, path))
    assert {name for name in ("h2d_ns", "network_ns") if row[name] is None} == null


@pytest.mark.parametrize("path", ["peer->gpu", "object->host", "host->peer"])
def test_hops_from_or_to_another_machine_are_network(tmp_path: Path, path: str) -> None:
    assert account(tmp_path, asked(0, 0), load(20, 45, path))["network_ns"] == 25


def test_a_run_that_records_hops_to_a_disk_would_have_recorded_the_network(tmp_path: Path) -> None:
    assert account(tmp_path, asked(0, 0), load(20, 45, "disk->host"))["network_ns"] == 0


def test_bytes_are_those_that_reached_the_gpu(tmp_path: Path) -> None:
    row = account(
        tmp_path, asked(0, 768), loaded(768, path="disk->host", bytes=100), loaded(768, bytes=100),
        loaded(512, "failed", bytes=70),
    )  # fmt: skip
    assert row["loaded_bytes"] == 100


def test_a_load_that_does_not_say_its_bytes_leaves_them_unknown(tmp_path: Path) -> None:
    assert account(tmp_path, asked(0, 768), loaded(768, bytes=100), loaded(256))["loaded_bytes"] is None


def test_the_last_store_completes_when_its_state_is_usable(tmp_path: Path) -> None:
    row = account(
        tmp_path, asked(), store(90, 120, usable_ns=125), store(95, 110), store(95, 300, outcome="failed")
    )
    assert row["store_completed_ns"] == 125


def test_a_store_that_is_open_has_not_completed(tmp_path: Path) -> None:
    assert account(tmp_path, asked(), store(90, 120), store(95, None))["store_completed_ns"] is None


def test_a_handoff_is_no_external_hit(tmp_path: Path) -> None:
    handoff = loaded(1535, path="peer->gpu", purpose="handoff", bytes=9)
    row = account(tmp_path, asked(0, 1535), handoff, prefill(1535, 1))
    assert (row["external_hit_tokens"], row["loaded_bytes"]) == (0, 9)


def test_a_handoff_beside_a_reuse_tells_no_split(tmp_path: Path) -> None:
    both = [loaded(1024, path="peer->gpu", purpose="handoff"), loaded(512, purpose="reuse")]
    assert account(tmp_path, asked(0, 1535), *both, prefill(1535, 1))["external_hit_tokens"] is None


def test_a_step_that_puts_out_two_tokens_gives_each_half_of_the_time(tmp_path: Path) -> None:
    """Tokens at 60, then two at 70 and one at 90: times 5, 5, 20."""
    row = account(tmp_path, asked(), prefill(0, PROMPT), decode(70, 2), decode(90))
    assert (row["itl_p50_ns"], row["itl_p99_ns"]) == (5, 20)


def test_one_token_has_no_time_between_tokens(tmp_path: Path) -> None:
    row = account(tmp_path, asked(), prefill(0, PROMPT))
    assert (row["itl_p50_ns"], row["itl_p99_ns"]) == (None, None)


def test_without_a_first_token_of_the_front_end_the_steps_tell_it(tmp_path: Path) -> None:
    row = account(tmp_path, asked(first_token_ns=None), prefill(0, PROMPT, 45), decode(75))
    assert row["ttft_ns"] == 65


def test_tokens_sorted_in_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [asked(name=f"r{n}") for n in range(9)] + [
        decode(70 + n + at * at, name=f"r{n}") for n in range(9) for at in range(5)
    ]
    whole = ledger(written(tmp_path / "whole", *rows))
    module = importlib.import_module("kvtrace.analyses.ledger.tokens_out")
    monkeypatch.setattr(module, "PART_ROWS", 7)
    assert ledger(written(tmp_path / "parts", *rows)).equals(whole)
    assert whole["itl_p99_ns"].null_count() == 0


def test_the_verdict_is_that_of_fallbacks(tmp_path: Path) -> None:
    run = written(tmp_path, asked(1408, 0), lookup(1280), prefill(1408, 128))
    assert ledger(run)["verdict"].to_list() == fallbacks(run)["verdict"].to_list() == ["shadowed"]


def test_an_id_without_a_request_row_has_what_was_seen_of_it(tmp_path: Path) -> None:
    row = account(tmp_path, asked(), loaded(256, request_id="stray", bytes=7), name="stray")
    assert (row["loaded_bytes"], row["h2d_ns"], row["status"], row["ttft_ns"]) == (7, 20, None, None)


def test_a_simulated_request_has_no_measured_time_and_no_status(tmp_path: Path) -> None:
    forecast = {
        "op": "request", "request_id": "s", "start_ns": 10, "first_token_ns": 40, "end_ns": 90,
        "status": "ok", "prompt_tokens": 100, "evidence": "predicted",
    }  # fmt: skip
    (row,) = ledger(write_run(tmp_path / "run", span=[forecast])).to_dicts()
    assert (row["ttft_ns"], row["status"]) == (None, None)
    seen = forecast | {"start_ns": 1000, "first_token_ns": 1050, "end_ns": 1100, "evidence": "native"}
    (row,) = ledger(write_run(tmp_path / "both", span=[forecast, seen])).to_dicts()
    assert (row["ttft_ns"], row["status"]) == (50, "ok")
