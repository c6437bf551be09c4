"""One published batch -> its events, typed; what the types do not fit is looked at field by field.

A batch is an array [ts, events, data-parallel rank]. An event is a map with its type inside (vLLM 0.32,
SGLang 0.5.23) or an array that begins with its type (before them, as SGLang 0.5.18). Hashes are
integers, signed or not, or bytes. A field that nobody knows is counted, an event that nobody knows keeps its
name and its keys.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

Hash = int | bytes | str
"""A block's key as it came: bytes are hexadecimal text in JSON."""
MAX_UNKNOWN_NAMES = 100
"""Names of unknown fields that a note tells apart; the rest count as one."""
_MAX_NAME = 80


H = TypeVar("H")
"""Of what type keys are: int | bytes in msgpack, int | str in JSON."""


class Stored(Struct, Generic[H], tag="BlockStored", forbid_unknown_fields=True, gc=False):
    """Blocks of one chain are there; `Raw` is known, and has no column.

    The order is that of positional arrays; `token_count` is what a recorder left of the token ids.
    """

    block_hashes: list[H]
    parent_block_hash: H | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: Raw = Raw()
    medium: str | None = None
    lora_name: Raw = Raw()
    extra_keys: Raw = Raw()
    group_idx: int | None = None
    kv_cache_spec_kind: Raw = Raw()
    kv_cache_spec_sliding_window: Raw = Raw()
    locality: str | None = None
    ownership: str | None = None
    session_id: Raw = Raw()
    cache_salt: Raw = Raw()
    block_mm_infos: Raw = Raw()
    is_eagle: Raw = Raw()
    token_count: Raw = Raw()


class Removed(Struct, Generic[H], tag="BlockRemoved", forbid_unknown_fields=True, gc=False):
    """Blocks are gone."""

    block_hashes: list[H]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: Raw = Raw()
    cache_salt: Raw = Raw()


class Cleared(Struct, tag="AllBlocksCleared", forbid_unknown_fields=True, gc=False):
    """All blocks of a pool are gone: of the GPU's where no medium is named."""

    medium: str | None = None


class StoredArray(Stored[int | bytes], tag="BlockStored", array_like=True, gc=False):
    """The same, positional: older vLLM, SGLang before 0.5.23.

    SGLang 0.5.18 appends a map {"cache_salt"} where its request has a salt: in the place of `lora_name`.
    """


class RemovedArray(Removed[int | bytes], tag="BlockRemoved", array_like=True, gc=False):
    """The same, positional."""


class ClearedArray(Cleared, tag="AllBlocksCleared", array_like=True, gc=False):
    """The same, positional."""


class Other(Struct, gc=False):
    """An event that this version does not know."""

    name: str
    block_hashes: list[Any]
    medium: str | None = None


Event = Stored[Any] | Removed[Any] | Cleared | Other
KINDS: dict[type[Any], str] = {
    Stored: "stored", StoredArray: "stored", Removed: "removed", RemovedArray: "removed",
    Cleared: "cleared", ClearedArray: "cleared", Other: "other",
}  # fmt: skip
"""Class -> the event of a row, as vocabulary.BLOCK_EVENTS has it; other = none of them."""


class Batch(Struct, array_like=True, gc=False):
    """A batch of tagged maps."""

    ts: float
    events: list[Stored[int | bytes] | Removed[int | bytes] | Cleared]
    data_parallel_rank: int | None = None


class BatchOfArrays(Struct, array_like=True, gc=False):
    """A batch of arrays."""

    ts: float
    events: list[StoredArray | RemovedArray | ClearedArray]
    data_parallel_rank: int | None = None


class BatchText(Struct, array_like=True, gc=False):
    """A batch of tagged maps in JSON."""

    ts: float
    events: list[Stored[int | str] | Removed[int | str] | Cleared]
    data_parallel_rank: int | None = None


