"""What was missed is asked for again: vLLM's replay endpoint (a ROUTER that keeps its last 10,000 batches).

we:         ["", number of the first]
publisher:  ["", topic, number, payload] ...  ["", "", -1, ""]
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from kvtrace.collect.streams.published import SEQUENCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLAY_SECONDS = 2.0
MAX_MESSAGES = 100_000
TO_THE_END = 2**63 - 1


def replayed(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, first: int, last: int, max_bytes: int
) -> Iterator[list[bytes]]:
    """Messages numbered first to last, in order, as they were published; fewer if no more come in time."""
    with context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        asking.connect(endpoint)
        asking.send_multipart([b"", first.to_bytes(SEQUENCE_BYTES, "big")])
        deadline = time.monotonic() + REPLAY_SECONDS
        for _ in range(MAX_MESSAGES):
            left = deadline - time.monotonic()
            if left <= 0 or not asking.poll(int(left * 1000)):
                return
            _empty, *frames = asking.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
                return
            number = int.from_bytes(frames[1], "big", signed=True)
            if number < 0:
                return
            if first <= number <= last:
                yield frames
            if number >= last:
                return
