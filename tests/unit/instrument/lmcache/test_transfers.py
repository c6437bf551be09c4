"""Two ranks of one request at once: four events of each stay with their own.

rank 0   submitted ─ start ═════════════ end
rank 1         submitted ─ start ════════════════ end
"""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.instrument.lmcache.transfers import Transfers
from tests.unit.instrument.lmcache.literal import read

pytestmark = pytest.mark.usefixtures("told")


class Played:
    """Events one after the other."""

    def __init__(self) -> None:
        self.handlers = Transfers().handlers()
        self.rows: list[dict[str, Any]] = []

    def see(self, name: str, at: int, **said: Any) -> None:
        self.rows += read(self.handlers[name](0, at, "r", said))

    def spans(self) -> dict[int, dict[str, Any]]:
        """Parts of an operation as one."""
        found: dict[int, dict[str, Any]] = {}
        for row in self.rows:
            if "part" in row:
                found.setdefault(row["span_id"], {}).update(row)
        return found


def start(transfer: str, engine: int) -> dict[str, Any]:
    return {"device": "cpu", "engine_id": engine, "model_name": "m", "transfer_key": transfer}


def end(transfer: str, engine: int, **more: Any) -> dict[str, Any]:
    return {**start(transfer, engine), "total_bytes": 64, "num_tokens": 16, **more}


def test_stores_that_overlap_stay_apart() -> None:
    played = Played()
    played.see("mp.store.submitted", 10, device="cpu")
    played.see("mp.store.start", 11, **start("r#0", 1000))
    played.see("mp.store.submitted", 12, device="cpu")
    played.see("mp.store.start", 13, **start("r#1", 1001))
    played.see("mp.store.end", 20, **end("r#0", 1000, stored_count=3))
    played.see("mp.store.end", 22, **end("r#1", 1001, stored_count=2))
    found = [
        (row["op"], row["transfer_id"], row["attributes.engine_id"], row["submit_ns"], row["start_ns"],
         row["end_ns"], row["attributes.objects"], row["outcome"])
        for row in played.spans().values()
    ]  # fmt: skip
    assert found == [
        ("store", "r#0", 1000, 10, 11, 20, 3, "ok"), ("store", "r#1", 1001, 12, 13, 22, 2, "ok"),
    ]  # fmt: skip


def test_a_store_that_stored_nothing_is_a_drop_for_a_reason_that_nobody_says() -> None:
    played = Played()
    played.see("mp.store.start", 11, **start("r#0", 1000))
    played.see("mp.store.end", 20, **end("r#0", 1000, stored_count=0, total_bytes=0, num_tokens=0))
    (found,) = played.spans().values()
    assert (found["op"], found["outcome"], found["reason"]) == ("drop", "skipped", "unknown")


def test_a_retrieve_without_tokens_failed() -> None:
    played = Played()
    played.see("mp.retrieve.submitted", 10, device="cpu")
    played.see("mp.retrieve.start", 11, **start("r#0", 1000))
    played.see("mp.retrieve.end", 20, **end("r#0", 1000, retrieved_count=0, num_tokens=0))
    (found,) = played.spans().values()
    assert (found["op"], found["tier_from"], found["tier_to"]) == ("load", "host", "gpu")
    assert (found["outcome"], found["reason"], found["tokens"]) == ("failed", "unknown", 0)


def test_what_never_ends_stays_open() -> None:
    played = Played()
    played.see("mp.retrieve.start", 11, **start("r#0", 1000))
    (found,) = played.spans().values()
    assert found["part"] == "open"
    assert "submit_ns" not in found


def test_an_end_whose_start_was_dropped_is_a_row_without_a_start() -> None:
    played = Played()
    played.see("mp.retrieve.end", 20, **end("r#0", 1000, retrieved_count=3))
    played.see("mp.store.end", 21, **end("r#1", 1000, stored_count=0))
    load, drop = played.rows
    assert (load["op"], load["transfer_id"], load["end_ns"], load.get("start_ns")) == (
        "load",
        "r#0",
        20,
        None,
    )
    assert (drop["op"], drop["end_ns"], drop.get("start_ns")) == ("drop", 21, None)


def test_an_older_server_without_transfer_keys_pairs_by_worker() -> None:
    played = Played()
    for engine in (1000, 1001):
        played.see("mp.store.start", engine, device="cpu", engine_id=engine)
    played.see("mp.store.end", 2000, device="cpu", engine_id=1001, stored_count=1)
    ended = [row for row in played.spans().values() if "end_ns" in row]
    assert [(row["attributes.engine_id"], row["end_ns"]) for row in ended] == [(1001, 2000)]


def test_of_two_that_were_asked_for_the_older_begins_first() -> None:
    played = Played()
    for at in (10, 12):
        played.see("mp.store.submitted", at, device="cpu")
    for at in (20, 22):
        played.see("mp.store.start", at, **start(f"r#{at}", 1000))
    assert [(row["submit_ns"], row["start_ns"]) for row in played.spans().values()] == [(10, 20), (12, 22)]
