"""Dynamo's event plane (ZMQ), as a passive tap writes it down: a JSON line a message.

    {"t": ..., "topic": "kv-events", "publisher": ..., "seq": 0, "envelope": {"published_at": ms, ...}}
    {"t": ..., "discovery": {"type": "EventChannel", ...}}       what there is to subscribe to

    kv-events                 block rows: stored, removed, cleared, a tier each (others.md 1.2 b)
    active_sequences_events   span rows without op: the only topic that names requests
    kv_metrics, forward-pass-metrics    metric rows, gauges a worker

Times are the publisher's, in milliseconds. A stored event is a chain: each block's parent is the one before
it. `tokens_hash` is a hash of one block's tokens alone, no key: it is counted and dropped. Messages are
numbered from 0 a publisher and topic (numbering.py): a gap is a loss, one that came before is a duplicate.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvtrace.sources.dynamo.names import KEY_SPACE, MS, TIERS, engine, key
from kvtrace.sources.numbering import Numbering
from kvtrace.sources.records import (
    Rows,
    at,
    attributes,
    first_values,
    number,
    read_lines,
    text,
    time_ns,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "dynamo-event-plane"
MAX_PUBLISHERS = 1_000
"""Publishers whose numbers are followed; of more than that gaps are not seen, and the report says so."""
MAX_METRICS = 128
"""Numbers of one message that become metric rows."""
MAX_NESTING = 4
MAX_SERIES = 50_000
"""Different metrics and workers together."""
METRICS = {"kv_metrics": "dynamo.kv_metrics", "forward-pass-metrics": "dynamo.forward_pass"}
_LABELS = ("worker_id", "dp_rank")
_DOMAINS = {"worker": "local"}


def looks_like(head: bytes) -> bool:
    """Whether the first line is what such a tap writes."""
    found = first_values(head, 1)
    return bool(found) and (_is_message(found[0]) or at(found[0], "discovery", "type") == "EventChannel")


def _is_message(value: Any) -> bool:
    return (
        isinstance(at(value, "topic"), str)
        and "publisher" in value
        and isinstance(at(value, "envelope"), dict)
    )


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file."""
    del options
    return read_lines(stream, Messages(source))


