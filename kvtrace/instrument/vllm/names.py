"""Under which names is one request known?

    X-Request-Id: a7  ─►  cmpl-a7-0  ─►  cmpl-a7-0-92cea7c0  (n > 1: 0_cmpl-a7-0-92cea7c0, 1_...)
    client                external       internal, the request_id of every row

An HTTP handler reads the caller's id. It adds its requests in the same task, and the id is kept in that
task's context, or, when its answer is streamed, from the task that streams: then the call is one of the last
RECENT, found by the caller's id in the external one by vLLM's rule. Where there is no call (an offline
engine) that rule alone gives the caller's id. vLLM drops the caller's trace when it exports no spans itself;
we keep it.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from typing import Any

Call = tuple[str, "str | None"]
"""The caller's id, and its traceparent."""
TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}.*")
CLIENT = (re.compile(r"(?s)cmpl-(.+)-\d+"), re.compile(r"(?s)chatcmpl-(.+?)(?:_\d+)?"))
"""vLLM 0.32: the external id is the endpoint's prefix, the caller's id, and the prompt's number."""
RECENT = 4_096
"""Calls that are remembered beyond their task: more than a server reads before it adds their requests."""
_recent: dict[str, Call] = {}
_call: ContextVar[Call | None] = ContextVar("kvtrace_call", default=None)
_COLUMNS = ("alias", "kind", "request_id")
_SEEN = recorder.shape("alias", _COLUMNS, source="vllm", evidence="shim")
_DERIVED = recorder.shape("alias", _COLUMNS, source="vllm", evidence="derived")


def asked(result: str, raw_request: Any = None, *_: Any, **__: Any) -> None:
    """Keep what the handler of this task just read: the caller's id, or the one it made up for it."""
    headers = getattr(raw_request, "headers", None)
    call = (result, None if headers is None else headers.get("traceparent"))
    _call.set(call)
    _recent.pop(result, None)
    _recent[result] = call
    if len(_recent) > RECENT:
        del _recent[next(iter(_recent))]


def call_of(external: str) -> Call | None:
    """The HTTP call that this request belongs to; None when it came another way."""
    call = _call.get()
    if call is not None and call[0] in external:
        return call
    client = client_of(external)
    return None if client is None else _recent.get(client)


def traceparent_of(request: Any, call: Call | None) -> str | None:
    """The caller's W3C traceparent, where it is one."""
    given = call[1] if call is not None else None
    if given is None and request.trace_headers:
        given = request.trace_headers.get("traceparent")
    return given if given is not None and TRACEPARENT.fullmatch(given) else None


def trace_of(traceparent: str | None) -> tuple[str | None, int | None]:
    """Trace id and the caller's span id; ids of the upper half need all 64 bits."""
    return (None, None) if traceparent is None else (traceparent[3:35], int(traceparent[36:52], 16))


def user_call(request: Any) -> str | None:
    """What ties prefill and decode of one call: the prefill engine's internal id, which both know."""
    extra = getattr(request.sampling_params, "extra_args", None)
    transfer = extra.get("kv_transfer_params") if extra else None
    if not transfer:
        return None
    if transfer.get("do_remote_decode"):
        return str(request.request_id)
    remote = transfer.get("remote_request_id")
    return str(remote) if remote is not None else None


def record(request_id: str, external: str, call: Call | None, traceparent: str | None) -> None:
    """Write every other name of a request."""
    if external != request_id:
        recorder.record((_SEEN, external, "external", request_id))
    if call is not None:
        recorder.record((_SEEN, call[0], "client", request_id))
    else:
        client = client_of(external)
        if client is not None:
            recorder.record((_DERIVED, client, "client", request_id))
    if traceparent is not None:
        recorder.record((_SEEN, traceparent[3:35], "trace", request_id))


def client_of(external: str) -> str | None:
    """The caller's id in an external one, by vLLM's rule."""
    for rule in CLIENT:
        found = rule.fullmatch(external)
        if found:
            return found[1]
    return None
