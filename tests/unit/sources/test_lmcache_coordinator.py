"""What LMCache servers report to their coordinator (engines/lmcache.md 3.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kvtrace.schema.tables import BLOCK, METRIC
from kvtrace.sources import lmcache_coordinator as coordinator
from kvtrace.sources.decoded import Decoded, Options
from kvtrace.sources.stream import open_input
from tests.samples import samples

RECORDED = Path(__file__).parent / "recorded" / "lmcache-coordinator.jsonl"
AT = 1_795_995_601.5


def key(chunk: str = "aa01", rank: int = 1, **more: Any) -> dict[str, Any]:
    kv_rank = 2 << 24 | rank << 16 | 1 << 8  # two nodes of one worker each: its local rank is 0
    found = {"chunk_hash_hex": chunk, "model_name": "tiny", "kv_rank": kv_rank, "object_group_id": 3}
    return found | {"cache_salt": "", **more}


def entry(chunk: str = "aa01", **more: Any) -> dict[str, Any]:
    return {"key": key(chunk), "size_bytes": 0, "token_ids": [], "token_offset": -1, **more}


def batch(seq: int = 1, *entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "instance_id": "a", "incarnation": 7, "seq": seq, "event_type": "store", "tier": "l1",
        "backend": "dram", "entries": list(entries) or [entry()], "shared": False, "ts": AT + seq,
        "capacity_bytes": 0, "capacity_revision": 0, **more,
    }  # fmt: skip


def body(*batches: Any) -> bytes:
    return json.dumps({"batches": list(batches)}).encode() + b"\n"


def decode(folder: Path, raw: bytes) -> Decoded:
    path = folder / "events.jsonl"
    path.write_bytes(raw)
    return read(path)


def read(path: Path) -> Decoded:
    with open_input(path) as stream:
        parts = list(coordinator.read(stream, path.name, Options(digest_key=b"key")))
    return Decoded(
        tables={name: pl.concat([part.tables[name] for part in parts]) for name in ("block", "metric")},
        identities=tuple(row for part in parts for row in part.identities),
        processes=parts[-1].processes,
        losses=tuple(loss for part in parts for loss in part.losses),
        content={"token_ids": sum(part.content.get("token_ids", 0) for part in parts)},
        notes=parts[-1].notes,
    )


def rows(found: Decoded, *names: str) -> list[tuple[Any, ...]]:
    return found.tables["block"].select(names).rows()


def test_a_store_is_a_row_a_key_with_its_bytes_and_tokens(tmp_path: Path) -> None:
    raw = body(batch(5, entry(size_bytes=512, token_ids=[9, 9, 9], token_offset=3)))
    found = decode(tmp_path, raw)
    assert rows(found, "event", "key_space", "key", "bytes", "tokens", "rank", "object_group", "seq") == [
        ("stored", "lmcache:unknown:tiny", "aa01", 512, 3, 1, "3", 5)
    ]
    assert rows(found, "time_ns", "tier", "component", "medium_raw", "process", "evidence") == [
        (round((AT + 5) * 1e9), "host", "lmcache.l1", "dram", "a", "native")
    ]
    assert found.content == {"token_ids": 3}
    assert [(row["process"], row["role"], row["product"]) for row in found.processes] == [
        ("a", "server", "lmcache")
    ]


@pytest.mark.parametrize(
    ("tier", "backend", "expected", "component"),
    [
        ("l1", "gds", "disk", "lmcache.l1"),
        ("l1", "novelty", "unknown", "lmcache.l1"),
        ("l2", "fs", "disk", "lmcache.l2.fs"),
        ("l2", "s3", "object", "lmcache.l2.s3"),
        ("l2", "mock", "unknown", "lmcache.l2.mock"),
    ],
)
def test_a_backend_is_a_medium(
    tmp_path: Path, tier: str, backend: str, expected: str, component: str
) -> None:
    """engines/lmcache.md 10: L2 is whatever the adapter is."""
    found = decode(tmp_path, body(batch(tier=tier, backend=backend, event_type="delete")))
    assert rows(found, "event", "tier", "component", "bytes") == [("removed", expected, component, None)]


def test_an_access_names_no_medium(tmp_path: Path) -> None:
    found = decode(tmp_path, body(batch(backend="", event_type="access")))
    assert rows(found, "event", "tier", "medium_raw", "bytes") == [("accessed", None, None, None)]


def test_a_declared_capacity_is_a_sample_and_no_limit_is_no_number(tmp_path: Path) -> None:
    config = {"event_type": "config", "entries": [], "capacity_revision": 1}
    found = decode(
        tmp_path, body(batch(1, **config, capacity_bytes=4096), batch(2, **config, capacity_bytes=0))
    )
    assert found.tables["block"].height == 0
    assert found.tables["metric"].select("name", "value", "process").rows() == [
        ("lmcache_coordinator_capacity_bytes", 4096.0, "a"),
        ("lmcache_coordinator_capacity_bytes", None, "a"),
    ]


def test_a_digest_is_of_the_first_chunk_alone_since_no_other_names_what_is_before(tmp_path: Path) -> None:
    first, later = (entry(token_ids=[1, 2], token_offset=offset) for offset in (0, 2))
    one, other = decode(tmp_path, body(batch(1, first, later))).tables["block"]["token_digest"]
    assert one is not None
    assert other is None


def test_a_salt_is_an_identity_and_never_written_down(tmp_path: Path) -> None:
    salted = entry(key=key(cache_salt="tenant-secret"))
    found = decode(tmp_path, body(batch(1, salted, salted, entry())))
    (identity,) = found.identities
    assert (identity["field"], identity["enforced_by"]) == ("cache_salt", "key")
    assert rows(found, "identity_id") == [(identity["identity_id"],)] * 2 + [(None,)]
    assert "secret" not in repr((found.identities, found.tables["block"].to_dicts(), found.notes))


def test_a_missing_batch_is_a_gap_and_a_repeated_one_counts_once(tmp_path: Path) -> None:
    """LMCache drops a batch that it could not send, and sends one again after a doubt."""
    found = decode(tmp_path, body(batch(1), batch(2), batch(2), batch(5)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("sequence_gap", 2), ("duplicate", 1)]
    assert found.tables["block"].height == 3


def test_a_restart_is_an_incarnation_and_no_gap(tmp_path: Path) -> None:
    found = decode(tmp_path, body(batch(1), batch(2), batch(1, incarnation=8)))
    assert found.losses == ()
    assert "a: restarted 1 times; what it held before is gone" in found.notes


def test_servers_are_counted_apart(tmp_path: Path) -> None:
    found = decode(tmp_path, body(batch(1), batch(1, instance_id="b"), batch(2), batch(2, instance_id="b")))
    assert found.losses == ()
    assert rows(found, "process") == [("a",), ("b",), ("a",), ("b",)]


def test_bodies_batches_lists_and_one_printed_body_are_the_same(tmp_path: Path) -> None:
    sent = [batch(1), batch(2)]
    ways = [
        body(*sent),
        b"".join(body(one) for one in sent),
        b"\n".join(json.dumps(one).encode() for one in sent),
        json.dumps(sent).encode(),
        json.dumps({"batches": sent}, indent=2).encode(),
        b"\xef\xbb\xbf" + json.dumps(sent, indent=4, sort_keys=True).encode(),
    ]
    found = [decode(tmp_path, way) for way in ways]
    assert all(one.tables["block"].equals(found[0].tables["block"]) for one in found)
    assert all(one.losses == () for one in found)
    assert all(coordinator.looks_like(way) for way in ways)
    assert found[0].tables["block"].height == 2


def test_an_unknown_time_is_null_and_an_impossible_one_is_set_aside(tmp_path: Path) -> None:
    assert rows(decode(tmp_path, body(batch(ts=0.0))), "time_ns") == [(None,)]
    for at in (-1.0, 1e300):
        found = decode(tmp_path, body(batch(ts=at)))
        assert [(loss.cause, loss.count) for loss in found.losses] == [("impossible_time", 1)]


def test_fields_and_events_of_a_later_version_are_counted_and_kept(tmp_path: Path) -> None:
    later = entry(novelty=1, key=key(shard=2))
    found = decode(tmp_path, body(batch(1, later, zone="z"), batch(2, event_type="pin", entries=[])))
    assert rows(found, "event", "key", "reason") == [("stored", "aa01", None), (None, None, "pin")]
    assert found.notes[-1] == (
        "unknown events and fields: batch.zone (1), entry.novelty (1), key.shard (1), event pin (1)"
    )


@pytest.mark.parametrize(
    "bad",
    [
        batch(entries=[{"key": 5}]),
        batch(entries=[{}]),
        batch(seq=-1),
        batch(seq=2**64, ts=AT),
        batch(entries=[entry(size_bytes=-5)]),
        batch(entries=[entry(size_bytes=2**70)]),
        batch(ts="x"),
        {"instance_id": "a"},
        5,
        None,
        [],
    ],
)
def test_a_batch_that_cannot_be_read_costs_itself_alone(tmp_path: Path, bad: Any) -> None:
    found = decode(tmp_path, body(batch(1), bad, batch(2)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert rows(found, "key") == [("aa01",)] * 2


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    found = decode(tmp_path, body(batch(1)) + body(batch(2))[:-30])
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 1


def test_a_line_that_is_none_costs_itself_alone(tmp_path: Path) -> None:
    found = decode(tmp_path, body(batch(1)) + b"{torn\n" + body(batch(2)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 2


def test_a_recorded_server_is_read_whole() -> None:
    """A law of it: what is removed was stored before, under the same key, rank and component."""
    found = read(RECORDED)
    assert found.losses == ()
    assert found.notes == (
        "times are those of the sending: events happened up to a flush interval (1 s) before",
    )
    block = found.tables["block"]
    assert block.group_by("event", "component").len().sort("event", "component").rows() == [
        ("accessed", "lmcache.l1", 60), ("accessed", "lmcache.l2.fs", 12), ("removed", "lmcache.l1", 30),
        ("stored", "lmcache.l1", 30), ("stored", "lmcache.l2.fs", 18),
    ]  # fmt: skip
    held: set[tuple[Any, ...]] = set()
    for event, *which in block.filter(component="lmcache.l1").select("event", "key", "rank").rows():
        if event == "stored":
            held.add(tuple(which))
        elif event == "removed":
            held.remove(tuple(which))
    assert held == set()
    assert found.content == {"token_ids": 3072}
    assert {column.name for column in BLOCK} >= set(block.columns)
    assert {column.name for column in METRIC} >= set(found.tables["metric"].columns)


def files() -> list[Path]:
    raw = [file for sample in samples() for file in (sample / "raw").rglob("*") if file.is_file()]
    return [*raw, *RECORDED.parent.iterdir()]


@pytest.mark.parametrize("file", files(), ids=lambda file: f"{file.parent.parent.name}-{file.name}")
def test_it_looks_like_exactly_its_own_files(file: Path) -> None:
    with open_input(file) as stream:
        assert coordinator.looks_like(stream.peek(1 << 16)) is (file.name == RECORDED.name)


def test_a_recording_of_capacities_alone_comes_in_parts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.sources.lmcache_coordinator.batches.ROWS_A_PART", 10)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(body(batch(n, event_type="config", entries=[])) for n in range(1, 96)))
    with open_input(path) as stream:
        parts = [
            part.tables["metric"].height for part in coordinator.read(stream, "x", Options(digest_key=b"k"))
        ]
    assert parts == [10] * 9 + [5]
