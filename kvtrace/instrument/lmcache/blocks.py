"""What happens to keys: an event of L1, of the storage manager or of an L2 adapter -> rows of `block`.

L1's events are published under L1's lock, so that their order of receipt (`seq`) is the order of the locks.
They carry no counts (one event may take 128 locks of a key) and no request; what calls say of both is in
rows with reason `asked` (calls.py). What LMCache does not say, such as why a key was evicted, is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.keys import COLUMNS, all_named
from kvtrace.recorder import shape
from kvtrace.schema.lmcache_keys import L1_TIERS, L2_TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Row = tuple[object, ...]
    Handler = Callable[[int, int, str, dict[str, Any]], Sequence[Row]]
    """(order of receipt, monotonic ns, session id, metadata) -> rows."""

_SEEN = ("time_ns", "seq", *COLUMNS)
_SIZED = (*_SEEN, "tier", "bytes", "medium_raw")


class FirstLevel:
    """L1's rows; what it is made of and how long its locks live is known when it is configured."""

    def __init__(
        self, medium: str | None = None, read_ttl_ns: int | None = None, write_ttl_ns: int | None = None
    ) -> None:
        self.medium = medium
        self.tier = L1_TIERS.get(medium or "", "unknown")
        own: dict[str, Any] = {"component": "lmcache.l1", "evidence": "native"}
        whole = own | {"tier": self.tier} | ({"medium_raw": medium} if medium else {})
        reading: dict[str, Any] = {} if read_ttl_ns is None else {"ttl_ns": read_ttl_ns}
        writing: dict[str, Any] = {} if write_ttl_ns is None else {"ttl_ns": write_ttl_ns}
        self._locked = shape("block", _SEEN, event="locked", mode="read", **whole, **reading)
        self._landed = shape("block", _SEEN, event="locked", mode="read", reason="landed", **whole, **reading)
        self._unlocked = shape("block", _SEEN, event="unlocked", mode="read", **whole)
        self._reserved = shape("block", _SEEN, event="reserved", mode="reserve", **whole, **writing)
        self._written = shape("block", (*_SIZED, "reason"), event="written", mode="write", **own)
        self._removed = shape("block", _SIZED, event="removed", **own)
        self._accessed = shape("block", _SEEN, event="accessed", mode="read", **whole)
        self._failed = shape("block", (*_SEEN, "mode", "reason"), event="failed", **whole)

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            "l1.read.reserved": _each(self._locked),
            "l1.read.finished": _each(self._unlocked),
            "l1.write.reserved": _each(self._reserved),
            "l1.keys.accessed": _each(self._accessed),
            "l1.write.finished": self._finished,
            "l1.write_finished_and_read_reserved": self._loaded,
            "l1.keys.evicted": self._evicted,
            "l1.read.failed": self._not_read,
            "l1.allocation.failed": self._not_allocated,
            "l2.prefetch.failed": self._not_loaded,
        }

    def failed(self, seq: int, at: int, keys: Sequence[Any], mode: str, reason: str) -> list[Row]:
        """Keys of which something was wanted in vain."""
        head, tail = (self._failed, at, seq), (mode, reason)
        return [head + key + tail for key in all_named(keys)]

    def _sized(self, kind: int, seq: int, at: int, metadata: dict[str, Any], *more: object) -> list[Row]:
        """Keys with what is said of each object: its bytes and its medium."""
        keys = metadata.get("keys")
        if not keys:
            return []
        head, rows, known = (kind, at, seq), [], metadata.get("meta") or ()
        for place, key in enumerate(all_named(keys)):
            size, medium = _said(known[place]) if place < len(known) else (None, None)
            medium = medium or self.medium
            rows.append((*head, *key, L1_TIERS.get(medium or "", self.tier), size, medium, *more))
        return rows

    def _finished(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        return self._sized(self._written, seq, at, metadata, None)

    def _loaded(self, seq: int, at: int, sid: str, metadata: dict[str, Any]) -> list[Row]:
        """A load from L2 has landed: written, and locked in the same moment."""
        written = self._sized(self._written, seq, at, metadata, "landed")
        return [*written, *_each(self._landed)(seq, at, sid, metadata)]

    def _evicted(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        return self._sized(self._removed, seq, at, metadata)

    def _not_read(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        reason = f"{metadata.get('during')}:{metadata.get('reason')}"
        return self.failed(seq, at, metadata.get("keys") or (), "read", reason)

    def _not_allocated(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        return self.failed(seq, at, metadata.get("keys") or (), "reserve", str(metadata.get("during")))

    def _not_loaded(self, seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        """L2's, without an adapter's name."""
        head, tail = (_NOT_LOADED, at, seq), (str(metadata.get("reason")),)
        return [head + key + tail for key in all_named(metadata.get("keys"))]


_NOT_LOADED = shape(
    "block", (*_SEEN, "reason"), event="failed", mode="read", component="lmcache.l2", evidence="native"
)
_SECOND = (*_SEEN, "event", "tier", "component", "bytes", "locality", "medium_raw")
_ADAPTER = shape("block", _SECOND, evidence="native")
_ADAPTER_EVENTS = {"l2.keys.stored": "stored", "l2.keys.accessed": "accessed", "l2.keys.deleted": "removed"}


def second_level(tiers: dict[str, str]) -> dict[str, Handler]:
    """The handlers of what L2's adapters say of keys; `tiers`: a configured adapter's type -> its medium."""

    def handler(event: str) -> Handler:
        def rows(seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
            backend, sizes = str(metadata.get("backend") or ""), metadata.get("sizes") or ()
            tier = tiers.get(backend) or L2_TIERS.get(backend, "unknown")
            component = f"lmcache.l2.{backend}" if backend else "lmcache.l2"
            locality = "remote" if metadata.get("shared") else "local"
            return [
                (_ADAPTER, at, seq, *key, event, tier, component,
                 sizes[place] if place < len(sizes) else None, locality, backend or None)
                for place, key in enumerate(all_named(metadata.get("keys")))
            ]  # fmt: skip

        return rows

    return {name: handler(event) for name, event in _ADAPTER_EVENTS.items()}


def _each(kind: int) -> Handler:
    """One row a key, with nothing but when and which."""

    def rows(seq: int, at: int, _sid: str, metadata: dict[str, Any]) -> list[Row]:
        head = (kind, at, seq)
        return [head + key for key in all_named(metadata.get("keys"))]

    return rows


def _said(meta: Any) -> tuple[int | None, str | None]:
    """Bytes and medium of an L1ObjectMeta."""
    backend = getattr(meta, "backend", None)
    medium = getattr(backend, "value", backend)
    return getattr(meta, "size_bytes", None), medium if isinstance(medium, str) else None
