"""LMCache's lookup-hash log (`--lookup-hash-log-dir`): one JSON line a lookup, with its chunk keys.

The only file that joins a request to its chunk keys without an instrument. It is written line by line, so it
also convicts an exporter that was killed: a line without a lookup span is a span that was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Line(msgspec.Struct):
    timestamp: float
    request_id: str
    model_name: str
    chunk_size: int
    seq_len: int
    chunk_hashes: list[str]
    dtypes: list[str] = []
    shapes: list[list[int]] = []


@dataclass(frozen=True, slots=True)
class Lookups:
    """Lookups in file order, their keys as rows of `request_key`, the identity they assume, and losses."""

    asked: tuple[tuple[str, int], ...]
    keys: tuple[dict[str, Any], ...]
    identities: tuple[dict[str, Any], ...]
    losses: tuple[Loss, ...]


_DECODER = msgspec.json.Decoder(_Line)


def looks_like(head: bytes) -> bool:
    """Whether a file's first line is one of this log."""
    first = head.split(b"\n", 1)[0]
    return first.lstrip().startswith(b"{") and b'"chunk_hashes"' in first and b'"request_id"' in first


def decode(lines: Sequence[bytes], source: str) -> Lookups:
    """Lines -> rows; a line that is none is counted. The log names no hash algorithm: it is `unknown`."""
    asked: list[tuple[str, int]] = []
    keys: list[dict[str, Any]] = []
    bad = 0
    identities: dict[str, dict[str, str]] = {}
    for line in lines:
        if not line.strip():
            continue
        try:
            found = _DECODER.decode(line)
            time_ns = round(found.timestamp * 1e9)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            bad += 1
            continue
        if not (0 < time_ns < 2**63 and 0 < found.chunk_size < 2**63):
            bad += 1
            continue
        asked.append((found.request_id, time_ns))
        space = f"lmcache:unknown:{found.model_name}"
        keys.extend(
            {
                "request_id": found.request_id,
                "position": position,
                "key_space": space,
                "key": key.removeprefix("0x"),
                "tokens": found.chunk_size,
                "time_ns": time_ns,
                "source": source,
            }
            for position, key in enumerate(found.chunk_hashes)
        )
        fields = {
            "model": found.model_name,
            "chunk_size": str(found.chunk_size),
            "dtype": ",".join(found.dtypes),
        }
        identities[f"{space}:{found.chunk_size}"] = fields
    rows = tuple(
        {"identity_id": name, "side": "reader", "field": field, "value": value, "source": source}
        for name, fields in identities.items()
        for field, value in fields.items()
    )
    losses = (
        (Loss(source, "undecodable", bad, op="lookup", detail="lines that are no lookup"),) if bad else ()
    )
    return Lookups(tuple(asked), tuple(keys), rows, losses)
