"""KV events of the wire are the rows that the engine's own scheduler writes, and say what is missing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.schema.tables import BLOCK
from kvtrace.sources import vllm_kv_events
from kvtrace.sources.decoded import Decoded, Options
from kvtrace.sources.stream import Limits, open_input
from kvtrace.sources.vllm_kv_events import rows as made
from kvtrace.sources.vllm_kv_events.reading import Reading
from kvtrace.sources.vllm_kv_events.wire import pack
from tests.samples import samples

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND = 1_000_000_000
RECORDED = Path(__file__).parent / "recorded"
AT = 1_795_963_408.5
Event = dict[str, Any]


def stored(
    *hashes: Any, parent: Any = None, size: int = 2, tokens: list[int] | None = None, **more: Any
) -> Event:
    ids = list(range(size * len(hashes))) if tokens is None else tokens
    return {
        "type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": ids,
        "block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None, **more,
    }  # fmt: skip


def removed(*hashes: Any, **more: Any) -> Event:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


def message(
    number: int, *events: Any, at: float | None = None, rank: int | None = 0, topic: str = ""
) -> bytes:
    payload = msgspec.msgpack.encode([AT + number if at is None else at, list(events), rank])
    return pack(topic, number, payload)


def decode(folder: Path, raw: bytes, key: bytes = b"key") -> Decoded:
    """All parts as one."""
    path = folder / "recording"
    path.write_bytes(raw)
    with open_input(path) as stream:
        parts = list(vllm_kv_events.read(stream, "recording", Options(digest_key=key)))
    return Decoded(
        tables={"block": pl.concat([part.tables["block"] for part in parts])},
        losses=tuple(loss for part in parts for loss in part.losses),
        content={"token_ids": sum(part.content.get("token_ids", 0) for part in parts)},
        notes=tuple(note for part in parts for note in part.notes),
    )


def block_rows(folder: Path, *messages: bytes) -> list[dict[str, Any]]:
    return decode(folder, b"".join(messages)).tables["block"].to_dicts()


def picked(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize(
    "sample", [one for one in samples() if (one / "raw/spool").is_dir()], ids=lambda sample: sample.name
)
def test_the_rows_are_those_that_the_scheduler_writes_of_the_same_batches(
    sample: Path, tmp_path: Path
) -> None:
    raw = sample / "raw"
    native = open_run(import_files([raw / "spool"], tmp_path / "run").run).sql(
        "SELECT * FROM block WHERE key_space LIKE 'vllm:%'"
    )
    own = decode(tmp_path, (raw / "kv-events.jsonl").read_bytes()).tables["block"]
    unknown = ["run_id", "time_ns", "engine", "process", "key_space"]
    columns = [column.name for column in BLOCK if column.name not in unknown]
    compared = own.with_columns(pl.lit(None).alias(name) for name in columns if name not in own.columns)
    assert own.height > 90
    # the connector's name is not on the wire: below the GPU only the scheduler knows the component
    known = native.with_columns(pl.when(pl.col("tier") == "gpu").then("component").alias("component"))
    assert sorted(compared.select(columns).rows(), key=repr) == sorted(known.select(columns).rows(), key=repr)
    assert own["key_space"].unique().to_list() == ["vllm:unknown:unknown"]
    distance = own["time_ns"].sort() - native["time_ns"].sort()
    assert distance.abs().max() < SECOND  # type: ignore[operator]  # a number: there are rows


def test_a_chain_has_parents_tokens_and_hexadecimal_keys(tmp_path: Path) -> None:
    found = block_rows(tmp_path, message(0, stored(0x1F, 2**64 - 1, parent=7, group_idx=3)))
    assert picked(found, "event", "key", "parent_key", "tokens", "object_group", "seq") == [
        ("stored", "000000000000001f", "0000000000000007", 2, "3", 0),
        ("stored", "ffffffffffffffff", "000000000000001f", 2, "3", 0),
    ]
    assert (
        picked(found, "time_ns", "tier", "component", "medium_raw", "evidence")
        == [(round(AT * 1e9), "gpu", "vllm.gpu", "GPU", "native")] * 2
    )


def test_tagged_maps_and_positional_arrays_give_the_same_rows(tmp_path: Path) -> None:
    """engines/vllm.md 6, engines/others.md 3.5: older engines publish arrays."""
    events = [stored(1, 2), removed(1), {"type": "AllBlocksCleared"}]
    arrays = [list(event.values()) for event in events]
    assert block_rows(tmp_path, message(0, *events)) == block_rows(tmp_path, message(0, *arrays))


def test_sglang_before_0_5_23_appends_the_salt_of_a_request_as_a_map(tmp_path: Path) -> None:
    """SGLang 0.5.18: [..., lora_id, medium, {"cache_salt"}]; an event without a salt ends at its medium."""
    plain = ["BlockStored", [1], None, [5, 6], 2, None, "CPU_PINNED"]
    found = decode(tmp_path, message(0, plain, [*plain, {"cache_salt": "secret"}]))
    assert (
        picked(found.tables["block"].to_dicts(), "key", "tier", "tokens", "medium_raw")
        == [("0000000000000001", "host", 2, "CPU_PINNED")] * 2
    )
    assert (found.losses, found.content) == ((), {"token_ids": 4})
    assert "secret" not in repr(found)


@pytest.mark.parametrize("form", [dict, list], ids=["maps", "arrays"])
def test_pairs_of_tokens_are_the_tokens_that_they_begin_with(tmp_path: Path, form: type[Any]) -> None:
    """SGLang with EAGLE: a block's tokens come as pairs (token, the next one)."""
    ones, pairs = stored(1, tokens=[7, 8]), stored(2, tokens=[[7, 8], [8, 9]])  # type: ignore[list-item]
    raw = [event if form is dict else list(event.values()) for event in (ones, pairs)]
    found = decode(tmp_path, message(0, *raw))
    first, second = found.tables["block"].to_dicts()
    assert (found.losses, found.content) == ((), {"token_ids": 4})
    assert (second["tokens"], second["token_digest"]) == (2, first["token_digest"])


