"""Which trace and which span is a request, whoever sends it?

Rows are over before the request that they belong to, and several processes send them, so that ids of a
request's spans cannot be looked up: they are hashes of its id.
"""

from __future__ import annotations

from hashlib import sha256


def own_trace(request_id: str) -> int:
    """The trace of a request whose caller named none: the first 128 bits of its id's SHA-256."""
    return _bits(request_id, 16)


def request_span(request_id: str, observer: str) -> int:
    """Span id of what one observer recorded of a request."""
    return _bits(f"{request_id}\0{observer}", 8)


def operation_trace(run_id: str, span_id: int) -> int:
    """The trace of a row that no single request owns, such as a step."""
    return _bits(f"{run_id}\0{span_id}", 16)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:size], "big") or 1
