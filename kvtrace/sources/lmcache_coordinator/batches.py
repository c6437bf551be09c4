"""Batches of key events, one after the other, as rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import polars as pl

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.lmcache_coordinator.bodies import BAD, Batch, Key, batch_of, is_json, split
from kvtrace.sources.lmcache_keys import L1_TIERS, L2_TIERS, key_space, rank_of
from kvtrace.sources.losses import Loss
from kvtrace.sources.numbering import Numbering
from kvtrace.sources.token_digests import Chains, Digests

EVENTS = {"store": "stored", "delete": "removed", "access": "accessed"}
CAPACITY = "lmcache_coordinator_capacity_bytes"
"""The metric of a `config` batch: it has no name of its own."""
MAX_NAMES = 100
MAX_SERVERS = 1_000
"""Servers and restarts that are counted apart."""
MAX_SALTS = 10_000
_MAX_INT = (1 << 63) - 1
_LATEST_S = _MAX_INT / 1e9


_BLOCK = {
    "time_ns": pl.Int64, "event": pl.String, "tier": pl.String, "component": pl.String,
    "key_space": pl.String, "key": pl.String, "tokens": pl.Int64, "bytes": pl.Int64, "reason": pl.String,
    "process": pl.String, "rank": pl.Int64, "object_group": pl.String, "seq": pl.Int64,
    "identity_id": pl.String, "medium_raw": pl.String, "evidence": pl.String,
}  # fmt: skip
_METRIC: dict[str, Any] = {
    "time_ns": pl.Int64, "name": pl.String, "kind": pl.String,
    "labels": pl.List(pl.Struct({"key": pl.String, "value": pl.String})), "value": pl.Float64,
    "process": pl.String,
}  # fmt: skip


@dataclass(slots=True)
class Reports:
    """What servers reported so far."""

    source: str
    key: bytes
    chains: Chains = field(init=False)
    blocks: list[tuple[Any, ...]] = field(default_factory=list)
    digests: Digests = field(default_factory=list)
    samples: list[tuple[Any, ...]] = field(default_factory=list)
    servers: dict[tuple[str, int], Numbering] = field(default_factory=dict)
    salts: dict[str, str] = field(default_factory=dict)
    identities: list[dict[str, Any]] = field(default_factory=list)
    undecodable: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    impossible: int = 0
    shared: int = 0
    token_ids: int = 0

    def __post_init__(self) -> None:
        """Digests are those of the import's key."""
        self.chains = Chains(self.key)

    @property
    def full(self) -> bool:
        """Whether it is time to take a part."""
        return len(self.blocks) + len(self.samples) >= ROWS_A_PART

    def lost(self, detail: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.undecodable[detail] += count

    def add(self, text: bytes) -> None:
        """One body, a list of batches, or one batch."""
        text = text.removeprefix(b"\xef\xbb\xbf").strip()
        try:
            raws = split(text)
        except BAD:
            self.lost("lines that are no report of cache events")
            return
        for raw in raws:
            try:
                self._batch(batch_of(raw, self._count))
            except BAD:
                self.lost("batches that are no cache events")

    def rest(self, body: list[bytes]) -> None:
        """Lines that were no bodies: one over many lines, or so many that cannot be read."""
        text = b"\n".join(body).removeprefix(b"\xef\xbb\xbf")
        if is_json(text):
            self.add(text)
        else:
            for line in body:
                self.add(line)

    def _batch(self, batch: Batch) -> None:
        if not 0 <= batch.ts < _LATEST_S:  # 0 is LMCache's word for unknown
            self.impossible += 1
            return
        time_ns = round(batch.ts * 1e9)
        if not 0 <= batch.seq <= _MAX_INT or any(
            not 0 <= entry.size_bytes <= _MAX_INT for entry in batch.entries
        ):
            raise ValueError("a number that fits into no column")
        server = (batch.instance_id, batch.incarnation)
        numbering = self.servers.get(server) or Numbering()
        if len(self.servers) < MAX_SERVERS:
            self.servers[server] = numbering
        if not numbering.take(batch.seq, time_ns):
            return
        self.shared += batch.shared
        if batch.event_type == "config":
            self._capacity(batch, time_ns or None)
        else:
            self._rows(batch, time_ns or None)

    def _rows(self, batch: Batch, time_ns: int | None) -> None:
        event = EVENTS.get(batch.event_type)
        if event is None:
            self._count(f"event {batch.event_type}")
        reason = None if event else batch.event_type[:200]
        part, tier = _place(batch)
        for entry in batch.entries:
            key, tokens = entry.key, entry.token_ids
            self.token_ids += len(tokens)
            self.blocks.append(
                (
                    time_ns, event, tier, part, key_space(key.model_name), key.chunk_hash_hex,
                    len(tokens) or None, entry.size_bytes if event == "stored" else None, reason,
                    batch.instance_id, rank_of(key.kv_rank), str(key.object_group_id), batch.seq,
                    self._identity(key), batch.backend or None, "native",
                )
            )  # fmt: skip
            if tokens and not entry.token_offset:  # what lies before another chunk is not said
                self.chains.add(self.digests, [key.chunk_hash_hex], None, tokens, len(tokens))
            else:
                self.digests.append(None)
        if not batch.entries and event is None:
            self.blocks.append(
                (time_ns, None, tier, part, *[None] * 4, reason, batch.instance_id, None, None, batch.seq,
                 None, batch.backend or None, "native")
            )  # fmt: skip
            self.digests.append(None)

    def _identity(self, key: Key) -> str | None:
        """The identity of keys that one tenant alone can reach: by a keyed digest, salts are secrets."""
        if not key.cache_salt:
            return None
        found = self.salts.get(key.cache_salt)
        if found is None:
            found = blake2b(key.cache_salt.encode(), digest_size=8, key=self.key[:64]).hexdigest()
            if len(self.salts) >= MAX_SALTS:
                return f"lmcache:salt:{found}"
            self.salts[key.cache_salt] = found
            self.identities.append(
                {
                    "identity_id": f"lmcache:salt:{found}", "side": "writer", "field": "cache_salt",
                    "value": found, "source": self.source, "enforced_by": "key",
                }
            )  # fmt: skip
        return f"lmcache:salt:{found}"

    def _capacity(self, batch: Batch, time_ns: int | None) -> None:
        """A tier's capacity; 0 is LMCache's word for no limit, which is no number."""
        labels = {"tier": batch.tier, "backend": batch.backend, "shared": str(batch.shared).lower()}
        pairs = [{"key": name, "value": value} for name, value in labels.items()]
        value = float(batch.capacity_bytes) or None
        self.samples.append((time_ns, CAPACITY, "gauge", pairs, value, batch.instance_id))

    def _count(self, name: str) -> None:
        name = name[:80]
        self.unknown[name if name in self.unknown or len(self.unknown) < MAX_NAMES else "others"] += 1

    def take(self) -> Decoded:
        """The rows since the last part."""
        digests = pl.Series([one and one.hex() for one in self.digests], dtype=pl.String)
        block = pl.DataFrame(self.blocks, schema=_BLOCK, orient="row").with_columns(token_digest=digests)
        metric = pl.DataFrame(self.samples, schema=_METRIC, orient="row")
        content = {"token_ids": self.token_ids} if self.token_ids else {}
        identities = tuple(self.identities)
        self.blocks, self.digests, self.samples, self.identities, self.token_ids = [], [], [], [], 0
        return Decoded(tables={"block": block, "metric": metric}, identities=identities, content=content)

    def end(self) -> Decoded:
        """The last part, with losses, servers and remarks."""
        last = self.take()
        losses = [
            Loss(self.source, "undecodable", count, detail=detail)
            for detail, count in self.undecodable.items()
        ]
        if self.impossible:
            losses.append(Loss(self.source, "impossible_time", self.impossible, detail="batches"))
        for numbering in self.servers.values():
            losses += numbering.losses(self.source, "cache events")
        processes = tuple(
            {
                "process": name, "engine": None, "host": None, "role": "server", "product": "lmcache",
                "version": None,
            }
            for name in dict.fromkeys(name for name, _incarnation in self.servers)
        )  # fmt: skip
        return Decoded(last.tables, last.identities, processes, tuple(losses), last.content, self._notes())

    def _notes(self) -> tuple[str, ...]:
        notes = ["times are those of the sending: events happened up to a flush interval (1 s) before"]
        restarts = Counter(name for name, _incarnation in self.servers)
        notes += [
            f"{name}: restarted {count - 1} times; what it held before is gone"
            for name, count in restarts.items()
            if count > 1
        ]
        notes += [
            f"{name}: begins with batch {numbering.began}; what was before was not recorded"
            for (name, _incarnation), numbering in self.servers.items()
            if (numbering.began or 0) > 1
        ]
        if self.shared:
            notes.append(f"{self.shared} batches are of backends that several servers share")
        if self.unknown:
            names = ", ".join(f"{name} ({count})" for name, count in self.unknown.most_common())
            notes.append(f"unknown events and fields: {names}")
        return tuple(notes)


def _place(batch: Batch) -> tuple[str | None, str | None]:
    """Component and tier; an access names no backend, and so no medium."""
    part = f"lmcache.{batch.tier}" if batch.tier else None
    if not batch.backend:
        return part, None
    if batch.tier == "l1":
        return part, L1_TIERS.get(batch.backend, "unknown")
    return f"{part}.{batch.backend}" if part else None, L2_TIERS.get(batch.backend, "unknown")
