"""What was asked of the storage manager (`trace.call`): rows of `block` with reason `asked`.

A call says what was wanted, not what came of it; it is the only place where LMCache says how many locks are
taken and released, and for which request. The same rows as from a storage trace (.lct).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.keys import COLUMNS, NOBODY, all_named
from kvtrace.recorder import shape
from kvtrace.schema.lmcache_keys import L1_TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Row

PREFIX = "lmcache.v1.distributed.storage_manager.StorageManager."
_ASKED = ("time_ns", "seq", *COLUMNS)


class Calls:
    """The calls of a storage manager, as rows."""

    def __init__(
        self, medium: str | None = None, read_ttl_ns: int | None = None, write_ttl_ns: int | None = None
    ) -> None:
        whole: dict[str, Any] = {
            "component": "lmcache.l1", "tier": L1_TIERS.get(medium or "", "unknown"),
            "evidence": "native", "reason": "asked",
        }  # fmt: skip
        whole |= {"medium_raw": medium} if medium else {}
        reading: dict[str, Any] = {} if read_ttl_ns is None else {"ttl_ns": read_ttl_ns}
        writing: dict[str, Any] = {} if write_ttl_ns is None else {"ttl_ns": write_ttl_ns}
        self._reserve = shape(
            "block", (*_ASKED, "bytes"), event="reserved", mode="reserve", **whole, **writing
        )
        self._write = shape("block", _ASKED, event="written", mode="write", **whole)
        self._lock = shape(
            "block", (*_ASKED, "request_id", "count"), event="locked", mode="read", **whole, **reading
        )
        self._unlock = shape("block", (*_ASKED, "count"), event="unlocked", mode="read", **whole)
        self._read = shape("block", _ASKED, event="accessed", mode="read", **whole)
        self._unknown = shape("block", _ASKED, **whole)
        self._known: dict[str, Callable[[tuple[int, int], dict[str, Any]], list[Row]]] = {
            "reserve_write": self._reserves,
            "finish_write": lambda when, args: _rows(self._write, when, args),
            "submit_prefetch_task": self._locks,
            "finish_read_prefetched": self._unlocks,
            "read_prefetched_results.__enter__": lambda when, args: _rows(self._read, when, args),
            "read_prefetched_results.__exit__": lambda *_: [],  # what it frees it does not tell
        }
        self._known |= {PREFIX + name: each for name, each in self._known.items()}

    def decode(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> Sequence[Row]:
        """The rows of one call; a call that nobody knows is one row without a key."""
        known = self._known.get(metadata.get("qualname", ""))
        if known is None:
            return [(self._unknown, at, seq, *NOBODY)]
        return known((at, seq), metadata.get("args") or {})

    def _reserves(self, when: tuple[int, int], args: dict[str, Any]) -> list[Row]:
        return _rows(self._reserve, when, args, object_bytes(args.get("layout_desc")))

    def _unlocks(self, when: tuple[int, int], args: dict[str, Any]) -> list[Row]:
        return _rows(self._unlock, when, args, args.get("read_locks", 1))

    def _locks(self, when: tuple[int, int], args: dict[str, Any]) -> list[Row]:
        """A warm prefetch takes no locks: nobody reads it yet."""
        spec = args.get("spec")
        if getattr(getattr(spec, "mode", None), "name", "LOOKUP") == "WARM":
            return []
        head = (self._lock, *when)
        tail = (args.get("external_request_id") or None, getattr(spec, "num_kv_readers", None))
        return [head + key + tail for key in all_named(getattr(spec, "keys", None))]


def object_bytes(layout: Any) -> int | None:
    """Bytes of one object: elements of all its tensors times their width; None where one is not known."""
    shapes, dtypes = getattr(layout, "shapes", None), getattr(layout, "dtypes", None)
    if not shapes or not dtypes or len(shapes) != len(dtypes):
        return None
    size = 0
    for each, dtype in zip(shapes, dtypes, strict=True):
        width = getattr(dtype, "itemsize", None)
        if not isinstance(width, int):
            return None
        size += prod(int(extent) for extent in each) * width
    return size


def _rows(kind: int, when: tuple[int, int], args: dict[str, Any], *more: object) -> list[Row]:
    head = (kind, *when)
    return [head + key + more for key in all_named(args.get("keys"))]