class Messages:
    """Takes messages, adds what they say of blocks, requests and loads."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._numbers: dict[tuple[str, str], Numbering] = {}
        self._series: set[tuple[str, ...]] = set()

    def take(self, value: Any) -> None:
        """One message, or the discovery of a channel, which is counted."""
        if isinstance(at(value, "discovery"), dict):
            self.rows.remark("channels discovered")
            return
        if not _is_message(value):
            self.rows.refuse("lines that are no message of the event plane", op="publish")
            return
        topic, envelope = value["topic"], value["envelope"]
        time = time_ns(envelope.get("published_at"), MS) or time_ns(value.get("t"), 1_000_000_000)
        payload = envelope.get("payload")
        if time is None or payload is None:
            self.rows.refuse("messages without a time or a readable payload", op="publish")
            return
        sequence = whole(envelope.get("sequence"))
        sequence = whole(value.get("seq")) if sequence is None else sequence
        if not self._is_new(str(value["publisher"])[:64], topic[:64], sequence, time):
            return
        if topic == "kv-events":
            self._blocks(payload, time, sequence)
        elif topic == "active_sequences_events":
            self._sequences(payload, time)
        elif topic in METRICS:
            self._metrics(METRICS[topic], payload, time)
        else:
            self.rows.remark("messages of topics that this version does not know, kept without op")
            self._unknown(topic, payload, time)

    def finish(self) -> None:
        """What is missing between the messages of each publisher, and what came twice."""
        for (publisher, topic), numbers in self._numbers.items():
            for loss in numbers.losses(self.rows.source, f"{topic} of publisher {publisher}"):
                self.rows.lose(replace(loss, op="publish"))
            if numbers.began:
                self.rows.remark("channels whose recording begins after the publisher's first message")

    def _is_new(self, publisher: str, topic: str, sequence: int | None, time: int) -> bool:
        """Whether a message was not there before."""
        if sequence is None:
            return True
        numbers = self._numbers.get((publisher, topic))
        if numbers is None:
            if len(self._numbers) >= MAX_PUBLISHERS:
                self.rows.remark(
                    "messages of publishers whose numbers are not followed, there being too many"
                )
                return True
            numbers = self._numbers[publisher, topic] = Numbering()
        return numbers.take(sequence, time)

    def _blocks(self, payload: Any, time: int, sequence: int | None) -> None:
        """Events of one or several workers."""
        for item in payload if isinstance(payload, list) else [payload]:
            event, medium = at(item, "event"), text(at(item, "storage_tier"))
            data = at(event, "data")
            if not isinstance(event, dict) or data is None:
                self.rows.refuse("events without data", op="publish")
                continue
            domain = text(item.get("residency_domain"))
            who = {
                "time_ns": time, "tier": TIERS.get(medium or "", "unknown"), "medium_raw": medium,
                "component": f"dynamo.{medium}" if medium in TIERS else None, "key_space": KEY_SPACE,
                "engine": engine(item.get("worker_id"), event.get("dp_rank")), "seq": sequence,
                "locality": _DOMAINS.get(domain or "", domain), "evidence": "native",
            }  # fmt: skip
            self._event(data, who)

    def _event(self, data: Any, who: dict[str, Any]) -> None:
        """One event: rows of its blocks; a kind that nobody knows is one row without an event."""
        if isinstance(at(data, "stored"), dict):
            self._stored(data["stored"], who)
        elif isinstance(at(data, "removed"), dict):
            hashes = data["removed"].get("block_hashes")
            for block in hashes if isinstance(hashes, list) else ():
                self._block("removed", block, None, who)
        elif data == "cleared" or (isinstance(data, dict) and "cleared" in data):
            self.rows.add("block", {**who, "event": "cleared"})
        else:
            word = next(iter(data), None) if isinstance(data, dict) else data
            self.rows.remark("events that this version does not know, kept without their kind")
            self.rows.add("block", {**who, "reason": text(word) or "unknown"})

    def _stored(self, stored: dict[str, Any], who: dict[str, Any]) -> None:
        """A chain of blocks after a parent; a block whose key is unreadable breaks the chain."""
        parent = key(stored.get("parent_hash"))
        blocks = stored.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            self.rows.drop("tokens_hash", at(block, "tokens_hash") is not None)
            self.rows.drop("mm_extra_info", at(block, "mm_extra_info") is not None)
            parent = self._block("stored", at(block, "block_hash"), parent, who)

    def _block(self, event: str, block: Any, parent: str | None, who: dict[str, Any]) -> str | None:
        name = key(block)
        if name is None:
            self.rows.refuse("hashes that are no 64-bit numbers", op="publish")
            return None
        self.rows.add("block", {**who, "event": event, "key": name, "parent_key": parent})
        return name

    def _sequences(self, payload: Any, time: int) -> None:
        """What befell a request: `MarkPrefillCompleted` is the only kind that was ever recorded."""
        events = at(payload, "events")
        for item in events if isinstance(events, list) else [payload]:
            data = at(item, "data")
            kind = text(next(iter(data), None) if isinstance(data, dict) else data)
            request = text(at(item, "request_id"))
            if kind is None or request is None:
                self.rows.refuse("sequence events without a request or a kind")
                continue
            worker, rank = at(item, "worker", "worker_id"), at(item, "worker", "dp_rank")
            self.rows.add("span", {
                "name": kind, "request_id": request, "id_kind": "internal", "start_ns": time, "end_ns": time,
                "observer": "router", "engine": engine(worker, rank), "attribution": "request",
                "evidence": "native",
                "attributes": attributes(worker_id=worker, dp_rank=rank, router_id=item.get("router_id"),
                                         lora_name=item.get("lora_name")),
            })  # fmt: skip

    def _metrics(self, prefix: str, payload: Any, time: int) -> None:
        """Every number of a message as a gauge, by the worker's labels; what is null is no sample."""
        for item in payload if isinstance(payload, list) else [payload]:
            labels = {name: str(found) for name in _LABELS if (found := at(item, name)) is not None}
            labels = {name: found for name, found in labels.items() if len(found) <= 64}
            numbers = list(_numbers(item, ""))
            if not isinstance(item, dict):
                self.rows.refuse("metrics that are no object")
            self.rows.refuse("numbers beyond those a message may have", count=len(numbers[MAX_METRICS:]))
            for name, value in numbers[:MAX_METRICS]:
                series = (name, *labels.values())
                if series not in self._series and len(self._series) >= MAX_SERIES:
                    self.rows.refuse("samples of more series than are believed")
                    continue
                self._series.add(series)
                self.rows.add("metric", {"time_ns": time, "name": f"{prefix}.{name}", "kind": "gauge",
                                         "labels": labels, "value": value})  # fmt: skip

    def _unknown(self, topic: str, payload: Any, time: int) -> None:
        """A message of another topic: its numbers, as one row without op."""
        said = dict(list(_numbers(payload, ""))[:MAX_METRICS])
        self.rows.add("span", {"name": topic[:64], "start_ns": time, "end_ns": time, "evidence": "native",
                               "attributes": attributes(**said)})  # fmt: skip


def _numbers(value: Any, prefix: str, depth: int = 0) -> Iterator[tuple[str, float]]:
    """The numbers of nested objects by their dotted names, the labels left out; lists have none."""
    if not isinstance(value, dict) or depth > MAX_NESTING:
        return
    for name, item in value.items():
        if name in _LABELS or not re.fullmatch(r"\w{1,64}", name):
            continue
        found = number(item)
        if found is not None:
            yield f"{prefix}{name}", found
        else:
            yield from _numbers(item, f"{prefix}{name}.", depth + 1)
