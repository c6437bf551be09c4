"""KV events as an engine publishes them over ZeroMQ: which blocks were stored, removed, cleared, and where.

vLLM, SGLang and Dynamo's mock engines write them. A recording is one of

    JSON lines      {"topic", "seq", "ts", "data_parallel_rank", "events"}, or Dynamo's tap
                    {"t", "frames", "topic", "payload": [ts, [events], rank]}
    the wire        [topic, sequence number, payload] in msgpack, one after the other, or in frames

SGLang 0.5.18 writes positional arrays, 0.5.23 tagged maps, of one block an event; its hashes are signed and
its media GPU and CPU_PINNED. What the rest of a system should know of it: a block is "stored" on the GPU when
its load from the host is submitted, not when the copy is complete, so that it is no proof of a load.

The rows are those that the engine's own scheduler writes when kvtrace runs inside of it, with the batch's
time. The wire names no engine, process, model or hash algorithm. Token ids are counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.lines import lines
from kvtrace.sources.stream import Limits, Undecodable
from kvtrace.sources.vllm_kv_events.reading import Reading
from kvtrace.sources.vllm_kv_events.sniffing import FRAMES, JSON, kind_of
from kvtrace.sources.vllm_kv_events.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream
    from kvtrace.sources.vllm_kv_events.wire import Message

FORMAT = "vllm-kv-events"
HEAD_BYTES = 1 << 16


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is a recording of KV events."""
    return kind_of(head) is not None


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The rows of a recording in parts; what is missing comes with the last."""
    kind = kind_of(stream.peek(HEAD_BYTES))
    reading = Reading(source, options)
    parts: Iterator[list[bytes] | list[Message] | Undecodable] = (
        lines(stream) if kind == JSON else messages(stream, Limits(), framed=kind == FRAMES)
    )
    for part in parts:
        if isinstance(part, Undecodable):
            reading.lost(part.detail, part.count)
            continue
        reading.add(part)
        if reading.full:
            yield reading.take()
    yield reading.end()
