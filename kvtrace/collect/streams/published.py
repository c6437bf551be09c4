"""Messages of one subscription on their way into the staging area.

[topic, number, payload]               an engine's own: sources/vllm_kv_events
[topic, publisher, number, envelope]   Dynamo's event plane: sources/dynamo/event_plane.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from kvtrace.sources.dynamo.event_plane import Messages
from kvtrace.sources.losses import Loss
from kvtrace.sources.vllm_kv_events.reading import Reading
from kvtrace.sources.vllm_kv_events.wire import MAX_TOPIC_BYTES, Message

if TYPE_CHECKING:
    from kvtrace.collect.intake import Item
    from kvtrace.importer.staging import Staging
    from kvtrace.sources.decoded import Decoded, Options

SEQUENCE_BYTES = 8
_PUBLISHER_BYTES = 64
"""Dynamo 1.6.1 sends 8 bytes; a name is taken as well."""
_ENVELOPE = 1
_HEAD_BYTES = 5
_BAD = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)


@dataclass(eq=False)
class Published:
    """One subscription; `alone` when no other publisher's blocks could be taken for its own."""

    name: str
    options: Options
    alone: bool = True
    format: str = "kv-events"
    spans: int = 0
    other_rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    heard: bool = False
    promised: str = "nobody publishes there, or no event happened"
    _strange: int = 0
    _reading: Reading = field(init=False)
    _plane: Messages = field(init=False)

    def __post_init__(self) -> None:
        """Both decoders follow the numbers of their publishers from the first message to the last."""
        self._reading = Reading(self.name, self.options)
        self._plane = Messages(self.name)

    def rename(self, name: str) -> None:
        """Before anything came: the address is known only when it is bound."""
        self.name = name
        self.__post_init__()

    @property
    def came(self) -> bool:
        """Whether any message arrived."""
        return self.heard

    def take(self, items: list[Item], staging: Staging) -> None:
        """Decode messages; rows are staged when they are many."""
        for item in items:
            self._message(item.content, item.time_ns)
        if self._reading.full:
            self._stage(self._reading.take(), staging)
        if self._plane.rows.full:
            self._stage(self._plane.rows.part(), staging)

    def finish(self, staging: Staging) -> None:
        """Stage the rest, and what is missing between the messages."""
        self._stage(self._reading.end(), staging)
        self._plane.finish()
        self._stage(self._plane.rows.end(), staging)
        if self._strange:
            detail = "messages that are neither an engine's nor Dynamo's"
            staging.losses.append(Loss(self.name, "undecodable", self._strange, detail=detail))

    def _message(self, frames: list[bytes], time_ns: int) -> None:
        if is_engines(frames):
            sequence = int.from_bytes(frames[1], "big", signed=True)
            topic = frames[0].decode("utf-8", "replace")
            self._reading.message(Message(topic, sequence, frames[2]))
        elif len(frames) == 4 and (value := _dynamo(frames, time_ns)) is not None:
            self._plane.take(value)
        else:
            self._strange += 1

    def _stage(self, part: Decoded, staging: Staging) -> None:
        blocks = part.tables.get("block")
        if blocks is not None and not self.alone:
            # no engine is named on the wire: blocks of two publishers must not be taken for one engine's
            named = blocks.with_columns(pl.col("engine").fill_null(f"unknown at {self.name.split()[-1]}"))
            part = replace(part, tables={**part.tables, "block": named})
        spans, others = staging.take(part, self.name, self.format)
        self.spans += spans
        self.other_rows += others
        self.notes |= dict.fromkeys(part.notes)


def is_engines(frames: list[bytes]) -> bool:
    """Whether a message is an engine's own."""
    return len(frames) == 3 and len(frames[1]) == SEQUENCE_BYTES and len(frames[0]) <= MAX_TOPIC_BYTES


def _dynamo(frames: list[bytes], time_ns: int) -> dict[str, Any] | None:
    """A message of the event plane as a passive tap writes it down; None for anything else."""
    topic, publisher, number, body = frames
    if len(publisher) > _PUBLISHER_BYTES or len(number) != SEQUENCE_BYTES or body[:1] != bytes([_ENVELOPE]):
        return None
    if int.from_bytes(body[1:_HEAD_BYTES], "big") != len(body) - _HEAD_BYTES:
        return None
    try:
        envelope = msgspec.msgpack.decode(body[_HEAD_BYTES:])
        envelope["payload"] = msgspec.msgpack.decode(envelope["payload"])
        return {
            "t": time_ns / 1e9, "topic": topic.decode(), "publisher": publisher.hex(),
            "seq": int.from_bytes(number, "big"), "envelope": envelope,
        }  # fmt: skip
    except (*_BAD, KeyError):
        return None