@pytest.mark.parametrize("tokens", [[[7, 8], 9], [[7], [8]], ["ab"], [[7, "x"]]])
def test_tokens_of_any_other_form_cost_their_event_alone(tmp_path: Path, tokens: list[Any]) -> None:
    found = decode(tmp_path, message(0, stored(1, tokens=tokens), removed(2)))
    assert [loss.count for loss in found.losses] == [1]
    assert picked(found.tables["block"].to_dicts(), "event") == [("removed",)]


def test_one_key_is_one_text_signed_or_unsigned_integer(tmp_path: Path) -> None:
    """engines/others.md 1.2: hashes are i64 or u64."""
    key = 2**64 - 5
    (unsigned,) = block_rows(tmp_path, message(0, removed(key)))
    (signed,) = block_rows(tmp_path, message(0, removed(key - 2**64)))
    assert unsigned == signed
    mixed = block_rows(tmp_path, message(0, removed(key, key - 2**64)))
    assert picked(mixed, "key") == [("fffffffffffffffb",)] * 2


def test_a_key_of_bytes_is_hexadecimal_too(tmp_path: Path) -> None:
    """engines/vllm.md 6: 32-byte digests with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0."""
    digest = bytes(range(32))
    found = block_rows(tmp_path, message(0, stored(digest, b"\x01\xff", parent=b"\x07")))
    assert picked(found, "key", "parent_key") == [(digest.hex(), "07"), ("01ff", digest.hex())]
    line = {"topic": "", "seq": 0, "ts": AT, "events": [removed(digest.hex())]}
    (text,) = block_rows(tmp_path, json.dumps(line).encode())
    assert text["key"] == digest.hex()


@pytest.mark.parametrize(
    ("medium", "owner", "tier", "component"),
    [
        ("GPU", None, "gpu", "vllm.gpu"),
        (None, None, "gpu", "vllm.gpu"),
        ("CPU", None, "host", None),
        ("CPU_PINNED", None, "host", None),
        ("STORAGE", None, "unknown", None),
        ("STORAGE", "fs", "disk", "vllm.offloading.fs"),
        ("STORAGE", "obj", "object", "vllm.offloading.obj"),
        ("STORAGE", "p2p", "peer", "vllm.offloading.p2p"),
        ("DISK", None, "disk", None),
        ("EXTERNAL", None, "unknown", None),
        ("BUBBLE", None, "unknown", None),
    ],
)
def test_a_medium_is_a_tier_and_stays_in_its_own_words(
    tmp_path: Path, medium: str | None, owner: str | None, tier: str, component: str | None
) -> None:
    """engines/vllm.md 6, engines/others.md 1.2 and 3.5."""
    found = block_rows(tmp_path, message(0, removed(1, medium=medium, ownership=owner)))
    assert picked(found, "tier", "component", "medium_raw") == [(tier, component, medium)]


