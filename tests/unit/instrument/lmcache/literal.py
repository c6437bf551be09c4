"""LMCache 0.5.5's objects as its source draws them, and rows as dictionaries of what is not null."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvtrace.recorder.shapes import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

AT = 5_000
SPACE = "lmcache:unknown:m"


@dataclass(frozen=True)
class Key:
    """`ObjectKey`: a chunk of one rank and one object group."""

    chunk_hash: bytes
    model_name: str = "m"
    kv_rank: int = 0x02000200
    object_group_id: int = 0
    cache_salt: str = ""


class Backend(Enum):
    """`L1BackendType`."""

    DRAM = "dram"
    DEVDAX = "devdax"


@dataclass(frozen=True)
class Meta:
    """`L1ObjectMeta`."""

    size_bytes: int
    backend: Backend = Backend.DRAM


class Kind(Enum):
    """Some of `EventType`, and one that nobody knows."""

    LOCKED = "l1.read.reserved"
    TOKENS = "mp.tokens"
    STARTED = "mp.request.start"
    NEW = "l9.moved"


@dataclass
class Event:
    """`Event`."""

    event_type: Kind
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str = ""
    timestamp: float = 2.0


class Bus:
    """`EventBus`: what is subscribed to, and what it says of itself."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._config = SimpleNamespace(enabled=enabled)
        self._registered_subscribers: list[Any] = []
        self.callbacks: dict[Kind, list[Callable[[Event], None]]] = {}
        self.dropped = 0
        self.failures: dict[str, int] = {}

    def start(self) -> None:
        """Nothing runs here."""

    def subscribe(self, kind: Kind, callback: Callable[[Event], None]) -> None:
        self.callbacks.setdefault(kind, []).append(callback)

    def publish(self, event: Event) -> None:
        """Deliver it at once."""
        for callback in self.callbacks.get(event.event_type, []):
            callback(event)

    def dropped_events_count(self) -> int:
        return self.dropped

    def subscriber_exception_counts(self) -> dict[str, int]:
        return dict(self.failures)

    def queue_depth(self) -> int:
        return 0


def key(number: int, rank: int = 0, **more: Any) -> Key:
    """The key of chunk `number` on one rank: world size 2, rank, local world size 2, local rank."""
    return Key(bytes([number]) * 4, kv_rank=0x02000200 | rank << 16 | rank, **more)


def read(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows with their names, without what is null; `part` where it is not a whole row."""
    found = []
    for row in rows:
        kind = DEFINITIONS[row[0]]
        assert len(kind.columns) == len(row) - 1
        values = {**kind.constants, **dict(zip(kind.columns, row[1:], strict=True))}
        part = {} if kind.part == "whole" else {"part": kind.part}
        found.append(part | {name: value for name, value in values.items() if value is not None})
    return found
