"""On which medium does a key lie? Known only where the program itself asked (`get_replica_desc`).

A get does not say which replica it read, and asking on our own account would renew the key's lease. What a
program was told holds until the key is written or removed again, for the last LIMIT keys; all else is `peer`,
the cluster's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LIMIT = 10_000
FAR = "peer"
NEAREST = ("host", "peer", "disk")
_known: dict[str, str] = {}


def medium(store: Any, replica: Any) -> str:
    """The tier of one replica: memory of this machine, of another, or a disk."""
    if not replica.is_memory_replica():
        return "disk"
    endpoint = replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
    return "host" if _machine(endpoint) == _machine(store.get_hostname()) else FAR


def learn(key: str, media: list[str]) -> None:
    """The program was told where a key's replicas are: the nearest is what a get reads."""
    forget((key,))
    if media:
        while len(_known) >= LIMIT:
            del _known[next(iter(_known))]
        _known[key] = min(media, key=NEAREST.index)


def forget(keys: Iterable[str]) -> None:
    """They were written or removed: they may lie elsewhere now."""
    if _known:
        for key in keys:
            _known.pop(key, None)


def of(keys: Iterable[str]) -> str:
    """The medium of these keys, if it is one."""
    media = {_known.get(key, FAR) for key in keys} if _known else set()
    return media.pop() if len(media) == 1 else FAR


def _machine(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
