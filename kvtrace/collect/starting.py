"""Everything that was asked for is started, or nothing: a port that is taken ends what began before it."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvtrace.collect import addresses
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.collect.addresses import Address
    from kvtrace.collect.feeding import Source
    from kvtrace.collect.intake import Intake
    from kvtrace.collect.pages.fetching import Place
    from kvtrace.collect.settings import Settings


class Listener(Protocol):
    """Fills the queue until it is stopped; then takes in what is under way, and no more."""

    address: Address

    def stop(self) -> None:
        """Listen no more."""


@dataclass
class Started:
    """What runs: the sources, the lines that say where they listen, and how all of it ends."""

    sources: list[Source] = field(default_factory=list)
    listening: list[str] = field(default_factory=list)
    running: ExitStack = field(default_factory=ExitStack)


def start(settings: Settings, intake: Intake) -> Started:
    """Start every source; `running.close()` stops them, the last first.

    Raises:
        UsageError: an address that is none, is taken, or is open to others without a token.
    """
    found = Started()
    try:
        _listen(settings, intake, found)
        if settings.kv_events:
            _subscribe(settings, intake, found)
        _poll(settings, intake, found)
    except BaseException:
        found.running.close()
        raise
    return found


def _listen(settings: Settings, intake: Intake, found: Started) -> None:
    """The OTLP listeners."""
    from kvtrace.collect.otlp.door import Door
    from kvtrace.collect.otlp.received import Otlp

    secret = addresses.token(settings.token_file)
    for name, written in (("otlp-grpc", settings.otlp_grpc), ("otlp-http", settings.otlp_http)):
        if written is None:
            continue
        where = addresses.address(written, f"--{name}")
        addresses.guarded(where, f"--{name}", secret)
        source = Otlp(f"{name} {where}", name, settings.keep_content)
        door = Door(source, intake)
        source.at_end = door.losses
        server = _server(name)(where, door, secret=secret, max_message_bytes=settings.max_message_bytes)
        found.running.callback(server.stop)
        source.name = f"{name} {server.address}"
        found.sources.append(source)
        found.listening.append(source.name)


def _subscribe(settings: Settings, intake: Intake, found: Started) -> None:
    """The subscriptions to KV events.

    Raises:
        UsageError: ZeroMQ's library is not installed.
    """
    try:
        from kvtrace.collect.streams.subscribing import Subscriber
    except ImportError as error:
        raise UsageError(
            f"--kv-events: {error.name} is not installed; pip install 'kvtrace[otlp]'."
        ) from error
    from kvtrace.collect.streams.naming import subscription
    from kvtrace.collect.streams.published import Published
    from kvtrace.sources.decoded import Options

    options = Options(keep_content=settings.keep_content, digest_key=secrets.token_bytes(32))
    wanted = list(dict.fromkeys(subscription(text) for text in settings.kv_events))
    sources = [Published(f"kv-events {one.url}", options, alone=len(wanted) == 1) for one in wanted]
    subscriber = Subscriber(
        zip(wanted, sources, strict=True), intake, max_message_bytes=settings.max_message_bytes
    )
    found.running.callback(subscriber.stop)
    found.sources += sources
    found.listening += subscriber.listening


def _poll(settings: Settings, intake: Intake, found: Started) -> None:
    """The pages."""
    from kvtrace.collect.pages.fetching import place
    from kvtrace.collect.pages.metrics import Metrics
    from kvtrace.collect.pages.polling import Polling
    from kvtrace.collect.pages.status import Status

    wanted: list[tuple[Place, Source]] = []
    for url in dict.fromkeys(settings.metrics):
        where = place(url, "--metrics", "/metrics")
        wanted.append((where, Metrics(f"metrics {where.shown}")))
    for url in dict.fromkeys(settings.status):
        where = place(url, "--status", "/status")
        wanted.append((where, Status(f"status {where.shown}")))
    for where, source in wanted:
        polling = Polling(where, source, intake, every_seconds=settings.every_seconds)
        found.running.callback(polling.stop)
        found.sources.append(source)


def _server(name: str) -> Callable[..., Listener]:
    """The class of a listener, imported when it is asked for.

    Raises:
        UsageError: its library is not installed.
    """
    try:
        if name == "otlp-grpc":
            from kvtrace.collect.otlp.grpc_server import GrpcServer

            return GrpcServer
        from kvtrace.collect.otlp.http_server import HttpServer
    except ImportError as error:
        raise UsageError(f"--{name}: {error.name} is not installed; pip install 'kvtrace[otlp]'.") from error
    return HttpServer
