"""Publishers of KV events as engines have them: a real PUB socket, and a ROUTER that replays."""

from __future__ import annotations

import threading
from typing import Any, Self

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)
LOOPBACK = "tcp://127.0.0.1:0"


class Publisher:
    """Publishes as vLLM does; `lost` numbers are kept for a replay and not sent."""

    def __init__(self, url: str = LOOPBACK, *, connect: bool = False) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)  # a PUB that says when somebody subscribes
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.linger = 2000
        if connect:
            self._pub.connect(url)
        else:
            self._pub.bind(url)
        self._router.bind(LOOPBACK)
        self.url, self.replay = (
            socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0") for socket in (self._pub, self._router)
        )
        self._kept: list[tuple[int, bytes]] = []
        self.number = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._context.destroy(linger=2000)

    def subscribed(self) -> Self:
        """Wait for a subscriber."""
        while True:
            assert self._pub.poll(20_000)
            if self._pub.recv()[:1] == b"\1":  # 0: one went away
                return self

    def publish(self, *events: dict[str, Any], lost: bool = False) -> None:
        """One batch."""
        payload = msgspec.msgpack.encode([1_700_000_000.0 + self.number, list(events), 0])
        self._kept.append((self.number, payload))
        if not lost:
            self._pub.send_multipart([b"", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def send(self, *frames: bytes) -> None:
        """Anything at all."""
        self._pub.send_multipart(frames)

    def _answer(self) -> None:
        while not self._over.is_set():
            if not self._router.poll(50):
                continue
            client, _, first = self._router.recv_multipart()
            for number, payload in list(self._kept):
                if number >= int.from_bytes(first, "big"):
                    self._router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, b"", b"", END, b""])


def stored(key: int, **said: Any) -> dict[str, Any]:
    """A block of 4 tokens that is there now."""
    return {
        "type": "BlockStored", "block_hashes": [key], "parent_block_hash": None, "token_ids": [7, 8, 9, key],
        "block_size": 4, "medium": "GPU", **said,
    }  # fmt: skip


def plane(topic: str, number: int, payload: Any) -> list[bytes]:
    """A message of Dynamo's event plane."""
    said = {
        "publisher_id": 7, "sequence": number, "published_at": 1_700_000_000_000 + number, "topic": topic,
        "payload": msgspec.msgpack.encode(payload),
    }  # fmt: skip
    body = msgspec.msgpack.encode(said)
    head = bytes([1]) + len(body).to_bytes(4, "big")
    return [topic.encode(), (7).to_bytes(8, "big"), number.to_bytes(8, "big"), head + body]
