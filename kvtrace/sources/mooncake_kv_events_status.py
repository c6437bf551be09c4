"""Mooncake's page `/kv_events/status` (its master, beside the metrics): does it publish KV events at all?

    {"enabled": false, "published_batches": 0, "published_events": 0, "dropped_events": 0,
     "skipped_unparsed_keys": 0}

A master that was built without them takes --enable_kv_events=true, logs it, and publishes nothing; this page
alone tells. Numbers become rows `mooncake_kv_events.<name>` (counters, `enabled` a gauge of 1 or 0) without a
time, the page having none. What its publisher dropped is a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.losses import Loss
from kvtrace.sources.records import frame, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "mooncake-kv-events-status"
PREFIX = "mooncake_kv_events"
MAX_BYTES = 1 << 16
DROPPED = "KV events that Mooncake's publisher dropped"
DISABLED = "KV events are not enabled: nothing is published, whatever the master's flags and log say"
SOURCE = "kvtrace.source"
"""Label: the file, so that the pages of two masters stay apart."""
_COUNTERS = ("published_batches", "published_events", "dropped_events", "skipped_unparsed_keys")
_WORDS = (b'"enabled"', b'"published_events"', b'"dropped_events"')


def looks_like(head: bytes) -> bool:
    """Whether a file begins as one: a small document that has the words of the page."""
    return head.lstrip().startswith(b"{") and len(head) < MAX_BYTES and all(word in head for word in _WORDS)


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The one part of a page."""
    held = b""
    while len(held) <= MAX_BYTES and (more := stream.read()):
        held += more
    yield decode(held, source)


def decode(page: bytes, source: str) -> Decoded:
    """A page -> rows of `metric`, and what was dropped; one that is none is a loss."""
    try:
        found = msgspec.json.decode(page)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("enabled"), bool):
        detail = "page that is no status of Mooncake's KV events"
        return Decoded(losses=(Loss(source, "undecodable", 1, detail=detail),))
    counts = {name: count for name in _COUNTERS if (count := whole(found.get(name))) is not None}
    rows = [_row("enabled", "gauge", float(found["enabled"]), source)]
    rows += [_row(name, "counter", float(count), source) for name, count in counts.items()]
    dropped = counts.get("dropped_events", 0)
    return Decoded(
        {"metric": frame("metric", rows)},
        losses=(Loss(source, "dropped", dropped, op="publish", detail=DROPPED),) if dropped else (),
        notes=() if found["enabled"] else (DISABLED,),
    )


def _row(name: str, kind: str, value: float, source: str) -> dict[str, Any]:
    return {
        "time_ns": None, "name": f"{PREFIX}.{name}", "kind": kind, "labels": {SOURCE: source}, "value": value,
        "process": None,
    }  # fmt: skip
