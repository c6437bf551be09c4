"""LMCache's /status page: numbers by their path, and what it does not say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.sources import lmcache_status
from kvtrace.sources.decoded import Options
from kvtrace.sources.lmcache_status import decode, looks_like
from kvtrace.sources.stream import open_input
from tests.samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.sources.decoded import Decoded

PAGES = sorted(SAMPLES.glob("*/raw/lmcache-status.json"))


def values(found: Decoded) -> dict[str, float]:
    """Path, with its labels but the file's, -> value."""
    rows = found.tables["metric"].to_dicts() if found.tables else []
    named = {}
    for row in rows:
        labels = {entry["key"]: entry["value"] for entry in row["labels"]}
        assert labels.pop("kvtrace.source") == "s.json"
        named[row["name"] + (str(labels) if labels else "")] = row["value"]
    assert len(named) == len(rows)
    return named


def status(**page: Any) -> Decoded:
    return decode(json.dumps(page).encode(), "s.json")


def test_numbers_are_gauges_by_their_path_and_truth_is_one_or_zero() -> None:
    found = status(is_healthy=False, storage_manager={"l1_manager": {"total_object_count": 50, "ratio": 0.5}})
    assert values(found) == {
        "lmcache_status.is_healthy": 0.0,
        "lmcache_status.storage_manager.l1_manager.total_object_count": 50.0,
        "lmcache_status.storage_manager.l1_manager.ratio": 0.5,
    }
    frame = found.tables["metric"]
    assert set(frame["kind"]) == {"gauge"}
    assert frame["time_ns"].null_count() == frame["process"].null_count() == 3


def test_elements_of_lists_and_ids_are_labels() -> None:
    found = status(l2_adapters=[{"used": 1}, {"used": 2}], meta={"77": {"groups": [{"layers": [5, 6]}]}})
    assert values(found) == {
        "lmcache_status.l2_adapters.used{'index': '0'}": 1.0,
        "lmcache_status.l2_adapters.used{'index': '1'}": 2.0,
        "lmcache_status.meta.groups.layers{'id': '77', 'index': '0.0'}": 5.0,
        "lmcache_status.meta.groups.layers{'id': '77', 'index': '0.1'}": 6.0,
    }


def test_chunk_size_and_hash_algorithm_are_the_writers_identity() -> None:
    found = status(chunk_size=256, hash_algorithm="blake3", engine_type="MPCacheServer")
    assert [(row["side"], row["field"], row["value"], row["source"]) for row in found.identities] == [
        ("writer", "chunk_size", "256", "s.json"),
        ("writer", "hash_algorithm", "blake3", "s.json"),
    ]
    assert values(found) == {"lmcache_status.chunk_size": 256.0}


def test_healthy_is_said_to_mean_living_threads() -> None:
    # engines/lmcache.md 7.3: it stays true with a dead L2 backend
    assert "dead backend" in " ".join(status(is_healthy=True).notes)
    assert status(is_healthy=False).notes == ()


def test_texts_ids_and_nulls_are_left_out_and_counted() -> None:
    found = status(a="text", b=None, registered_gpu_ids=[210907388351695356], c=1)
    assert values(found) == {"lmcache_status.c": 1.0}
    assert found.notes == ("3 texts, ids and nulls of the page are no metrics; left out",)


def test_nesting_names_and_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": deep}
    found = status(deep=deep, big=10**400, ok=1, **{"k" * 201: 1})
    assert values(found) == {"lmcache_status.ok": 1.0}
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 3)]
    monkeypatch.setattr(lmcache_status, "MAX_ROWS", 2)
    found = status(a=[1, 2, 3, 4])
    assert len(values(found)) == 2
    assert [(loss.cause, loss.count) for loss in found.losses] == [("dropped", 2)]


@pytest.mark.parametrize("page", [b"", b"{", b"[1]", b"null", b"\xff", b"{" * 5, b'{"a":' * 100_000])
def test_a_page_that_is_no_object_is_a_loss(page: bytes) -> None:
    found = decode(page, "s.json")
    assert found.tables == {}
    assert [(loss.source, loss.cause, loss.count) for loss in found.losses] == [("s.json", "undecodable", 1)]


def test_a_page_that_is_too_long_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcache_status, "MAX_BYTES", 10)
    file = tmp_path / "s.json"
    file.write_text('{"chunk_size": 256}')
    with open_input(file) as stream:
        (found,) = lmcache_status.read(stream, "s.json", Options())
    assert found.tables == {}
    assert [loss.cause for loss in found.losses] == ["undecodable"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.parts[-3])
def test_recorded_pages_are_read_whole(file: Path) -> None:
    with open_input(file) as stream:
        (found,) = lmcache_status.read(stream, "s.json", Options())
    page = json.loads(file.read_bytes())
    named = values(found)
    l1 = page["storage_manager"]["l1_manager"]
    assert (
        named["lmcache_status.storage_manager.l1_manager.total_object_count"] == l1["total_object_count"] > 0
    )
    assert len(named) > 60
    assert found.losses == ()
    assert {row["field"]: row["value"] for row in found.identities} == {
        "chunk_size": "256", "hash_algorithm": "blake3",
    }  # fmt: skip


def test_of_all_recorded_files_only_status_pages_look_like_one() -> None:
    files = [path for path in SAMPLES.glob("*/raw/*") if path.is_file()]
    assert [path for path in files if looks_like(path.read_bytes()[: 1 << 16])] == [
        path for path in files if path.name == "lmcache-status.json"
    ]
    assert PAGES
