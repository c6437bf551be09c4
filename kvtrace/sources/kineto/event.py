"""What of an event is looked at, and what of it is left as the text that it is until its kind is known."""

from __future__ import annotations

from typing import Any

import msgspec

NOTHING = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One event of a chrome trace; members that are not named here are skipped."""

    ph: str | None = None
    cat: str | None = None
    name: msgspec.Raw = NOTHING
    pid: msgspec.Raw = NOTHING
    tid: msgspec.Raw = NOTHING
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: msgspec.Raw = NOTHING


class Arguments(msgspec.Struct, gc=False):
    """What is read of an event's arguments, of any type."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    from_device: Any = msgspec.field(default=None, name="fromDevice")
    to_device: Any = msgspec.field(default=None, name="toDevice")
    graph_node: Any = msgspec.field(default=None, name="graph node id")


NO_ARGUMENTS = Arguments()
_ARGUMENTS = msgspec.json.Decoder(Arguments)
_TEXT = msgspec.json.Decoder(str)


def arguments(event: Event) -> Arguments:
    """An event's arguments; none where it has none, or they are no object."""
    try:
        return _ARGUMENTS.decode(event.args) if event.args else NO_ARGUMENTS
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return NO_ARGUMENTS


def text_of(raw: msgspec.Raw) -> str | None:
    """A member that should be a text; None when it is none."""
    try:
        return _TEXT.decode(raw) if raw else None
    except (msgspec.MsgspecError, ValueError):
        return None
