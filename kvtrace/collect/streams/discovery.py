"""Channels of Dynamo's event plane with file discovery: FOLDER/v1/event_channels/*, a JSON document each.

{"type": "EventChannel", "topic": "kv-events", ...,
 "transport": {"kind": "Zmq", "config": {"endpoint": "tcp://HOST:PORT"}}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS = "v1/event_channels"
MAX_CHANNELS = 1_000
MAX_BYTES = 1 << 16


def endpoints(folder: Path) -> list[str]:
    """Endpoints of every channel that is listed there now, in the order of their files; [] without any."""
    try:
        files = sorted(path for path in (folder / CHANNELS).rglob("*") if path.is_file())[:MAX_CHANNELS]
    except OSError:
        return []
    found = (_endpoint(file) for file in files)
    return [endpoint for endpoint in found if endpoint is not None]


def _endpoint(file: Path) -> str | None:
    """Where a channel is published; None for what is no channel, or is being written."""
    try:
        with file.open("rb") as opened:
            document = msgspec.json.decode(opened.read(MAX_BYTES))
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return _zmq(document, 0)


def _zmq(value: Any, depth: int) -> str | None:
    """The first tcp:// or ipc:// text of a document."""
    if isinstance(value, str):
        return value if value.startswith(("tcp://", "ipc://")) and len(value) < 256 else None
    if isinstance(value, dict) and depth < 8:
        return next((found for item in value.values() if (found := _zmq(item, depth + 1))), None)
    return None
