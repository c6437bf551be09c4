"""One thread that reads every subscription into the queue; a full queue makes it wait, and ZeroMQ after it.

0 1 2 . . 5     5 comes: 3 and 4 are asked for before it is passed on
. . . 7         the first that comes is 7: what was before is asked for, as far as the publisher keeps it
8 9 .           at the end: whether more was published than came
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvtrace.collect.streams import discovery
from kvtrace.collect.streams.naming import OPTION, Subscription
from kvtrace.collect.streams.published import Published, is_engines
from kvtrace.collect.streams.replaying import TO_THE_END, replayed
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.collect.intake import Intake

WAITING_MESSAGES = 256
"""Messages of a publisher that may wait in ZeroMQ; it drops the next ones, and their numbers tell."""
POLL_MS = 200
LOOK_SECONDS = 0.5
MAX_TOPICS = 256


@dataclass
class _Subscribed:
    """One subscription: its socket, its source, and the last number of each topic."""

    wanted: Subscription
    source: Published
    socket: zmq.Socket[bytes]
    last: dict[bytes, int] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)


class Subscriber:
    """Reads until it is stopped; then asks once more for what was published last."""

    def __init__(
        self,
        subscriptions: Iterable[tuple[Subscription, Published]],
        intake: Intake,
        *,
        max_message_bytes: int,
    ) -> None:
        """Subscribe.

        Raises:
            UsageError: an address to bind at cannot be had.
        """
        self._intake = intake
        self._max_bytes = max_message_bytes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._over = threading.Event()
        self._poller = zmq.Poller()
        self._all: dict[zmq.Socket[bytes], _Subscribed] = {}
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        self.listening: list[str] = []
        try:
            for wanted, source in subscriptions:
                self._subscribe(wanted, source)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._work, name="kvtrace-zmq", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read what has arrived, fill last gaps, and read no more."""
        self._over.set()
        self._thread.join()

    def _subscribe(self, wanted: Subscription, source: Published) -> None:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, WAITING_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_bytes)
        socket.setsockopt(zmq.IPV6, 1)
        socket.linger = 0
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        if wanted.bind:
            try:
                socket.bind(wanted.url)
            except zmq.ZMQError as error:
                raise _taken(wanted.url, zmq.strerror(error.errno or 0)) from error
            bound = socket.getsockopt(zmq.LAST_ENDPOINT)
            source.rename(f"kv-events {bound.decode().rstrip(chr(0)) if isinstance(bound, bytes) else bound}")
            self.listening.append(source.name)
        elif wanted.folder is None:
            socket.connect(wanted.url)
        self._poller.register(socket, zmq.POLLIN)
        self._all[socket] = _Subscribed(wanted, source, socket)
        if not wanted.bind:
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._poller.register(monitor, zmq.POLLIN)
            self._monitors[monitor] = socket

    def _work(self) -> None:
        try:
            look = 0.0
            while not self._over.is_set():
                if time.monotonic() >= look:
                    look = time.monotonic() + LOOK_SECONDS
                    self._discover()
                self._read(POLL_MS)
            self._read(0)
            for subscribed in self._all.values():
                self._catch_up(subscribed)
        finally:
            self._context.destroy(linger=0)

    def _discover(self) -> None:
        """Connect to channels that were listed since the last look."""
        for subscribed in self._all.values():
            if subscribed.wanted.folder is None:
                continue
            for endpoint in discovery.endpoints(subscribed.wanted.folder):
                if endpoint not in subscribed.connected:
                    subscribed.connected.add(endpoint)
                    try:
                        subscribed.socket.connect(endpoint)
                    except zmq.ZMQError:
                        subscribed.source.notes[f"channel {endpoint}: is no address"] = None

    def _read(self, wait_ms: int) -> None:
        """Pass on what has arrived."""
        for socket, _ in self._poller.poll(wait_ms):
            if socket in self._monitors:
                _connect_anew(self._monitors[socket], socket)
                continue
            subscribed = self._all[socket]
            for _ in range(WAITING_MESSAGES):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if is_engines(frames):
                    self._fill(subscribed, frames[0], int.from_bytes(frames[1], "big", signed=True))
                self._pass_on(subscribed, frames)

    def _fill(self, subscribed: _Subscribed, topic: bytes, number: int) -> None:
        """Ask for the numbers between the last message and this one."""
        if topic not in subscribed.last and len(subscribed.last) >= MAX_TOPICS:
            return
        last = subscribed.last.get(topic, -1)
        subscribed.last[topic] = number
        if number > last + 1:
            self._ask(subscribed, topic, last + 1, number - 1)

    def _catch_up(self, subscribed: _Subscribed) -> None:
        """Ask for what was published after the last message, or before any."""
        for topic, last in list(subscribed.last.items()) or [(b"", -1)]:
            self._ask(subscribed, topic if subscribed.last else None, last + 1, TO_THE_END)

    def _ask(self, subscribed: _Subscribed, topic: bytes | None, first: int, last: int) -> None:
        if subscribed.wanted.replay is None:
            return
        for frames in replayed(self._context, subscribed.wanted.replay, first, last, self._max_bytes):
            if topic is None or frames[0] == topic:
                self._pass_on(subscribed, frames)

    def _pass_on(self, subscribed: _Subscribed, frames: list[bytes]) -> None:
        subscribed.source.heard = True
        self._intake.wait(subscribed.source, frames, sum(map(len, frames)))


def _connect_anew(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """A connection ended: after a message that is too long ZeroMQ would not come back by itself."""
    endpoint = recv_monitor_message(monitor)["endpoint"].decode()
    with suppress(zmq.ZMQError):
        socket.disconnect(endpoint)
    with suppress(zmq.ZMQError):
        socket.connect(endpoint)


def _taken(url: str, reason: str) -> UsageError:
    return UsageError(f"{OPTION} {url}: cannot listen there ({reason}); choose another address.")
