"""Answers as OTLP says them: a signal's own response and google.rpc.Status, in protobuf and in JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from google.protobuf.any_pb2 import Any as AnyMessage

if TYPE_CHECKING:
    from kvtrace.collect.otlp.door import Answer

RETRY_SECONDS = 1
RESOURCE_EXHAUSTED = 8
LONGEST = 127
"""Bytes of a message: its length then fits into one byte."""
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def success(answer: Answer, *, text: bool = False) -> bytes:
    """All taken, or all but some."""
    signal = answer.signal
    if text:
        partial = {signal.camel: str(answer.rejected), "errorMessage": answer.words}
        return json.dumps({"partialSuccess": partial} if answer.rejected else {}).encode()
    said = signal.response()
    if answer.rejected:
        setattr(said.partial_success, signal.rejected, answer.rejected)
        said.partial_success.error_message = answer.words
    found: bytes = said.SerializeToString()
    return found


def status(message: str, *, text: bool = False, code: int = 0, details: bytes = b"") -> bytes:
    """google.rpc.Status: { int32 code = 1; string message = 2; repeated Any details = 3 }."""
    if text:
        return json.dumps({"message": message}).encode()
    number = b"\x08" + bytes([code]) if code else b""
    return (
        number
        + _field(2, message.encode("ascii", "replace")[:LONGEST])
        + (_field(3, details) if details else b"")
    )


def full() -> bytes:
    """A Status that asks to come again soon: without RetryInfo, RESOURCE_EXHAUSTED is not to be repeated."""
    delay = _field(1, b"\x08" + bytes([RETRY_SECONDS]))  # RetryInfo { Duration { int64 seconds = 1 } = 1 }
    details = AnyMessage(type_url=_RETRY_INFO, value=delay).SerializeToString()
    return status("the queue is full; send it again", code=RESOURCE_EXHAUSTED, details=details)


def _field(number: int, content: bytes) -> bytes:
    """One field of protobuf with a length, which is LONGEST at most."""
    return bytes([number << 3 | 2, len(content)]) + content