def test_placeholders_of_offloaded_blocks_form_no_chain(tmp_path: Path) -> None:
    """engines/vllm.md 6: block_size 0 and no tokens unless self_describing_kv_events is set."""
    found = block_rows(tmp_path, message(0, stored(1, 2, size=0, medium="CPU", locality="LOCAL")))
    assert (
        picked(found, "parent_key", "tokens", "token_digest", "locality") == [(None, None, None, "local")] * 2
    )


def test_clearing_without_a_medium_clears_the_gpu_alone(tmp_path: Path) -> None:
    """engines/vllm.md 6: reset_prefix_cache leaves the CPU tier valid, and it serves the next request."""
    found = block_rows(tmp_path, message(0, stored(1, medium="CPU"), {"type": "AllBlocksCleared"}))
    assert picked(found, "event", "key", "tier", "component") == [
        ("stored", "0000000000000001", "host", None), ("cleared", None, "gpu", "vllm.gpu"),
    ]  # fmt: skip


def test_children_told_before_their_parents_have_the_same_digests(tmp_path: Path) -> None:
    """engines/vllm.md 6: hashes were emitted 3, 2, 1."""
    chain = [stored(1, tokens=[5, 6]), stored(2, parent=1, tokens=[7, 8]), stored(3, parent=2, tokens=[9, 1])]
    forth = block_rows(tmp_path, message(0, *chain))
    back = block_rows(tmp_path, message(0, *reversed(chain)))
    assert picked(reversed(back), "key", "token_digest") == picked(forth, "key", "token_digest")
    assert len({row["token_digest"] for row in back}) == 3
    assert None not in {row["token_digest"] for row in back}


def test_a_digest_is_of_the_block_and_all_before_it(tmp_path: Path) -> None:
    one = block_rows(tmp_path, message(0, stored(1, 2, tokens=[1, 2, 3, 4])))
    parts = block_rows(
        tmp_path, message(0, stored(10, tokens=[1, 2])), message(1, stored(11, parent=10, tokens=[3, 4]))
    )
    other = block_rows(tmp_path, message(0, stored(1, 2, tokens=[1, 9, 3, 4])))
    assert picked(one, "token_digest") == picked(parts, "token_digest")
    assert not set(picked(one, "token_digest")) & set(picked(other, "token_digest"))


def test_a_digest_is_null_where_the_parent_was_not_seen_or_the_tokens_are_no_blocks(tmp_path: Path) -> None:
    found = block_rows(tmp_path, message(0, stored(1, parent=99), stored(2, 3, tokens=[1, 2, 3])))
    assert picked(found, "token_digest") == [(None,)] * 3


def test_a_digest_needs_the_key_of_the_import(tmp_path: Path) -> None:
    raw = message(0, stored(1))
    one, other = (decode(tmp_path, raw, key).tables["block"]["token_digest"][0] for key in (b"a", b"b"))
    assert one != other


def test_token_ids_are_counted_and_dropped(tmp_path: Path) -> None:
    found = decode(tmp_path, message(0, stored(1, 2, tokens=[77_001, 77_002, 77_003, 77_004])))
    assert found.content == {"token_ids": 4}
    assert "7700" not in repr(found.tables["block"].to_dicts())


def test_a_missing_number_is_a_gap_with_its_time(tmp_path: Path) -> None:
    found = decode(tmp_path, message(0, removed(1)) + message(3, removed(2)) + message(4, removed(3)))
    assert [(loss.cause, loss.count, loss.from_ns, loss.to_ns) for loss in found.losses] == [
        ("sequence_gap", 2, round(AT * 1e9), round((AT + 3) * 1e9))
    ]


def test_a_replay_that_fills_a_gap_leaves_no_loss(tmp_path: Path) -> None:
    """engines/vllm.md 6: replayed batches come on their own socket, and end with number -1."""
    raw = b"".join(message(number, removed(number)) for number in (0, 1, 4, 2, 3, 5))
    found = decode(tmp_path, raw + pack("", -1, b""))
    assert found.losses == ()
    assert found.tables["block"].height == 6


