"""The calls of a trace, one after the other, as rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import InputError
from kvtrace.sources.decoded import Decoded
from kvtrace.sources.lmcache_keys import L1_TIERS, key_space, rank_of
from kvtrace.sources.lmcache_storage_trace.frames import TORN
from kvtrace.sources.lmcache_storage_trace.records import (
    BAD,
    FRAME,
    INT,
    MAGIC,
    SPEC,
    TEXT,
    VERSION,
    Header,
    Record,
    bytes_of,
    keys_of,
    unknown_fields,
)
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from msgspec import Raw

    from kvtrace.sources.stream import Undecodable

MAX_NAMES = 100
"""Unknown fields and calls that a note tells apart."""
_LATEST_S = (1 << 63) / 1e9
CALLS = {
    "reserve_write": ("reserved", "reserve"),
    "finish_write": ("written", "write"),
    "submit_prefetch_task": ("locked", "read"),
    "finish_read_prefetched": ("unlocked", "read"),
    "read_prefetched_results.__enter__": ("accessed", "read"),
}
"""Call -> the event of a row, and its mode."""
_EXIT = "read_prefetched_results.__exit__"
_PREFIX = "lmcache.v1.distributed.storage_manager.StorageManager."
_ARGS = frozenset({"keys", "layout_desc", "mode", "spec", "external_request_id", "skip_l2", "read_locks"})
_NOTE = (
    "is a trace of calls: what a lookup found, what was stored in vain, durations, cache salts and evictions "
    "are not in it"
)
_BLOCK = {
    "time_ns": pl.Int64, "event": pl.String, "tier": pl.String, "component": pl.String,
    "key_space": pl.String, "key": pl.String, "request_id": pl.String, "bytes": pl.Int64, "mode": pl.String,
    "count": pl.Int64, "ttl_ns": pl.Int64, "reason": pl.String, "rank": pl.Int64, "object_group": pl.String,
    "medium_raw": pl.String, "evidence": pl.String,
}  # fmt: skip
_REQUEST_KEY = {
    "request_id": pl.String, "position": pl.Int64, "key_space": pl.String, "key": pl.String,
    "time_ns": pl.Int64, "source": pl.String,
}  # fmt: skip


@dataclass(slots=True)
class Calls:
    """The calls of a trace in order, as rows."""

    source: str
    started_s: float | None = None
    tier: str = "unknown"
    medium: str | None = None
    read_ttl_ns: int | None = None
    write_ttl_ns: int | None = None
    blocks: list[tuple[Any, ...]] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    bad: int = 0
    impossible: int = 0
    exits: int = 0

    def lost(self, item: Undecodable) -> None:
        """What was no frame: a trace has no closing mark, a torn frame alone shows that it was cut."""
        cause = "unclean_end" if item.detail == TORN else "undecodable"
        self.losses.append(Loss(self.source, cause, item.count, detail=item.detail))

    def add(self, frame: bytes) -> None:
        """One frame.

        Raises:
            InputError: the first one is no header.
        """
        try:
            found = FRAME.decode(frame)
            if isinstance(found, Header):
                self._header(found)
            elif self.started_s is not None:
                self._call(found, self.started_s)
        except BAD:
            self.bad += 1
        if self.started_s is None:
            raise InputError(
                f"{self.source}: is no LMCache storage trace, its first frame is no header; give the .lct "
                "file that the server wrote."
            )

    def _header(self, header: Header) -> None:
        """A header; files that were joined have several, each with its own start."""
        if header.magic != MAGIC or not math.isfinite(header.t_wall_start):
            raise ValueError("no header")
        self.started_s = header.t_wall_start
        if header.format_version != VERSION:
            self.notes.append(f"format version {header.format_version}: read as version {VERSION}")
        self.tier, self.medium, self.read_ttl_ns, self.write_ttl_ns = "unknown", None, None, None
        try:
            config = json.loads(header.sm_config_json)["l1_manager_config"]
            kind = "gds" if config.get("gds_l1_config") else "dram"
            memory = config.get("memory_config") or {}
            self.medium = "devdax" if memory.get("devdax_path") else kind
            self.tier = L1_TIERS[self.medium]
            self.read_ttl_ns, self.write_ttl_ns = (
                _ns(config.get(name)) for name in ("read_ttl_seconds", "write_ttl_seconds")
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.notes.append("its header has no readable configuration: L1's medium and TTLs are unknown")

    def _call(self, record: Record, started_s: float) -> None:
        seconds = started_s + record.t_mono
        time_ns = round(seconds * 1e9) if 0 < seconds < _LATEST_S else 0
        if not time_ns:
            self.impossible += 1
            return
        name = record.qualname.removeprefix(_PREFIX)
        for argument in sorted(record.args.keys() - _ARGS):
            self._count(f"{name}({argument})")
        for argument in record.args.keys() & {"keys", "spec"}:
            for unknown in unknown_fields(record.args[argument]):
                self._count(unknown)
        if name == _EXIT:
            self.exits += 1
            return
        if name not in CALLS:
            self._count(name)
            self._rows(time_ns, None, None, self._any_keys(record.args), reason=name[:200])
            return
        event, mode = CALLS[name]
        if event == "locked":
            self._lookup(time_ns, record.args)
            return
        count = None
        if event == "unlocked":
            count = INT.decode(record.args["read_locks"]) if "read_locks" in record.args else 1
        size = bytes_of(record.args["layout_desc"]) if "layout_desc" in record.args else None
        self._rows(time_ns, event, mode, keys_of(record.args["keys"]), count=count, size=size)

    def _lookup(self, time_ns: int, args: dict[str, Raw]) -> None:
        """A request's keys in prompt order; all ranks and groups of one chunk are one position."""
        spec = SPEC.decode(args["spec"]).v
        request = TEXT.decode(args["external_request_id"]) if "external_request_id" in args else ""
        readers = spec.num_kv_readers if spec.num_kv_readers is not None else spec.extra_count + 1
        keys = [key.v for key in spec.keys]
        self._rows(time_ns, "locked", "read", keys, count=readers, request=request or None)
        if request:
            chunks = dict.fromkeys((key.model_name, key.chunk_hash) for key in keys)
            self.asked.extend(
                (request, position, key_space(model), chunk.hex(), time_ns, self.source)
                for position, (model, chunk) in enumerate(chunks)
            )

    def _any_keys(self, args: dict[str, Raw]) -> list[Any]:
        """The keys of a call that nobody knows; one row without a key where there are none."""
        try:
            return keys_of(args["keys"]) or [None]
        except BAD:
            return [None]

    def _rows(
        self,
        time_ns: int,
        event: str | None,
        mode: str | None,
        keys: list[Any],
        *,
        count: int | None = None,
        size: int | None = None,
        request: str | None = None,
        reason: str | None = None,
    ) -> None:
        if count is not None and not 0 <= count < 1 << 63:
            raise ValueError(count)
        ttl = {"locked": self.read_ttl_ns, "reserved": self.write_ttl_ns}.get(event or "")
        reason = "asked" if event else reason
        self.blocks.extend(
            (
                time_ns, event, self.tier, "lmcache.l1",
                key and key_space(key.model_name), key and key.chunk_hash.hex(), request, size, mode, count,
                ttl, reason, key and rank_of(key.kv_rank), key and str(key.object_group_id),
                self.medium, "native",
            )
            for key in keys
        )  # fmt: skip

    def _count(self, name: str) -> None:
        name = name[:80]
        self.unknown[name if name in self.unknown or len(self.unknown) < MAX_NAMES else "others"] += 1

    def take(self) -> Decoded:
        """The rows since the last part."""
        tables = {
            "block": pl.DataFrame(self.blocks, schema=_BLOCK, orient="row"),
            "request_key": pl.DataFrame(self.asked, schema=_REQUEST_KEY, orient="row"),
        }
        self.blocks, self.asked = [], []
        return Decoded(tables=tables)

    def end(self) -> Decoded:
        """The last part.

        Raises:
            InputError: there was not even a header.
        """
        if self.started_s is None:
            raise InputError(f"{self.source}: is an LMCache storage trace without its header; leave it out.")
        if self.bad:
            detail = "frames that are no call of the storage manager"
            self.losses.append(Loss(self.source, "undecodable", self.bad, detail=detail))
        if self.impossible:
            self.losses.append(Loss(self.source, "impossible_time", self.impossible, detail="calls"))
        notes = [_NOTE, *dict.fromkeys(self.notes)]
        if self.exits:
            notes.append(
                f"{self.exits} ends of reads are no rows: they release locks only where a read failed"
            )
        if self.unknown:
            names = ", ".join(f"{name} ({count})" for name, count in self.unknown.most_common())
            notes.append(f"unknown calls and fields: {names}")
        return Decoded(tables=self.take().tables, losses=tuple(self.losses), notes=tuple(notes))


def _ns(seconds: Any) -> int | None:
    known = isinstance(seconds, (int, float)) and 0 <= seconds < 1 << 32
    return round(seconds * 1e9) if known else None
