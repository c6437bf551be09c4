"""LMCache's `/status` page (the multi-process server): one JSON document, the state of one moment.

Numbers become gauges named `lmcache_status.` and the path to them; true is 1, false is 0. An element of a
list is told by the label `index`, or where an object's keys are ids (worker instances) by the label `id`:

    {"storage_manager": {"l2_adapters": [{"used_bytes": 7}]}}
        -> lmcache_status.storage_manager.l2_adapters.used_bytes{index="0"} 7

The page has no time, so rows have none. `chunk_size` and `hash_algorithm` say what the server's keys are:
rows of `identity`. Texts elsewhere, lists of ids and null are left out; they are counted in a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.losses import Loss
from kvtrace.sources.stream import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "lmcache-status"
PREFIX = "lmcache_status"
MAX_BYTES = 16 * MIB
"""A page is some kilobytes; one longer than this is not read."""
MAX_DEPTH = 16
MAX_ROWS = 50_000
LONGEST_KEY = 200
SOURCE = "kvtrace.source"
"""Label: the file, so that the pages of two servers stay apart."""
_IDENTITY = ("chunk_size", "hash_algorithm")
_HEALTH = (
    "is_healthy says that the server's threads live; it stays true with a dead backend "
    "(look at in_flight_task_count and active_prefetch_jobs instead)"
)
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "time_ns": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "labels": pl.List(pl.Struct({"key": pl.String, "value": pl.String})),
    "value": pl.Float64,
    "process": pl.String,
}


@dataclass(slots=True)
class _Found:
    """What the walk gathers: (name, labels, value), and what it left out."""

    rows: list[tuple[str, dict[str, str], float]] = field(default_factory=list)
    texts: int = 0
    beyond: int = 0
    deep: int = 0


def looks_like(head: bytes) -> bool:
    """Whether a file begins as one: the words that open it, and the part that only LMCache has."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and all(
        word in head for word in (b'"is_healthy"', b'"engine_type"', b'"storage_manager"', b'"l1_manager"')
    )


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The one part of a page; one that is too long is a loss."""
    held = b""
    while more := stream.read():
        held += more
        if len(held) > MAX_BYTES:
            detail = f"page longer than {MAX_BYTES:,} bytes"
            yield Decoded(losses=(Loss(source, "undecodable", 1, detail=detail),))
            return
    if not looks_like(held):
        detail = "page that is no status of LMCache"
        yield Decoded(losses=(Loss(source, "undecodable", 1, detail=detail),))
        return
    found = decode(held, source)
    cut = tuple(Loss(source, "undecodable", item.count, detail=item.detail) for item in stream.losses)
    yield Decoded(found.tables, found.identities, losses=(*found.losses, *cut), notes=found.notes)


def decode(page: bytes, source: str) -> Decoded:
    """A page -> rows of `metric` and `identity`; one that is none is a loss."""
    try:
        document = msgspec.json.decode(page.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        return Decoded(losses=(Loss(source, "undecodable", 1, detail="page that is no status of LMCache"),))
    found = _Found()
    _walk(document, PREFIX, {}, found, 0)
    rows = [
        (None, name, "gauge", [*_entries({**labels, SOURCE: source})], value, None)
        for name, labels, value in found.rows
    ]
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return Decoded(
        {"metric": frame} if rows else {},
        identities=tuple(_identities(document, source)),
        losses=tuple(_losses(found, source)),
        notes=tuple(_notes(document, found)),
    )


def _walk(value: Any, name: str, labels: dict[str, str], found: _Found, depth: int) -> None:
    """Add the numbers below a value."""
    if depth > MAX_DEPTH:
        found.deep += 1
    elif isinstance(value, dict):
        for key, entry in value.items():
            if len(key) > LONGEST_KEY:
                found.deep += 1
            elif key.endswith("_ids"):  # numbers by accident, and above what a float64 tells apart
                found.texts += 1
            elif key.isdecimal():  # an id, such as a worker's: not a name of the page
                _walk(entry, name, _labelled(labels, "id", key), found, depth + 1)
            else:
                _walk(entry, f"{name}.{key}", labels, found, depth + 1)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _walk(entry, name, _labelled(labels, "index", str(index)), found, depth + 1)
    elif isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # more than 308 digits
            found.deep += 1
            return
        if len(found.rows) >= MAX_ROWS:
            found.beyond += 1
        else:
            found.rows.append((name, labels, number))
    else:
        found.texts += 1


def _labelled(labels: dict[str, str], name: str, value: str) -> dict[str, str]:
    """One label more; a list in a list, or an id below an id, continues the label: 0.3."""
    return {**labels, name: f"{labels[name]}.{value}" if name in labels else value}


def _entries(labels: dict[str, str]) -> Iterator[dict[str, str]]:
    for key, value in labels.items():
        yield {"key": key, "value": value}


def _identities(document: dict[str, Any], source: str) -> Iterator[dict[str, str]]:
    """What the server's keys are. The page names no model: one server may serve many."""
    for name in _IDENTITY:
        value = document.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            yield {
                "identity_id": f"lmcache:{source}",
                "side": "writer",
                "field": name,
                "value": str(value),
                "source": source,
            }


def _losses(found: _Found, source: str) -> Iterator[Loss]:
    if found.beyond:
        yield Loss(source, "dropped", found.beyond, detail=f"numbers beyond {MAX_ROWS:,} in one page")
    if found.deep:
        detail = f"values nested deeper than {MAX_DEPTH}, of a name too long, or no float64"
        yield Loss(source, "undecodable", found.deep, detail=detail)


def _notes(document: dict[str, Any], found: _Found) -> Iterator[str]:
    if document.get("is_healthy") is True:
        yield _HEALTH
    if found.texts:
        yield f"{found.texts:,} texts, ids and nulls of the page are no metrics; left out"