def test_a_batch_that_comes_twice_counts_once(tmp_path: Path) -> None:
    found = decode(tmp_path, message(0, removed(1)) + message(1, removed(2)) * 2 + message(2, removed(3)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("duplicate", 1)]
    assert found.tables["block"].height == 3


def test_a_restart_is_no_gap(tmp_path: Path) -> None:
    raw = b"".join(message(at, removed(at)) for at in range(3))
    raw += b"".join(message(number, removed(number), at=AT + 10 + number) for number in range(2))
    found = decode(tmp_path, raw)
    assert found.losses == ()
    assert found.tables["block"].height == 5
    assert any("began anew 1 times" in note for note in found.notes)


def test_a_restart_whose_first_batches_are_missing_is_a_gap(tmp_path: Path) -> None:
    raw = b"".join(message(at, removed(at)) for at in range(9)) + message(4, removed(1), at=AT + 100)
    (gap,) = decode(tmp_path, raw).losses
    assert (gap.cause, gap.count, gap.from_ns) == ("sequence_gap", 4, round((AT + 8) * 1e9))


def test_a_recording_that_begins_late_says_so_and_has_no_gap(tmp_path: Path) -> None:
    found = decode(tmp_path, message(5, removed(1)))
    assert found.losses == ()
    assert any("begins with batch 5" in note for note in found.notes)


def test_every_rank_has_its_own_numbers_and_engine(tmp_path: Path) -> None:
    """engines/vllm.md 6: a port and a count a data-parallel rank."""
    raw = b"".join(message(number, removed(1), rank=rank, topic="kv") for number in (0, 1) for rank in (0, 1))
    found = decode(tmp_path, raw)
    assert found.losses == ()
    assert found.tables["block"]["engine"].to_list() == [None, "kv/dp1"] * 2


def test_fields_of_a_later_version_are_counted_and_change_nothing(tmp_path: Path) -> None:
    later = decode(tmp_path, message(0, stored(1, novelty=[1]), removed(2, novelty=2)))
    assert later.tables["block"].equals(decode(tmp_path, message(0, stored(1), removed(2))).tables["block"])
    assert later.notes == (
        "unknown fields: BlockStored.novelty (1), BlockRemoved.novelty (1)",
    )  # fmt: skip


def test_an_unknown_event_keeps_its_name_and_its_keys(tmp_path: Path) -> None:
    raw = message(0, {"type": "BlockMoved", "block_hashes": [5], "medium": "CPU"}, ["Odd", 1], removed(1))
    found = decode(tmp_path, raw)
    assert picked(found.tables["block"].to_dicts(), "event", "key", "tier", "reason") == [
        (None, "0000000000000005", "host", "BlockMoved"), (None, None, None, "Odd"),
        ("removed", "0000000000000001", "gpu", None),
    ]  # fmt: skip
    assert found.notes[0] == "unknown events: BlockMoved (1), Odd (1)"


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "BlockStored"},
        removed(1.5),
        removed(True),  # noqa: FBT003 - as it may come over the wire
        stored(1, size=-1, tokens=[]),
        stored(1, size=2**63, tokens=[]),
        removed(1, medium=5),
        {"no": "type"},
        {"type": 7},
        [],
        [[]],
        5,
        None,
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_its_neighbours_stay(tmp_path: Path, bad: Any) -> None:
    found = decode(tmp_path, message(0, removed(1), bad, removed(2)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert picked(found.tables["block"].to_dicts(), "key") == [("0000000000000001",), ("0000000000000002",)]


@pytest.mark.parametrize("at", [0.0, -1.0, 1e12, 1e300, float("nan"), float("inf")])
def test_a_batch_of_an_impossible_time_is_set_aside(tmp_path: Path, at: float) -> None:
    found = decode(tmp_path, message(0, removed(1), at=at) + message(1, removed(2)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("impossible_time", 1)]
    assert found.tables["block"].height == 1


def test_frames_with_a_length_give_the_same_rows(tmp_path: Path) -> None:
    sent = [message(number, stored(number)) for number in range(3)]
    framed = b"".join(len(one).to_bytes(4, "big") + one for one in sent)
    assert decode(tmp_path, framed).tables["block"].equals(decode(tmp_path, b"".join(sent)).tables["block"])
    assert decode(tmp_path, gzip.compress(framed)).tables["block"].height == 3


def test_a_frame_without_a_message_costs_itself_alone(tmp_path: Path) -> None:
    sent = [message(0, removed(0)), b"\x93nothing", message(1, removed(1))]
    found = decode(tmp_path, b"".join(len(one).to_bytes(4, "big") + one for one in sent))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 2


def test_bytes_that_are_no_message_end_the_reading(tmp_path: Path) -> None:
    found = decode(tmp_path, message(0, removed(0)) + b"\xc1" + message(1, removed(1)))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 1


def test_a_payload_longer_than_allowed_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.sources.vllm_kv_events.Limits", lambda: Limits(max_message_bytes=500))
    found = decode(tmp_path, message(0, removed(0)) + message(1, removed(*range(1_000))))
    assert [(loss.cause, loss.count) for loss in found.losses] == [("undecodable", 1)]
    assert found.tables["block"].height == 1


def test_only_so_many_unknown_names_are_told_apart(tmp_path: Path) -> None:
    events = [removed(1, **{f"field{number}": 1}) for number in range(300)]
    (note,) = decode(tmp_path, message(0, *events)).notes
    assert note.count("(") == 101
    assert "others (200)" in note


def test_a_sequence_number_may_be_an_integer(tmp_path: Path) -> None:
    payload = msgspec.msgpack.encode([AT, [removed(1)], None])
    for number in (0, 200, 2**16, 2**33):
        found = decode(tmp_path, msgspec.msgpack.encode([b"topic", number, payload]))
        assert found.tables["block"]["seq"].to_list() == [number]


def test_a_torn_end_costs_the_last_message_alone(tmp_path: Path) -> None:
    raw = message(0, removed(1)) + message(1, removed(2))
    found = decode(tmp_path, raw[:-3])
    assert [(loss.cause, loss.detail) for loss in found.losses] == [("undecodable", "torn last message")]
    assert found.tables["block"].height == 1


def test_a_recording_comes_in_parts_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.sources.vllm_kv_events.reading.ROWS_A_PART", 10)
    monkeypatch.setattr("kvtrace.sources.stream.MIB", 256)
    path = tmp_path / "recording"
    path.write_bytes(b"".join(message(number, stored(number, parent=number - 1)) for number in range(2_000)))
    with open_input(path) as stream:
        parts = list(vllm_kv_events.read(stream, "recording", Options(digest_key=b"k")))
    assert len(parts) > 3
    assert sum(part.tables["block"].height for part in parts) == 2_000
    assert all(part.tables["block"].schema == parts[0].tables["block"].schema for part in parts)


def test_the_columns_are_those_of_the_table() -> None:
    table = {column.name for column in BLOCK}
    assert set(made.SHAPE) <= table


def test_what_vllm_itself_encodes_is_read_whole(tmp_path: Path) -> None:
    """engines/vllm.md 6: a batch is an array, an event a map with its type, defaults are left out."""
    found = decode(tmp_path, (RECORDED / "vllm-kv-events.msgpack").read_bytes())
    assert found.losses == ()
    assert not [note for note in found.notes if "unknown" in note]
    columns = ("seq", "event", "tier", "component", "tokens", "locality")
    assert picked(found.tables["block"].to_dicts(), *columns) == [
        (0, "stored", "gpu", "vllm.gpu", 16, None), (0, "stored", "gpu", "vllm.gpu", 16, None),
        (1, "stored", "host", None, None, None), (1, "stored", "host", None, None, None),
        (1, "stored", "host", None, None, None), (1, "removed", "gpu", "vllm.gpu", None, None),
        (2, "stored", "disk", "vllm.offloading.fs", 16, "local"),
        (2, "cleared", "gpu", "vllm.gpu", None, None),
    ]  # fmt: skip
    assert found.content == {"token_ids": 48}


def files() -> list[Path]:
    raw = [file for sample in samples() for file in (sample / "raw").rglob("*") if file.is_file()]
    return [*raw, *RECORDED.iterdir()]


@pytest.mark.parametrize("file", files(), ids=lambda file: f"{file.parent.parent.name}-{file.name}")
def test_it_looks_like_exactly_its_own_files(file: Path) -> None:
    with open_input(file) as stream:
        assert vllm_kv_events.looks_like(stream.peek(1 << 16)) is ("kv-events" in file.name)


def test_a_long_first_message_is_recognised_by_its_beginning() -> None:
    raw = message(0, stored(*range(20_000)))
    assert vllm_kv_events.looks_like(raw[: 1 << 16])
    assert vllm_kv_events.looks_like((len(raw).to_bytes(4, "big") + raw)[: 1 << 16])


def test_batches_without_events_come_in_parts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.sources.vllm_kv_events.reading.ROWS_A_PART", 10)
    reading = Reading("kv", Options(digest_key=b"k"))
    reading.add([json.dumps({"seq": n, "ts": AT + n, "events": []}).encode() for n in range(9)])
    assert not reading.full
    reading.add([json.dumps({"seq": 9, "ts": AT + 9, "events": []}).encode()])
    assert reading.full
    assert reading.take().tables["block"].height == 0
    assert not reading.full
