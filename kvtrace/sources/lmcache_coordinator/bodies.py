"""The bodies of `POST /events`, batch by batch (LMCache 0.5.5, `mp_coordinator/api.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

if TYPE_CHECKING:
    from collections.abc import Callable

BAD = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What reading a body that is none may raise."""


class Key(Struct, forbid_unknown_fields=True):
    """One object: a chunk of one rank and one object group, of one tenant."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class Entry(Struct, forbid_unknown_fields=True):
    """What happened to one key; offset -1 = unknown, no tokens = not reported."""

    key: Key
    size_bytes: int = 0
    token_ids: list[int] = []
    token_offset: int = -1


class Batch(Struct, forbid_unknown_fields=True):
    """Events of one kind; `ts` 0 = unknown, `backend` is empty for an access."""

    instance_id: str
    incarnation: int
    seq: int
    event_type: str
    tier: str = ""
    backend: str = ""
    entries: list[Entry] = []
    shared: bool = False
    ts: float = 0.0
    capacity_bytes: int = 0
    capacity_revision: int = 0


class Body(Struct):
    """A body, its batches not looked at."""

    batches: list[Raw] | None = None


_BATCH = msgspec.json.Decoder(Batch)
_BODY = msgspec.json.Decoder(Body)
_RAWS = msgspec.json.Decoder(list[Raw])
_ANY = msgspec.json.Decoder()
_KNOWN = {
    "batch": Batch.__struct_fields__,
    "entry": Entry.__struct_fields__,
    "key": Key.__struct_fields__,
}


def is_whole(line: bytes) -> bool:
    """Whether a line may be a body by itself: it ends what it begins."""
    text = line.strip()
    return (text[:1], text[-1:]) in ((b"{", b"}"), (b"[", b"]"))


def split(text: bytes) -> list[Any]:
    """The batches of a body, of a list, or the one that it is.

    Raises:
        BAD: it is none of them.
    """
    if text.startswith(b"["):
        return _RAWS.decode(text)
    found = _BODY.decode(text).batches
    return [text] if found is None else found


def batch_of(raw: Raw | bytes, count: Callable[[str], None]) -> Batch:
    """A batch; what a later version adds to it is counted by name.

    Raises:
        BAD: it is none.
    """
    try:
        return _BATCH.decode(raw)
    except msgspec.ValidationError:
        found = _ANY.decode(raw)
    _strip(found, "batch", count)
    for entry in found.get("entries") or []:
        _strip(entry, "entry", count)
        _strip(entry.get("key"), "key", count)
    return msgspec.convert(found, Batch)


def is_json(text: bytes) -> bool:
    """Whether it is one JSON value."""
    try:
        _ANY.decode(text)
    except BAD:
        return False
    return True


def _strip(fields: Any, what: str, count: Callable[[str], None]) -> None:
    """Take away and count what is unknown.

    Raises:
        TypeError: it has no fields.
    """
    if not isinstance(fields, dict):
        raise TypeError(what)
    for name in sorted(fields.keys() - _KNOWN[what]):
        del fields[name]
        count(f"{what}.{name}")
