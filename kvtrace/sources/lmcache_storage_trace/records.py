"""What lies in a frame: a header, or a call; LMCache tags types: {"__t__": "ObjectKey", "v": {...}}.

An argument stays as it came until its call is known; of a tagged value the tag is not looked at.
"""

from __future__ import annotations

import math

import msgspec
from msgspec import Raw, Struct

VERSION = 1
MAGIC = b"LMCT"
BAD = (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError, OverflowError)
"""What reading a frame that is none, or of another version, may raise."""
_MAX_DIMENSIONS = 16
_KNOWN = {
    "ObjectKey": frozenset({"chunk_hash", "model_name", "kv_rank", "object_group_id"}),
    "PrefetchRequestSpec": frozenset(
        {
            "keys", "num_kv_readers", "extra_count", "policy", "attn_desc", "group_layout_descs",
            "layout_desc", "mode",
        }
    ),
}  # fmt: skip
"""Tag -> the fields that LMCache 0.5.5 gives it."""
_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
"""Bytes of an element by dtype."""


class Header(Struct, tag="header"):
    """The first frame: unix seconds at which the trace began, and the server's configuration."""

    magic: bytes
    t_wall_start: float
    format_version: int = VERSION
    sm_config_json: str = ""


class Record(Struct, tag="record"):
    """A call, seconds after the beginning."""

    t_mono: float
    qualname: str
    args: dict[str, Raw]


class Key(Struct):
    """A key; `kv_rank` is four packed bytes."""

    chunk_hash: bytes
    model_name: str
    kv_rank: int = 0
    object_group_id: int = 0


class TaggedKey(Struct):
    """A key with its tag."""

    v: Key


class Tagged(Struct):
    """Anything with its tag."""

    v: Raw


class Spec(Struct):
    """What a lookup asks for; older traces have extra_count = readers - 1."""

    keys: list[TaggedKey]
    num_kv_readers: int | None = None
    extra_count: int = 0


class TaggedSpec(Struct):
    """The same with its tag."""

    v: Spec


class Layout(Struct):
    """The tensors of one object."""

    shapes: list[list[int]]
    dtypes: list[str]


class TaggedLayout(Struct):
    """The same with its tag."""

    v: Layout


FRAME = msgspec.msgpack.Decoder(Header | Record)
KEYS = msgspec.msgpack.Decoder(list[TaggedKey])
TAGGED = msgspec.msgpack.Decoder(Tagged)
SPEC = msgspec.msgpack.Decoder(TaggedSpec)
LAYOUT = msgspec.msgpack.Decoder(TaggedLayout)
INT = msgspec.msgpack.Decoder(int)
TEXT = msgspec.msgpack.Decoder(str)
ANYTHING = msgspec.msgpack.Decoder()


def unknown_fields(raw: Raw) -> list[str]:
    """Fields of a specification, or of the first of some keys, that this version does not know.

    Raises:
        msgspec.MsgspecError: it is no msgpack.
    """
    found = ANYTHING.decode(raw)
    unknown: list[str] = []
    while isinstance(found, (dict, list)) and found:
        if isinstance(found, list):
            found = found[0]
            continue
        tag, fields = str(found.get("__t__")), found.get("v")
        if isinstance(fields, dict) and tag in _KNOWN:
            unknown += [f"{tag}.{name}" for name in fields if name not in _KNOWN[tag]]
        found = fields.get("keys") if isinstance(fields, dict) else fields
    return unknown


def keys_of(raw: Raw) -> list[Key]:
    """A list of keys; a tuple or a set of them is a tagged list.

    Raises:
        msgspec.MsgspecError: it is neither.
    """
    try:
        found = KEYS.decode(raw)
    except msgspec.ValidationError:
        found = KEYS.decode(TAGGED.decode(raw).v)
    return [key.v for key in found]


def bytes_of(layout: Raw) -> int | None:
    """Bytes of one object: elements of all its tensors times their width, where every width is known."""
    found = LAYOUT.decode(layout).v
    widths = [_width(dtype) for dtype in found.dtypes]
    if (
        len(widths) != len(found.shapes)
        or 0 in widths
        or any(len(it) > _MAX_DIMENSIONS for it in found.shapes)
    ):
        return None
    size = sum(math.prod(shape) * width for shape, width in zip(found.shapes, widths, strict=True))
    return size if 0 <= size < 1 << 63 else None


def _width(dtype: str) -> int:
    """Bytes of one element; 0 = unknown. Every type whose name says 8 bits, or a bool, has one."""
    name = dtype.removeprefix("torch.")
    return _SIZES.get(name, 1 if name == "bool" or name.startswith(("float8", "int8", "uint8")) else 0)
