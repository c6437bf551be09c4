"""Events -> rows of `block`: Python once an event, arrays once a part.

What events have in common (event, tier, component, tokens, group, locality, medium) is one *shape*, looked up
once and spread over the rows at the end; keys become text all at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.sources.token_digests import DIGEST_BYTES, Chains, Digests
from kvtrace.sources.vllm_kv_events.events import KINDS

KEY_SPACE = "vllm:unknown:unknown"
"""Neither the hash algorithm nor the model is on the wire."""
MEDIA = {
    "GPU": "gpu", "DEVICE": "gpu",
    "CPU": "host", "CPU_PINNED": "host", "CPU_TIER1": "host",
    "CPU_TIER2": "disk", "DISK": "disk", "NVME": "disk",
}  # fmt: skip
"""An engine's word for a medium -> tier; what is only said to be outside (EXTERNAL, STORAGE) is unknown."""
OWNERS = {"fs": "disk", "obj": "object", "p2p": "peer"}
"""vLLM calls all that lies below the CPU STORAGE and names the tier that owns it."""
SHAPE = {
    "event": pl.String, "tier": pl.String, "component": pl.String, "tokens": pl.Int64,
    "object_group": pl.String, "locality": pl.String, "medium_raw": pl.String, "reason": pl.String,
}  # fmt: skip
MAX_INT = (1 << 63) - 1
_MASK = (1 << 64) - 1
NONE: list[Any] = []


class Rows:
    """The rows of a part in the making."""

    def __init__(self, chains: Chains) -> None:
        self.chains = chains
        self.undecodable = 0
        self.token_ids = 0
        self._start()

    def _start(self) -> None:
        self.size = 0
        self._keys: list[Any] = []
        self._digests: Digests = []
        self._parents: list[Any] = []
        self._counts: list[int] = []
        self._of_shape: list[int] = []
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._shape_rows: list[tuple[Any, ...]] = []
        self._batches: list[tuple[int, int | None, str | None]] = []
        self._batch_rows: list[int] = []
        self._without_key: list[int] = []

    def batch(self, time_ns: int, sequence: int | None, engine: str | None, events: list[Any]) -> None:
        """Append a batch's events."""
        keys, before = self._keys, len(self._keys)
        shapes, counts, of_shape = self._shapes, self._counts, self._of_shape
        for event in events:
            kind, hashes, parent = KINDS[type(event)], NONE, None
            if kind == "stored":
                hashes, parent, size = event.block_hashes, event.parent_block_hash, event.block_size
                shape = (kind, event.medium, event.ownership, event.group_idx, event.locality, size)
            elif kind == "removed":
                hashes = event.block_hashes
                shape = (kind, event.medium, event.ownership, event.group_idx, event.locality, 0)
            else:  # cleared, or an event that nobody knows, which keeps its name
                hashes = getattr(event, "block_hashes", NONE)
                shape = (kind, event.medium, getattr(event, "name", None), None, None, 0)
            number = shapes.get(shape)
            if number is None and (number := self._new(shape)) is None:
                continue
            of_shape.append(number)
            counts.append(len(hashes) or 1)
            self._parents.append(parent)
            if not hashes:
                self._keyless()
                continue
            if kind == "stored" and event.token_ids:
                self._digest(event)
            keys += hashes
        self.chains.settle(self._digests)
        self._batches.append((time_ns, sequence, engine))
        self._batch_rows.append(len(keys) - before)
        self.size = max(len(keys), len(self._batches))  # batches without events take room as well

    def _digest(self, event: Any) -> None:
        """The digests of an event's blocks, in the rows that they will have."""
        self.token_ids += len(event.token_ids)
        if event.block_size > 0:
            missing = len(self._keys) - len(self._digests)
            if missing:
                self._digests.extend([None] * missing)
            self.chains.add(
                self._digests, event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size
            )

    def _keyless(self) -> None:
        """A row all the same, as for a pool that was cleared."""
        self._without_key.append(len(self._keys))
        self._keys.append(0)

    def _new(self, shape: tuple[Any, ...]) -> int | None:
        """A shape's number; None, and counted, when its numbers fit into no column."""
        kind, medium, owner, group, locality, size = shape
        name, owner = (owner, None) if kind == "other" else (None, owner)
        if not 0 <= size <= MAX_INT:
            self.undecodable += 1
            return None
        silent = kind == "other" and medium is None  # an event nobody knows says nothing by saying no medium
        tier, part = (None, None) if silent else place(medium, owner)
        self._shapes[shape] = number = len(self._shapes)
        self._shape_rows.append(
            (
                None if kind == "other" else kind,
                tier,
                part,
                size or None,
                None if group is None else str(group),
                locality.lower() if locality else None,
                medium,
                name,
            )
        )
        return number

    def take(self) -> pl.DataFrame:
        """The rows so far, as columns of `block`; the next part begins."""
        keys = texts(self._keys, self._without_key)
        counts = np.array(self._counts, dtype=np.int64)
        events = np.repeat(np.arange(len(counts)), counts)
        shapes = pl.DataFrame(self._shape_rows, schema=SHAPE, orient="row")
        found = shapes[np.array(self._of_shape, dtype=np.int64)[events]]
        batches = pl.DataFrame(
            self._batches,
            schema={"time_ns": pl.Int64, "seq": pl.Int64, "engine": pl.String},
            orient="row",
        )
        of_batch = np.repeat(np.arange(len(self._batches)), np.array(self._batch_rows, dtype=np.int64))
        found = pl.concat([batches[of_batch], found], how="horizontal").with_columns(
            key=keys,
            parent_key=self._parent_keys(keys, counts, events, found["tokens"]),
            token_digest=_digest_texts(self._digests, len(self._keys)),
            key_space=pl.lit(KEY_SPACE),
            evidence=pl.lit("native"),
        )
        self._start()
        return found

    def _parent_keys(
        self, keys: pl.Series, counts: np.ndarray, events: np.ndarray, tokens: pl.Series
    ) -> pl.Series:
        """The first block of an event has the parent that it names, the others the block before them."""
        # Placeholders of an offloaded block carry neither tokens nor parent: their keys form no chain.
        first = np.zeros(len(events), dtype=bool)
        first[np.cumsum(counts) - counts] = True
        missing = [at for at, parent in enumerate(self._parents) if parent is None]
        named = texts([0 if parent is None else parent for parent in self._parents], missing)
        at_first = pl.Series(first)
        frame = pl.DataFrame({"before": keys.shift(1), "first": at_first, "chain": tokens.is_not_null()})
        frame = frame.with_columns(named=named[events])
        return frame.select(
            pl.when("first").then("named").when("chain").then("before").otherwise(None)
        ).to_series()


