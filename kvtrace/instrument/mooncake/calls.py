"""Which method of the store takes which keys and sizes, and how is its answer read?

Of each key the answer is a number: bytes or 0 and more when it went well, a negative code when it did not,
None (codes.UNSAID) when the method says no more than that it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.mooncake.codes import UNSAID

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answers = list[int | None]
    Sizes = list[int] | None
    Arguments = Callable[[tuple[Any, ...], dict[str, Any]], Any]
    Read = Callable[[Any, int], Answers]


class Call:
    """How one method is read."""

    __slots__ = ("keys", "name", "op", "read", "sizes")

    def __init__(
        self, name: str, op: str, keys: Arguments, read: Read, sizes: Arguments | None = None
    ) -> None:
        self.name = name
        self.op = op
        self.keys = keys
        self.read = read
        self.sizes = sizes


def argument(place: int, name: str) -> Arguments:
    """The argument of that name, or at that place after self."""

    def get(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kwargs[name] if name in kwargs else args[place]

    return get


def _only(get: Arguments) -> Arguments:
    return lambda args, kwargs: [get(args, kwargs)]


def _lengths(get: Arguments) -> Arguments:
    return lambda args, kwargs: [_length(value) for value in get(args, kwargs)]


def _sums(get: Arguments) -> Arguments:
    return lambda args, kwargs: [sum(sizes) for sizes in get(args, kwargs)]


def _parts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    del kwargs
    return [sum(_length(part) for part in args[1:])]


def _both(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    return [argument(3, "size")(args, kwargs) + argument(4, "metadata_size")(args, kwargs)]


def _length(value: Any) -> int:
    """Bytes of anything with a buffer: an array's len() counts rows."""
    size = getattr(value, "nbytes", None)
    return len(value) if size is None else size


def _same(result: Any, count: int) -> Answers:
    """One number for all keys of the call."""
    return [int(result)] * count


def _each(result: Any, count: int) -> Answers:
    del count
    return list(result)


def _values(result: Any, count: int) -> Answers:
    """Values: an empty one, which cannot be stored, stands for every failure."""
    del count
    return [len(value) if value else UNSAID for value in result]


def _value(result: Any, count: int) -> Answers:
    return _values([result], count)


def _buffers(result: Any, count: int) -> Answers:
    del count
    return [UNSAID if buffer is None else buffer.size() for buffer in result]


def _buffer(result: Any, count: int) -> Answers:
    return _buffers([result], count)


_KEY, _KEYS = argument(0, "key"), argument(0, "keys")
_ONE, _SOME = argument(0, "arg0"), argument(0, "arg0")
_SIZE, _SIZES, _ALL_SIZES = argument(2, "size"), argument(2, "sizes"), argument(2, "all_sizes")
_VALUE, _LIST = argument(1, "value"), argument(1, "values")

STORES = (
    *(Call(name, "store", _only(_KEY), _same, _lengths(_only(_VALUE))) for name in ("put", "upsert")),
    *(Call(name, "store", _only(_KEY), _same, _parts) for name in ("put_parts", "upsert_parts")),
    *(Call(name, "store", _KEYS, _same, _lengths(_LIST)) for name in ("put_batch", "upsert_batch")),
    *(Call(name, "store", _only(_KEY), _same, _only(_SIZE)) for name in ("put_from", "upsert_from")),
    Call("put_from_with_metadata", "store", _only(_KEY), _same, _both),
    *(Call(name, "store", _KEYS, _each, _SIZES) for name in ("batch_put_from", "batch_upsert_from")),
    Call("batch_put_from_multi_buffers", "store", _KEYS, _each, _sums(_ALL_SIZES)),
)
LOADS = (
    Call("get", "load", _only(_ONE), _value),
    Call("get_batch", "load", _SOME, _values),
    Call("get_buffer", "load", _only(_ONE), _buffer),
    Call("batch_get_buffer", "load", _SOME, _buffers),
    Call("get_into", "load", _only(_KEY), _same),
    Call("batch_get_into", "load", _KEYS, _each),
    Call("batch_get_into_multi_buffers", "load", _KEYS, _each),
    Call("batch_get_into_multi_buffer_ranges", "load", _KEYS, _each),
)
LOOKUPS = (
    Call("is_exist", "lookup", _only(_ONE), _same),
    Call("batch_is_exist", "lookup", _KEYS, _each),
)
REMOVALS = (
    Call("remove", "evict", _only(_KEY), _same),
    Call("batch_remove", "evict", _KEYS, _each),
)
SWEEPS = ("remove_by_regex", "remove_all")
"""They answer how many keys they removed, not which."""
VALUES = {"put", "upsert", "put_parts", "upsert_parts", "put_batch", "upsert_batch",
          "get", "get_batch", "get_buffer", "batch_get_buffer"}  # fmt: skip
"""Their other end is an object of this process: host memory, whatever else there is."""
