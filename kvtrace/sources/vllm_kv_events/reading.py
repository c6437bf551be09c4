"""One recording from its first message to its last: batch by batch into rows, with what is lost and said."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.losses import Loss
from kvtrace.sources.numbering import Numbering
from kvtrace.sources.token_digests import Chains
from kvtrace.sources.vllm_kv_events.events import (
    BatchText,
    Cleared,
    Loose,
    Remarks,
    Removed,
    Stored,
    from_msgpack,
    one_by_one,
)
from kvtrace.sources.vllm_kv_events.rows import MAX_INT, Rows

if TYPE_CHECKING:
    from kvtrace.sources.decoded import Options
    from kvtrace.sources.vllm_kv_events.wire import Message

BAD = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
_LATEST_S = MAX_INT / 1e9
MAX_STREAMS = 256
"""Streams (topic and data-parallel rank) of one recording that are counted apart."""
_INTERLEAVED = (
    "several publishers share a topic and a rank: their blocks cannot be told apart; record each endpoint "
    "into a file of its own"
)
_CONNECTOR = "CPU and STORAGE blocks name no component: which connector moved them is not on the wire"


class _Line(Struct, gc=False):
    """A line of a recorder, or of Dynamo's tap, which has the payload as it came."""

    topic: str = ""
    seq: int | None = None
    ts: float | None = None
    data_parallel_rank: int | None = None
    events: list[Stored[int | str] | Removed[int | str] | Cleared] | None = None
    frames: list[str] | None = None
    payload: BatchText | None = None


class _LooseLine(Struct, gc=False):
    """The same, its events looked at one by one."""

    topic: str = ""
    seq: int | None = None
    ts: float | None = None
    data_parallel_rank: int | None = None
    events: list[Any] | None = None
    frames: list[str] | None = None
    payload: Loose | None = None


_TYPED = msgspec.json.Decoder(_Line)
_LOOSELY = msgspec.json.Decoder(_LooseLine)


@dataclass(slots=True)
class Reading:
    """What is known of a recording so far."""

    source: str
    options: Options
    remarks: Remarks = field(default_factory=Remarks)
    rows: Rows = field(init=False)
    streams: dict[tuple[str, int | None], tuple[Numbering, str | None]] = field(default_factory=dict)
    undecodable: Counter[str] = field(default_factory=Counter)
    impossible: int = 0
    unnamed: bool = False
    _counted: int = 0

    def __post_init__(self) -> None:
        """Rows share the chains of the whole recording."""
        self.rows = Rows(Chains(self.options.digest_key))

    @property
    def full(self) -> bool:
        """Whether it is time to take a part."""
        return self.rows.size >= ROWS_A_PART

    def lost(self, detail: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.undecodable[detail] += count

    def add(self, batches: list[bytes] | list[Message]) -> None:
        """Lines or messages in order. They make no cycles: looking for some takes a sixth of the time."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            for batch in batches:
                if isinstance(batch, bytes):
                    self.line(batch)
                else:
                    self.message(batch)
        finally:
            if collecting:
                gc.enable()

    def message(self, message: Message) -> None:
        """One message of the wire."""
        if message.sequence < 0:  # a replay's end mark
            return
        try:
            time_s, events, rank = from_msgpack(message.payload, self.remarks)
        except BAD:
            self.lost("messages whose payload is no batch of KV events")
            return
        self._batch(message.topic, message.sequence, time_s, events, rank)

    def line(self, line: bytes) -> None:
        """One line of JSON."""
        try:
            self._line(line)
        except BAD:
            self.lost("lines that are no batch of KV events")

    def _line(self, raw: bytes) -> None:
        line: _Line | _LooseLine
        try:
            line = _TYPED.decode(raw)
        except msgspec.ValidationError:
            line = _LOOSELY.decode(raw)
        sequence, time_s, events, rank = line.seq, line.ts, line.events, line.data_parallel_rank
        if line.payload is not None:
            time_s, events, rank = line.payload.ts, line.payload.events, line.payload.data_parallel_rank
        if sequence is None and line.frames and len(line.frames) > 1:
            sequence = int.from_bytes(bytes.fromhex(line.frames[1]), "big", signed=True)
        if sequence is not None and sequence < 0:
            return
        if time_s is None or events is None:
            raise ValueError("no batch")
        if isinstance(line, _LooseLine):
            events = one_by_one(events, self.remarks)
        self._batch(line.topic, sequence, time_s, events, rank)

    def _batch(
        self, topic: str, sequence: int | None, time_s: float, events: list[Any], rank: int | None
    ) -> None:
        time_ns = round(time_s * 1e9) if 0 < time_s < _LATEST_S else 0
        if not time_ns or (sequence or 0) > MAX_INT:
            self.impossible += 1
            return
        numbering, engine = self._stream(topic, rank)
        if sequence is None or numbering.take(sequence, time_ns):
            self.rows.batch(time_ns, sequence, engine, events)

    def _stream(self, topic: str, rank: int | None) -> tuple[Numbering, str | None]:
        """The count of a stream, and what tells its engine from the first stream's, which has no name."""
        found = self.streams.get((topic, rank))
        if found is None:
            name = f"{topic or self.source}/dp{rank or 0}" if self.streams else None
            found = (Numbering(), name)
            if len(self.streams) < MAX_STREAMS:
                self.streams[topic, rank] = found
        return found

    def take(self) -> Decoded:
        """The rows since the last part."""
        rows, token_ids = self.rows.take(), self.rows.token_ids
        self.rows.token_ids = 0
        away = rows["component"].is_null() & rows["medium_raw"].is_not_null()
        self.unnamed = self.unnamed or bool(away.any())
        return Decoded(tables={"block": rows}, content={"token_ids": token_ids} if token_ids else {})

    def end(self) -> Decoded:
        """The last part, with losses and remarks."""
        last = self.take()
        return Decoded(
            tables=last.tables, content=last.content, losses=tuple(self._losses()), notes=tuple(self._notes())
        )

    def _losses(self) -> list[Loss]:
        bad = self.remarks.undecodable + self.rows.undecodable
        found = [
            Loss(self.source, "undecodable", count, detail=detail)
            for detail, count in self.undecodable.items()
        ]
        if bad:
            found.append(
                Loss(self.source, "undecodable", bad, detail="KV events with fields of another type")
            )
        if self.impossible:
            found.append(Loss(self.source, "impossible_time", self.impossible, detail="batches of KV events"))
        for numbering, _engine in self.streams.values():
            found += numbering.losses(self.source, "KV events")
        return found

    def _notes(self) -> list[str]:
        found = []
        for what, counts in (("fields", self.remarks.fields), ("events", self.remarks.events)):
            if counts:
                names = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
                found.append(f"unknown {what}: {names}")
        for (topic, rank), (numbering, _engine) in self.streams.items():
            stream = f"topic {topic!r}, data-parallel rank {rank or 0}"
            if numbering.began:
                found.append(
                    f"{stream}: begins with batch {numbering.began}; what was before was not recorded"
                )
            if numbering.interleaved:
                found.append(f"{stream}: {_INTERLEAVED}")
            elif numbering.restarts:
                found.append(f"{stream}: its publisher began anew {numbering.restarts} times")
        if self.unnamed:
            found.append(_CONNECTOR)
        return found