def place(medium: str | None, owner: str | None) -> tuple[str, str | None]:
    """Tier and component; what names no medium is the GPU's own pool, whose connector is not on the wire."""
    if medium is None:
        return "gpu", "vllm.gpu"
    tier = MEDIA.get(medium.upper())
    if tier == "gpu":
        return "gpu", "vllm.gpu"
    if owner:  # only vLLM's offloading connector names an owner
        return tier or OWNERS.get(owner, "unknown"), f"vllm.offloading.{owner}"
    return tier or "unknown", None


def texts(keys: list[Any], missing: list[int]) -> pl.Series:
    """Keys as text: hexadecimal, 16 digits for integers of 64 bits, signed ones as if they were unsigned."""
    valid = None
    if missing:
        valid = np.ones(len(keys), dtype=bool)
        valid[missing] = False
    numbers = _numbers(keys)
    if numbers is None:
        found = [text(key) for key in keys]
        for at in missing:
            found[at] = None
        return pl.Series(found, dtype=pl.String)
    return _fixed(numbers.astype(">u8").tobytes(), 16, valid)


def _numbers(keys: list[Any]) -> np.ndarray | None:
    """Keys that are all integers of 64 bits, of one signedness."""
    if set(map(type, keys)) - {int}:
        return None
    try:
        return np.array(keys, dtype=np.uint64)
    except OverflowError:
        pass
    try:
        return np.array(keys, dtype=np.int64).view(np.uint64)
    except OverflowError:
        return None


def text(key: Any) -> str | None:
    """One key as text; a text is one already."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.hex()
    return f"{key & _MASK if key < 0 else key:016x}"


def _fixed(raw: bytes, digits: int, valid: np.ndarray | None) -> pl.Series:
    """Bytes in groups as hexadecimal texts of one length."""
    rows = len(raw) * 2 // digits
    offsets = np.arange(rows + 1, dtype=np.int64) * digits
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    array = pa.LargeStringArray.from_buffers(
        rows, pa.py_buffer(offsets), pa.py_buffer(raw.hex().encode()), mask
    )
    return pl.Series(pl.from_arrow(array), dtype=pl.String)


def _digest_texts(digests: Digests, rows: int) -> pl.Series:
    """Digests as texts; rows after the last one have none."""
    if not any(digests):
        return pl.Series([None], dtype=pl.String).new_from_index(0, rows)
    digests.extend([None] * (rows - len(digests)))
    valid = np.fromiter(map(bool, digests), dtype=bool, count=rows)
    none = bytes(DIGEST_BYTES)
    return _fixed(b"".join([digest or none for digest in digests]), 2 * DIGEST_BYTES, valid)