class Loose(Struct, array_like=True, gc=False):
    """A batch whose events are looked at one by one."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


_MAPS = msgspec.msgpack.Decoder(Batch)
_ARRAYS = msgspec.msgpack.Decoder(BatchOfArrays)
_LOOSE = msgspec.msgpack.Decoder(Loose)
_FIELDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "BlockStored": (Stored, Stored.__struct_fields__),
    "BlockRemoved": (Removed, Removed.__struct_fields__),
    "AllBlocksCleared": (Cleared, Cleared.__struct_fields__),
}
_USED = {
    "parent_block_hash": Hash | None,
    "block_size": int,
    "medium": str | None,
    "group_idx": int | None,
    "locality": str | None,
    "ownership": str | None,
}


@dataclass(slots=True)
class Remarks:
    """What was met on the way: unknown fields and events by name, and events that could not be read."""

    fields: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    undecodable: int = 0

    def unknown_field(self, name: str) -> None:
        """One unknown field."""
        _count(self.fields, name)

    def unknown_event(self, name: str) -> None:
        """One unknown event."""
        _count(self.events, name)


def _count(counts: Counter[str], name: str) -> None:
    name = name[:_MAX_NAME]
    counts[name if name in counts or len(counts) < MAX_UNKNOWN_NAMES else "others"] += 1


def from_msgpack(payload: bytes | memoryview, remarks: Remarks) -> tuple[float, list[Any], int | None]:
    """Time in unix seconds, events and data-parallel rank of a batch.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: it is no batch.
    """
    for decoder in (_MAPS, _ARRAYS):
        try:
            batch: Any = decoder.decode(payload)
        except msgspec.ValidationError:
            continue
        return batch.ts, batch.events, batch.data_parallel_rank
    loose = _LOOSE.decode(payload)
    return loose.ts, one_by_one(loose.events, remarks), loose.data_parallel_rank


def one_by_one(events: list[Any], remarks: Remarks) -> list[Event]:
    """Events that the types did not fit; those that cannot be read are counted."""
    found: list[Event] = []
    for event in events:
        try:
            found.append(_event(event, remarks))
        except (ValueError, TypeError, KeyError, IndexError):
            remarks.undecodable += 1
    return found


def _event(event: Any, remarks: Remarks) -> Event:
    """An array or a map as an event.

    Raises:
        ValueError, TypeError, KeyError, IndexError: it is neither, or a field is of another type.
    """
    if isinstance(event, dict):
        name, given = event["type"], event
    else:
        name, given = event[0], None
    if not isinstance(name, str):
        raise TypeError(name)
    if name not in _FIELDS:
        return _other(name, event, remarks)
    kind, names = _FIELDS[name]
    if given is None:
        given = dict(zip(names, event[1:], strict=False))
        for place in range(len(names) + 1, len(event)):
            remarks.unknown_field(f"{name}[{place}]")
    used: dict[str, Any] = {}
    for key, value in given.items():
        if key == "block_hashes":
            used[key] = _hashes(value)
        elif key == "token_ids" and key in names:
            used[key] = _tokens(value)
        elif key in _USED and key in names:
            used[key] = msgspec.convert(value, _USED[key]) if key != "parent_block_hash" else _hash(value)
        elif key not in names and key != "type":
            remarks.unknown_field(f"{name}.{key}")
    made: Event = kind(**used)
    return made


def _other(name: str, event: Any, remarks: Remarks) -> Other:
    """An unknown event: a map may name keys and a medium as the known ones do."""
    remarks.unknown_event(name)
    given = event if isinstance(event, dict) else {}
    try:
        hashes = _hashes(given.get("block_hashes", []))
    except TypeError:
        hashes = []
    medium = given.get("medium")
    return Other(name[:_MAX_NAME], hashes, medium if isinstance(medium, str) else None)


def _tokens(value: Any) -> list[int]:
    """Token ids; with speculative decoding by EAGLE SGLang writes each as a pair with the one after it."""
    if isinstance(value, list) and value and all(isinstance(pair, list) for pair in value):
        return [first for first, _next in msgspec.convert(value, list[tuple[int, int]])]
    return msgspec.convert(value, list[int])


def _hashes(value: Any) -> list[Any]:
    if not isinstance(value, list) or any(isinstance(item, bool) for item in value):
        raise TypeError(value)
    return [_hash(item) for item in value]


def _hash(value: Any) -> Hash | None:
    if value is None or isinstance(value, (int, bytes, str)):
        return value
    raise TypeError(type(value))
