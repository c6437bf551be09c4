"""Mooncake's page about its KV events: whether there are any."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer import import_files
from kvtrace.importer.formats import format_of
from kvtrace.run import open_run
from kvtrace.sources.mooncake_kv_events_status import DISABLED, DROPPED, decode

if TYPE_CHECKING:
    from pathlib import Path

AS_SERVED = (
    b'{"enabled":false,"published_batches":0,"published_events":0,"dropped_events":0,'
    b'"skipped_unparsed_keys":0}'
)
"""What the master of mooncake-transfer-engine-non-cuda 0.3.13.post1 answers under --enable_kv_events."""


def test_a_page_that_was_kept_is_imported_with_what_it_denies(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(AS_SERVED)
    assert format_of(tmp_path / "status.json") == "mooncake-kv-events-status"
    report = import_files([tmp_path / "status.json"], tmp_path / "run")
    assert report.inputs[0].notes == (DISABLED,)
    rows = open_run(tmp_path / "run").sql("SELECT name, kind, value, time_ns FROM metric ORDER BY name")
    assert rows.rows() == [
        ("mooncake_kv_events.dropped_events", "counter", 0.0, None),
        ("mooncake_kv_events.enabled", "gauge", 0.0, None),
        ("mooncake_kv_events.published_batches", "counter", 0.0, None),
        ("mooncake_kv_events.published_events", "counter", 0.0, None),
        ("mooncake_kv_events.skipped_unparsed_keys", "counter", 0.0, None),
    ]


def test_what_was_dropped_is_a_loss_and_what_is_missing_is_not_zero() -> None:
    found = decode(json.dumps({"enabled": True, "published_events": 9, "dropped_events": 4}).encode(), "s")
    assert [(loss.cause, loss.op, loss.count, loss.detail) for loss in found.losses] == [
        ("dropped", "publish", 4, DROPPED)
    ]
    assert found.notes == ()
    assert found.tables["metric"]["name"].to_list() == [
        f"mooncake_kv_events.{name}" for name in ("enabled", "published_events", "dropped_events")
    ]


@pytest.mark.parametrize(
    "page", [b"", b"{", b"[]", b'{"enabled": 1}', b"\xff", b"[" * 100_000, b'{"published_events": 3}']
)
def test_anything_else_is_a_loss(page: bytes) -> None:
    found = decode(page, "s")
    assert not found.tables
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
