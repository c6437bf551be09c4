"""How does a transfer of Mooncake's engine become a row?

    transfer_sync_read(...) -> 0             load, start and end of the call
    batch_transfer_async_write(...) -> id    store, open ...
    get_batch_transfer_status([id]) -> 0     ... until an answer says that it is over

A read brings bytes here, a write sends them away; the other end is a `peer`. The engine says that a transfer
failed, not why: reason `io`. A batch that nobody asks about stays open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import asked
from kvtrace.instrument.mooncake.store import near
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from typing import Any

LIMIT = 10_000
"""Transfers that may be under way; of more the oldest are forgotten and stay open."""
_COLUMNS = (
    "span_id", "name", "request_id", "transfer_id", "attribution", "submit_ns", "start_ns", "bytes",
    "attributes.peer", "attributes.buffers",
)  # fmt: skip
_OVER = ("end_ns", "outcome", "reason", "attributes.returned")
_ALL: dict[str, str] = {
    "component": "mooncake.engine", "observer": "worker", "evidence": "shim", "clock": "host",
}  # fmt: skip
_READ: dict[str, str] = {"op": "load", "tier_from": "peer", **_ALL}
_WRITE: dict[str, str] = {"op": "store", "tier_to": "peer", **_ALL}
LOAD = recorder.shape("span", (*_COLUMNS, "tier_to", *_OVER), **_READ)
STORE = recorder.shape("span", (*_COLUMNS, "tier_from", *_OVER), **_WRITE)
LOAD_OPEN = recorder.shape("span", (*_COLUMNS, "tier_to"), part="open", **_READ)
STORE_OPEN = recorder.shape("span", (*_COLUMNS, "tier_from"), part="open", **_WRITE)
CLOSE = recorder.shape("span", ("span_id", *_OVER), part="close")


def instrument(cls: type) -> None:
    """Wrap the transfers of this class of engines; what a version lacks is reported, not invented."""
    for name in ("transfer_sync", "batch_transfer_sync"):
        around(cls, name, _begin, _ended(name), _raised(name))
        for way in ("read", "write"):
            around(cls, f"{name}_{way}", _begin, _ended(f"{name}_{way}"), _raised(f"{name}_{way}"))
    waiting: dict[int, int] = {}
    for name in (
        "batch_transfer_async", "batch_transfer_async_read", "batch_transfer_async_write",
        "transfer_submit_write",
    ):  # fmt: skip
        around(cls, name, _begin, _submitted(name, waiting), _raised(name))
    for name in ("get_batch_transfer_status", "transfer_check_status"):
        around(cls, name, _asking(waiting), _told(waiting))


def _begin(*_: Any, **__: Any) -> int:
    return recorder.now()


def _what(name: str, start_ns: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    """Whether it is a read, and the columns that are known when a transfer is asked for."""
    args = (*args, *[None] * (5 - len(args)))
    lengths = next((kwargs[key] for key in ("lengths", "length") if key in kwargs), args[3])
    batch = isinstance(lengths, (list, tuple))
    opcode = kwargs.get("opcode", args[4])
    read = name.endswith("read") or (not name.endswith("write") and getattr(opcode, "name", None) == "Read")
    total, count = (sum(lengths), len(lengths)) if batch else (lengths, 1)
    peer = kwargs.get("target_hostname", args[0])
    row = (name, *asked.by("operation"), start_ns, start_ns, total, peer, count, near(name))
    return read, row


def _ended(name: str) -> Any:
    def ended(start_ns: int, result: Any, _engine: Any, *args: Any, **kwargs: Any) -> None:
        end_ns = recorder.now()
        read, row = _what(name, start_ns, args, kwargs)
        fate = ("ok", None, None) if result == 0 else ("failed", "io", str(result))
        recorder.record((LOAD if read else STORE, recorder.next_id(), *row, end_ns, *fate))

    ended.__qualname__ = f"ended.{name}"
    return ended


def _raised(name: str) -> Any:
    def raised(start_ns: int, error: BaseException, _engine: Any, *args: Any, **kwargs: Any) -> None:
        end_ns = recorder.now()
        read, row = _what(name, start_ns, args, kwargs)
        fate = ("failed", "unknown", type(error).__name__)
        recorder.record((LOAD if read else STORE, recorder.next_id(), *row, end_ns, *fate))

    raised.__qualname__ = f"raised.{name}"
    return raised


def _submitted(name: str, waiting: dict[int, int]) -> Any:
    """It is on its way under the number that it was given; 0 or less: it was not taken."""

    def submitted(start_ns: int, result: Any, _engine: Any, *args: Any, **kwargs: Any) -> None:
        read, row = _what(name, start_ns, args, kwargs)
        span_id = recorder.next_id()
        if result is None or result <= 0:
            shape = LOAD if read else STORE
            recorder.record((shape, span_id, *row, recorder.now(), "failed", "io", str(result)))
            return
        recorder.record((LOAD_OPEN if read else STORE_OPEN, span_id, *row))
        if len(waiting) >= LIMIT:
            waiting.pop(next(iter(waiting)), None)
        waiting[result] = span_id

    submitted.__qualname__ = f"submitted.{name}"
    return submitted


def _asking(waiting: dict[int, int]) -> Any:
    """The spans that a question is about, before the engine may give their numbers to others."""

    def asking(_engine: Any, numbers: Any, *_: Any, **__: Any) -> Any:
        own = numbers if isinstance(numbers, (list, tuple)) else [numbers]
        found = [(number, waiting[number]) for number in own if number in waiting]
        return found or SKIP

    return asking


def _told(waiting: dict[int, int]) -> Any:
    """One answer for all that were asked about: 0 or 1 by method, negative when one of them failed."""

    def told(
        found: list[tuple[int, int]], result: Any, _engine: Any, numbers: Any, *_: Any, **__: Any
    ) -> None:
        if result == 0 and not isinstance(numbers, (list, tuple)):
            return  # still under way
        end_ns = recorder.now()
        fate: tuple[str | None, ...] = ("ok", None, None)
        if result < 0:
            fate = ("failed", "io", str(result)) if len(found) == 1 else ("unknown", None, str(result))
        for number, span_id in found:
            if waiting.get(number) == span_id:
                del waiting[number]
            recorder.record((CLOSE, span_id, end_ns, *fate))

    return told
