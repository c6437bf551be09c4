"""Which of the three recordings is it: lines of JSON, the wire itself, or the wire in frames?

The wire has no magic number, but much structure: an array of three, eight bytes of a sequence number, a
payload that is an array of a time (float64) and events.
"""

from __future__ import annotations

import re

from kvtrace.sources.vllm_kv_events.wire import LENGTH_BYTES, Cut, NoMessageError, opening_at

JSON = "json"
WIRE = "wire"
FRAMES = "frames"
_LONGEST = 1 << 26
_BATCH = re.compile(rb"[\x92-\x9f]\xcb")
"""How a payload begins: a short array whose first item is a float of 64 bits."""
_EVENTS = re.compile(rb'"events"\s*:\s*\[\s*(\]|\{\s*"type"\s*:|\[\s*")')
_TAPPED = re.compile(rb'"payload"\s*:\s*\[\s*[-+0-9.eE]+\s*,\s*\[\s*(\]|\{\s*"type"\s*:|\[\s*")')


def kind_of(head: bytes) -> str | None:
    """`json`, `wire`, `frames`, or None when it is none of them."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        first = text.split(b"\n", 1)[0]
        recorded = b'"seq"' in first and b'"ts"' in first and _EVENTS.search(first)
        tapped = b'"frames"' in first and b'"topic"' in first and _TAPPED.search(first)
        return JSON if recorded or tapped else None
    if _is_message(head):
        return WIRE
    return FRAMES if len(head) > LENGTH_BYTES and _is_message(head[LENGTH_BYTES:], head) else None


def _is_message(head: bytes, framed: bytes = b"") -> bool:
    """Whether a message begins here that holds a batch; `framed` begins with the length of all of it."""
    try:
        _topic, _sequence, start, stop = opening_at(head, 0, _LONGEST)
    except (Cut, NoMessageError):
        return False
    if framed and int.from_bytes(framed[:LENGTH_BYTES], "big") != stop:
        return False
    return bool(_BATCH.match(head, start))
