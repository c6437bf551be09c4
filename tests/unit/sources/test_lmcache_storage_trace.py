"""LMCache's storage trace: calls as rows, and nothing of what they do not tell (engines/lmcache.md 7.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from kvtrace.errors import InputError
from kvtrace.schema.tables import BLOCK, REQUEST_KEY
from kvtrace.sources import lmcache_hash_log
from kvtrace.sources import lmcache_storage_trace as trace
from kvtrace.sources.decoded import Decoded, Options
from kvtrace.sources.stream import open_input
from tests.samples import samples

if TYPE_CHECKING:
    from pathlib import Path

WALL = 1_795_988_197.25
NAME = "lmcache.v1.distributed.storage_manager.StorageManager."
RECORDED = [one for one in samples() if (one / "raw/storage.lct").is_file()]


def frame(value: Any) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


def header(**changed: Any) -> bytes:
    config = (
        '{"l1_manager_config": {"gds_l1_config": null, "read_ttl_seconds": 300, "write_ttl_seconds": 600}}'
    )
    found = {
        "type": "header", "magic": b"LMCT", "format_version": 1, "level": "storage",
        "trace_schema_version": 1, "t_mono_start": 7.0, "t_wall_start": WALL,
        "sm_config_json": config, "sm_config_digest": "",
    }  # fmt: skip
    return frame(found | changed)


def tagged(tag: str, value: Any) -> dict[str, Any]:
    return {"__t__": tag, "v": value}


def key(chunk: int, rank: int = 0, group: int = 0, **more: Any) -> dict[str, Any]:
    kv_rank = 2 << 24 | rank << 16 | 1 << 8  # two nodes of one worker each: its local rank is 0
    found = {
        "chunk_hash": bytes([chunk]) * 4,
        "model_name": "tiny",
        "kv_rank": kv_rank,
        "object_group_id": group,
    }
    return tagged("ObjectKey", found | more)


def call(name: str, at: float = 1.0, **args: Any) -> bytes:
    return frame({"type": "record", "t_mono": at, "t_wall": WALL + at, "qualname": NAME + name, "args": args})


def lookup(*keys: Any, request: str = "cmpl-1", **more: Any) -> bytes:
    spec = {"keys": list(keys), "num_kv_readers": 3, "policy": tagged("TrimPolicy", "PREFIX"), **more}
    return call(
        "submit_prefetch_task",
        spec=tagged("PrefetchRequestSpec", spec), external_request_id=request, skip_l2=False,
    )  # fmt: skip


def decode(folder: Path, raw: bytes) -> Decoded:
    path = folder / "storage.lct"
    path.write_bytes(raw)
    return read(path)


def read(path: Path) -> Decoded:
    with open_input(path) as stream:
        parts = list(trace.read(stream, path.name, Options()))
    return Decoded(
        tables={name: pl.concat([part.tables[name] for part in parts]) for name in ("block", "request_key")},
        losses=tuple(loss for part in parts for loss in part.losses),
        notes=tuple(note for part in parts for note in part.notes),
    )


def rows(found: Decoded, *names: str) -> list[tuple[Any, ...]]:
    return found.tables["block"].select(names).rows()


def test_every_call_is_a_row_a_key(tmp_path: Path) -> None:
    layout = tagged(
        "MemoryLayoutDesc", {"shapes": [[2, 8], [4]], "dtypes": ["torch.bfloat16", "torch.uint8"]}
    )
    raw = header() + call("reserve_write", keys=[key(1)], layout_desc=layout, mode="new")
    raw += call("finish_write", keys=[key(1), key(2)]) + lookup(key(1))
    raw += call("read_prefetched_results.__enter__", keys=[key(1)])
    raw += call("finish_read_prefetched", keys=[key(1)], read_locks=2)
    found = decode(tmp_path, raw)
    assert rows(found, "event", "key", "mode", "count", "bytes", "request_id", "ttl_ns", "reason") == [
        ("reserved", "01010101", "reserve", None, 36, None, 600 * 10**9, "asked"),
        ("written", "01010101", "write", None, None, None, None, "asked"),
        ("written", "02020202", "write", None, None, None, None, "asked"),
        ("locked", "01010101", "read", 3, None, "cmpl-1", 300 * 10**9, "asked"),
        ("accessed", "01010101", "read", None, None, None, None, "asked"),
        ("unlocked", "01010101", "read", 2, None, None, None, "asked"),
    ]
    assert set(rows(found, "tier", "component", "key_space", "evidence")) == {
        ("host", "lmcache.l1", "lmcache:unknown:tiny", "native")
    }
    assert set(rows(found, "time_ns")) == {(round((WALL + 1) * 1e9),)}
    assert found.losses == ()


def test_the_rank_is_the_global_one_of_the_packed_number(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + call("finish_write", keys=[key(1, rank=1, group=4)]))
    assert rows(found, "rank", "object_group") == [(1, "4")]


def test_all_ranks_and_groups_of_a_chunk_are_one_position(tmp_path: Path) -> None:
    """engines/lmcache.md 1.3: one chunk is world_size x n_object_groups objects."""
    keys = [key(chunk, rank, group) for chunk in (1, 2) for rank in (0, 1) for group in (0, 1)]
    found = decode(tmp_path, header() + lookup(*keys))
    assert found.tables["request_key"].select("request_id", "position", "key").rows() == [
        ("cmpl-1", 0, "01010101"), ("cmpl-1", 1, "02020202"),
    ]  # fmt: skip
    assert found.tables["block"].height == 8


@pytest.mark.parametrize("sample", RECORDED, ids=lambda sample: sample.name)
def test_a_requests_keys_are_those_of_the_hash_log(sample: Path) -> None:
    """A law: the two files tell of the same lookups; the log says more of each, never other keys."""
    found = read(sample / "raw/storage.lct")
    (log,) = (sample / "raw").glob("lookup_hashes*")
    logged = lmcache_hash_log.decode(log.read_bytes().splitlines(), log.name).keys
    columns = ("request_id", "position", "key_space", "key")
    assert found.tables["request_key"].height > 30
    assert set(found.tables["request_key"].select(columns).rows()) == {
        tuple(row[name] for name in columns) for row in logged
    }


@pytest.mark.parametrize("sample", RECORDED, ids=lambda sample: sample.name)
def test_a_recorded_trace_is_read_whole(sample: Path) -> None:
    found = read(sample / "raw/storage.lct")
    assert found.losses == ()
    assert not [note for note in found.notes if "unknown" in note]
    block = found.tables["block"]
    assert block["time_ns"].is_sorted()
    written, reserved = (set(block.filter(event=name)["key"]) for name in ("written", "reserved"))
    assert written <= reserved
    assert {column.name for column in BLOCK} >= set(block.columns)
    assert {column.name for column in REQUEST_KEY} >= set(found.tables["request_key"].columns)


def test_a_lookup_without_a_request_joins_nothing(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + lookup(key(1), request=""))
    assert found.tables["request_key"].height == 0
    assert rows(found, "event", "request_id") == [("locked", None)]


def test_the_reader_count_of_older_traces_is_one_more_than_its_extra(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + lookup(key(1), num_kv_readers=None, extra_count=1))
    assert rows(found, "count") == [(2,)]


def test_an_end_of_a_read_is_no_row_and_is_said(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + call("read_prefetched_results.__exit__", keys=[key(1)]))
    assert found.tables["block"].height == 0
    assert any("1 ends of reads" in note for note in found.notes)


def test_what_the_trace_does_not_hold_is_said(tmp_path: Path) -> None:
    """engines/lmcache.md 7.1: no results, durations, cache_salt."""
    assert any("cache salts" in note for note in decode(tmp_path, header()).notes)


@pytest.mark.parametrize(
    ("config", "tier", "medium"),
    [
        ('{"l1_manager_config": {"gds_l1_config": {"path": "x"}}}', "disk", "gds"),
        ('{"l1_manager_config": {"memory_config": {"devdax_path": "d"}}}', "host", "devdax"),
        ("", "unknown", None),
        ("[1]", "unknown", None),
    ],
)
def test_the_medium_of_l1_is_what_the_header_says(
    tmp_path: Path, config: str, tier: str, medium: str | None
) -> None:
    found = decode(tmp_path, header(sm_config_json=config) + call("finish_write", keys=[key(1)]))
    assert rows(found, "tier", "medium_raw", "ttl_ns") == [(tier, medium, None)]


def test_a_torn_last_record_is_an_unclean_end(tmp_path: Path) -> None:
    raw = header() + call("finish_write", keys=[key(1)])
    for cut in (1, 3, len(raw) - len(header()) - 1):
        found = decode(tmp_path, (raw + raw[len(header()) :])[: len(raw) + cut])
        assert [(loss.cause, loss.count) for loss in found.losses] == [("unclean_end", 1)]
        assert found.tables["block"].height == 1


@pytest.mark.parametrize(
    "bad",
    [
        frame(7),
        frame({"type": "novelty"}),
        call("finish_write", keys=5),
        call("finish_write"),
        call("finish_read_prefetched", keys=[key(1)], read_locks=-1),
        call("finish_read_prefetched", keys=[key(1)], read_locks="x"),
        lookup(7),
        b"\0\0\0\0",
        b"\0\0\0\1\xc1",
    ],
)
def test_a_record_that_cannot_be_read_is_counted(tmp_path: Path, bad: bytes) -> None:
    found = decode(tmp_path, header() + bad + call("finish_write", keys=[key(1)]))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert rows(found, "event") == [("written",)]


def test_calls_and_fields_of_a_later_version_are_kept_raw_and_counted(tmp_path: Path) -> None:
    raw = (
        header() + call("evict", keys=[key(1, salt="s")], why=[1]) + call("finish_write", keys=[key(2)], x=1)
    )
    found = decode(tmp_path, raw)
    assert rows(found, "event", "key", "reason") == [
        (None, "01010101", "evict"),
        ("written", "02020202", "asked"),
    ]
    assert found.notes[-1] == (
        "unknown calls and fields: evict(why) (1), ObjectKey.salt (1), evict (1), finish_write(x) (1)"
    )


def test_fields_of_a_later_specification_are_counted(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + lookup(key(1), novelty=1))
    assert rows(found, "event") == [("locked",)]
    assert found.notes[-1] == "unknown calls and fields: PrefetchRequestSpec.novelty (1)"


def test_keys_in_a_tuple_are_keys(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + call("finish_write", keys=tagged("tuple", [key(1)])))
    assert rows(found, "key") == [("01010101",)]


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e10, 1e11, 1e300])
def test_a_call_of_an_impossible_time_is_set_aside(tmp_path: Path, at: float) -> None:
    found = decode(tmp_path, header() + call("finish_write", at=at, keys=[key(1)]))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("impossible_time", 1)]


def test_traces_that_were_joined_have_their_own_clocks(tmp_path: Path) -> None:
    one = call("finish_write", keys=[key(1)])
    found = decode(tmp_path, header() + one + header(t_wall_start=WALL + 50) + one)
    first, second = found.tables["block"]["time_ns"]
    assert second - first == 50 * 10**9


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\0\1\x07", call("finish_write", keys=[key(1)]), b"{}", b"\xff" * 99]
)
def test_a_file_without_its_header_is_no_trace(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(InputError, match=r"storage\.lct: is "):
        decode(tmp_path, raw)


def test_a_frame_that_claims_too_much_ends_the_reading(tmp_path: Path) -> None:
    found = decode(tmp_path, header() + call("finish_write", keys=[key(1)]) + b"\xff\xff\xff\xff" + header())
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 1


def files() -> list[Path]:
    return [file for sample in samples() for file in (sample / "raw").rglob("*") if file.is_file()]


@pytest.mark.parametrize("file", files(), ids=lambda file: f"{file.parent.parent.name}-{file.name}")
def test_it_looks_like_exactly_its_own_files(file: Path) -> None:
    with open_input(file) as stream:
        assert trace.looks_like(stream.peek(1 << 16)) is (file.suffix == ".lct")
