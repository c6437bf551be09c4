"""Laws of the key-event decoders: hostile bytes cost only themselves, and what was written is read back."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kvtrace.errors import KvtraceError
from kvtrace.schema.tables import TABLES
from kvtrace.schema.vocabulary import BLOCK_EVENTS, LOSS_CAUSES, MODES, TIERS
from kvtrace.sources import lmcache_coordinator, lmcache_storage_trace, vllm_kv_events
from kvtrace.sources.decoded import Options
from kvtrace.sources.numbering import Numbering
from kvtrace.sources.stream import open_input
from kvtrace.sources.vllm_kv_events.wire import pack
from tests.samples import SAMPLES

if TYPE_CHECKING:
    from kvtrace.sources.decoded import Decoded, Format

RECORDED = Path(__file__).parents[1] / "unit/sources/recorded/lmcache-coordinator.jsonl"
AT = 1_795_963_408.5
UINT64 = st.integers(0, 2**64 - 1)
HASHES = UINT64 | st.integers(-(2**63), -1) | st.binary(min_size=1, max_size=32)
NAMES = ["type", "block_hashes", "medium", "token_ids", "parent_block_hash", "group_idx", "x"]
TYPES = ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
EVENTS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4),
        st.binary(max_size=4),
    ),
    lambda inner: (
        st.lists(inner | st.sampled_from(TYPES), max_size=4)
        | st.dictionaries(
            st.sampled_from(NAMES) | st.text(max_size=3), inner | st.sampled_from(TYPES), max_size=5
        )
    ),
    max_leaves=12,
)  # fmt: skip


@cache
def lines() -> bytes:
    return (SAMPLES / "stores-dropped/raw/kv-events.jsonl").read_bytes()


@cache
def wire() -> bytes:
    """The same batches as the engine sent them, with made-up tokens."""
    sent = []
    for line in map(json.loads, lines().splitlines()):
        events = [
            {**event, "token_ids": list(range(count))} if (count := event.pop("token_count", 0)) else event
            for event in line["events"]
        ]
        sent.append(pack("kv", line["seq"], msgspec.msgpack.encode([line["ts"], events, 0])))
    return b"".join(sent)


@cache
def frames() -> bytes:
    at, found = 0, []
    while at < len(wire()):
        _message, stop = vllm_kv_events.wire.message_at(wire(), at, 1 << 26)
        found.append((stop - at).to_bytes(4, "big") + wire()[at:stop])
        at = stop
    return b"".join(found)


@cache
def trace() -> bytes:
    return (SAMPLES / "stores-dropped/raw/storage.lct").read_bytes()


@cache
def reports() -> bytes:
    return RECORDED.read_bytes()


REAL: list[tuple[Any, Any]] = [
    (vllm_kv_events, lines),
    (vllm_kv_events, wire),
    (vllm_kv_events, frames),
    (lmcache_storage_trace, trace),
    (lmcache_coordinator, reports),
]
IDS = ["lines", "wire", "frames", "trace", "reports"]


def decode(decoder: Format, raw: bytes) -> list[Decoded]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        with open_input(file.name) as stream:
            decoder.looks_like(stream.peek(1 << 16))
            return list(decoder.read(stream, "file", Options(digest_key=b"key")))


def well_formed(parts: list[Decoded]) -> int:
    """Every row of every part fits its table; returns how many there are."""
    rows = 0
    for part in parts:
        assert all(loss.cause in LOSS_CAUSES and loss.count > 0 for loss in part.losses)
        for name, frame in part.tables.items():
            assert set(frame.columns) <= {column.name for column in TABLES[name]}
            rows += frame.height
        block = part.tables["block"]
        for column, words in (("event", BLOCK_EVENTS), ("tier", TIERS), ("mode", MODES)):
            if column in block.columns:
                assert set(block[column].drop_nulls()) <= set(words)
        assert block["time_ns"].drop_nulls().gt(0).all()
    return rows


def survives(decoder: Format, raw: bytes) -> int:
    """Rows of a damaged file; its own error is an answer too."""
    try:
        return well_formed(decode(decoder, raw))
    except KvtraceError:
        return 0


@pytest.mark.parametrize(("decoder", "real"), REAL, ids=IDS)
def test_the_files_themselves_are_read_without_loss(decoder: Format, real: Any) -> None:
    parts = decode(decoder, real())
    assert well_formed(parts) > 80
    assert not [loss for part in parts for loss in part.losses]


@pytest.mark.parametrize(("decoder", "real"), REAL, ids=IDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_file_that_is_cut_gives_what_came_before(decoder: Format, real: Any, data: st.DataObject) -> None:
    raw = real()
    shorter, longer = sorted(data.draw(st.tuples(*[st.integers(0, len(raw))] * 2)))
    assert survives(decoder, raw[:shorter]) <= survives(decoder, raw[:longer])


@pytest.mark.parametrize(("decoder", "real"), REAL, ids=IDS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_flipped_bits_never_raise_anything_else(decoder: Format, real: Any, data: st.DataObject) -> None:
    raw = bytearray(real())
    for at in data.draw(st.lists(st.integers(0, len(raw) * 8 - 1), min_size=1, max_size=8)):
        raw[at // 8] ^= 1 << at % 8
    survives(decoder, bytes(raw))


@pytest.mark.parametrize(("decoder", "real"), REAL, ids=IDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_bytes_in_the_middle_never_raise_anything_else(
    decoder: Format, real: Any, data: st.DataObject
) -> None:
    raw = real()
    at = data.draw(st.integers(0, len(raw)))
    survives(decoder, raw[:at] + data.draw(st.binary(max_size=40)) + raw[at:])


@pytest.mark.parametrize("decoder", [vllm_kv_events, lmcache_storage_trace, lmcache_coordinator])
@settings(deadline=None, max_examples=150)
@given(raw=st.binary(max_size=300))
@example(b"")
@example(b"\x93\xa0\x00\xc4\x01\x90")
@example(b'{"a":' * 2_000)
@example(b"[" * 100_000)
@example(b"\x91" * 100_000)
@example(b"\x1f\x8b")
def test_bytes_that_are_nothing_never_raise_anything_else(decoder: Format, raw: bytes) -> None:
    survives(decoder, raw)


@settings(deadline=None, max_examples=150)
@given(event=EVENTS)
def test_any_event_is_a_row_or_counted_and_its_neighbour_stays(event: Any) -> None:
    good = {"type": "BlockRemoved", "block_hashes": [1]}
    raw = pack("", 0, msgspec.msgpack.encode([AT, [event, good], 0]))
    parts = decode(vllm_kv_events, raw)
    well_formed(parts)
    assert "0000000000000001" in parts[-1].tables["block"]["key"].to_list()


@settings(deadline=None, max_examples=100)
@given(
    chains=st.lists(
        st.tuples(
            st.lists(HASHES, min_size=1, max_size=5),
            st.none() | UINT64,
            st.integers(1, 4),
            st.sampled_from(["GPU", "CPU", None]),
        ),
        max_size=6,
    ),
    positional=st.booleans(),
)  # fmt: skip
def test_what_a_publisher_sends_is_what_comes_out(chains: list[tuple[Any, ...]], positional: bool) -> None:  # noqa: FBT001
    """A round trip, against the obvious loop."""
    expected, sent = [], []
    for number, (hashes, parent, size, medium) in enumerate(chains):
        event = {
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
            "token_ids": list(range(size * len(hashes))), "block_size": size, "lora_id": None,
            "medium": medium,
        }  # fmt: skip
        events = [list(event.values()) if positional else event]
        sent.append(pack("", number, msgspec.msgpack.encode([AT + number, events, 0])))
        for block in hashes:
            expected.append((number, text(block), None if parent is None else text(parent), size, medium))
            parent = block
    found = decode(vllm_kv_events, b"".join(sent))
    rows = pl.concat([part.tables["block"] for part in found])
    assert rows.select("seq", "key", "parent_key", "tokens", "medium_raw").rows() == expected


def text(key: int | bytes) -> str:
    return key.hex() if isinstance(key, bytes) else f"{key % 2**64:016x}"


@settings(deadline=None, max_examples=200)
@given(numbers=st.lists(st.integers(0, 12), unique=True, min_size=1, max_size=12))
def test_what_is_missing_is_what_never_came_in_whatever_order(numbers: list[int]) -> None:
    """One publisher, its batches in any order (a replay beside the stream), each with its own time."""
    numbers = [min(numbers), *[number for number in numbers if number != min(numbers)]]
    counting = Numbering()
    assert all(counting.take(number, 1_000 + number) for number in numbers)
    assert not any(counting.take(number, 1_000 + number) for number in numbers)
    losses = list(counting.losses("file", "events"))
    missing = sum(loss.count for loss in losses if loss.cause == "sequence_gap")
    assert missing == max(numbers) - min(numbers) + 1 - len(numbers)
    assert [loss.count for loss in losses if loss.cause == "duplicate"] == [len(numbers)]
    assert counting.restarts == 0
