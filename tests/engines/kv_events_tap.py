"""Run by the engines' python: subscribes to vLLM's KV events and writes them as JSON lines.

`kv_events_tap.py ENDPOINT OUTPUT`. Prompts stay out of the file: token ids are replaced by their
number. The output is opened anew for every batch, so whoever renames it starts the next one.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq  # type: ignore[import-not-found]  # of the engines' environment

POLL_MS = 100


def main() -> None:
    """Listens until SIGTERM; connecting before the engine has bound is fine with ipc://."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    endpoint, output = sys.argv[1], Path(sys.argv[2])
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(endpoint)
    while not stopped.is_set():
        if socket.poll(POLL_MS):
            line = json.dumps(decode(socket.recv_multipart(), time.time_ns()))
            with output.open("a") as lines:
                lines.write(line + "\n")


def decode(frames: list[bytes], received_ns: int) -> dict[str, object]:
    """One batch: (topic, sequence number, [ts, events, data-parallel rank])."""
    topic, sequence, payload = frames
    ts, events, *rest = msgspec.msgpack.decode(payload)
    return {
        "topic": topic.decode(),
        "seq": int.from_bytes(sequence, "big", signed=True),
        "ts": ts,
        "received_ns": received_ns,
        "data_parallel_rank": rest[0] if rest else None,
        "events": [_without_tokens(event) for event in events],
    }


def _without_tokens(event: dict[str, object]) -> dict[str, object]:
    kept = {key: _plain(value) for key, value in event.items() if key != "token_ids"}
    tokens = event.get("token_ids")
    if isinstance(tokens, list):
        kept["token_count"] = len(tokens)
    return kept


def _plain(value: object) -> object:
    """Block hashes are integers by default and 32 bytes with another setting: hexadecimal then."""
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
