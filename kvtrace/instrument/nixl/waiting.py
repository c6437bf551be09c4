"""What is prepared, and what is under way: by the number of its handle.

NIXL's handles take no attribute of ours and their numbers come again once they are freed: a number that is
given to something new ends what it stood for. Both collections are bounded; of too many the oldest are
forgotten and their rows stay open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kvtrace.instrument.nixl.sizes import Sizes

LIMIT = 10_000
request_of: Callable[[bytes], str | None] | None = None
"""Reads a request id from a notification; None: nobody said how."""
_lists: dict[int, tuple[str, Sizes]] = {}
_transfers: dict[int, Transfer] = {}


class Transfer:
    """One transfer that is prepared; `span_id` while it is under way, once it was posted."""

    __slots__ = ("bytes", "descriptors", "far", "load", "near", "notif", "peer", "span_id", "submit_ns")

    def __init__(
        self,
        *,
        load: bool,
        near: str,
        far: str,
        peer: str,
        notif: Any,
        size: int | None,
        descriptors: int | None,
    ) -> None:
        self.load = load
        self.near = near
        self.far = far
        self.peer = peer
        self.notif = notif
        self.bytes = size
        self.descriptors = descriptors
        self.span_id: int | None = None
        self.submit_ns = 0


def number(handle: Any) -> int:
    """What a handle is known by."""
    return int(handle._handle)  # noqa: SLF001 - the only name that NIXL gives it


def prepared_list(handle: Any, tier: str, sizes: Sizes) -> None:
    """A list of descriptors was prepared; transfers name it with the places they mean."""
    _bounded(_lists)[number(handle)] = (tier, sizes)


def list_of(handle: Any) -> tuple[str, Sizes]:
    """The medium and the sizes of a prepared list."""
    return _lists.get(number(handle), ("unknown", None))


def forget_list(handle: Any) -> None:
    """It was released."""
    _lists.pop(number(handle), None)


def prepared(handle: Any, transfer: Transfer) -> Transfer | None:
    """A transfer was prepared; what its number stood for before, if that never ended."""
    old = _transfers.pop(number(handle), None)
    _bounded(_transfers)[number(handle)] = transfer
    return None if old is None or old.span_id is None else old


def of(handle: Any) -> Transfer | None:
    """The transfer of this handle, if it was prepared while we looked."""
    return _transfers.get(number(handle))


def forget(handle: Any) -> None:
    """It was released."""
    _transfers.pop(number(handle), None)


def _bounded(collection: dict[int, Any]) -> dict[int, Any]:
    while len(collection) >= LIMIT:
        try:
            del collection[next(iter(collection))]
        except (KeyError, StopIteration, RuntimeError):
            break  # another thread was faster
    return collection


def read_request(message: Any) -> str | None:
    """The request that a notification names, if somebody said how to read it."""
    if request_of is None or not message:
        return None
    return request_of(message if isinstance(message, bytes) else str(message).encode())


def shown(message: Any) -> str | None:
    """A notification as text: what is not printable is only counted."""
    if not message:
        return None
    text = message.decode("ascii", "replace") if isinstance(message, bytes) else str(message)
    return text if len(text) <= 256 and text.isascii() and text.isprintable() else f"{len(message)} bytes"
