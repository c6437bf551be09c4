"""How do the calls of an agent become one row a transfer?

    transfer(handle)            submit      ┐
    check_xfer_state(handle)    PROC ...    │ the row; a handle may be posted again: another row
    check_xfer_state(handle)    DONE        ┘

READ brings bytes to the local side: a load; WRITE sends them away: a store. What an agent raises goes on.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import asked
from kvtrace.instrument.nixl import sizes, waiting
from kvtrace.instrument.nixl.waiting import Transfer
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from typing import Any

LOCAL = ("NIXL_INIT_AGENT", "")
TELEMETRY = "_kvtrace_telemetry"
"""On an agent: whether it captures telemetry. Asking one that does not writes an error to its log."""
REASONS = {
    "nixlNotFoundError": "not_found", "nixlRemoteDisconnectError": "unhealthy", "nixlBackendError": "io",
}  # fmt: skip
STORE_REASONS = ("unhealthy", "io")
_COLUMNS = (
    "span_id", "name", "request_id", "transfer_id", "attribution", "submit_ns", "start_ns", "bytes",
    "tier_from", "tier_to", "attributes.peer", "attributes.descriptors", "attributes.notif",
)  # fmt: skip
_OVER = ("end_ns", "outcome", "reason", "attributes.error")
_ALL: dict[str, str] = {
    "component": "nixl", "observer": "worker", "evidence": "shim", "clock": "host",
}  # fmt: skip
OPEN = {op: recorder.shape("span", _COLUMNS, part="open", op=op, **_ALL) for op in ("load", "store")}
WHOLE = {op: recorder.shape("span", (*_COLUMNS, *_OVER), op=op, **_ALL) for op in ("load", "store")}
CLOSE = recorder.shape(
    "span",
    ("span_id", *_OVER, "start_ns", "bytes", "component", "attributes.times", "attributes.post_ns",
     "attributes.reported_after_ns"),
    part="close",
)  # fmt: skip
NOTIF = recorder.shape(
    "span",
    ("name", "start_ns", "end_ns", "request_id", "attribution", "attributes.peer", "attributes.notif"),
    component="nixl", observer="worker", evidence="shim", clock="host",
)  # fmt: skip


def instrument(cls: type) -> None:
    """Wrap what this class of agents has; what a version lacks is reported, not invented."""
    after(cls, "__init__", _made)
    after(cls, "prep_xfer_dlist", _listed)
    after(cls, "release_dlist_handle", _list_released)
    around(cls, "initialize_xfer", _began, _initialized, _not_initialized)
    around(cls, "make_prepped_xfer", _began, _prepped, _not_prepped)
    around(cls, "transfer", _began, _posted, _not_posted)
    around(cls, "check_xfer_state", _began, _checked, _check_failed)
    around(cls, "release_xfer_handle", _began, _released)
    after(cls, "get_new_notifs", _notified)


def _began(*_: Any, **__: Any) -> int:
    return recorder.now()


def _made(_: None, agent: Any, *args: Any, **kwargs: Any) -> None:
    configuration = kwargs.get("nixl_conf", args[1] if len(args) > 1 else None)
    said = os.environ.get("NIXL_TELEMETRY_ENABLE", "").lower() in ("y", "yes", "1", "true", "on")
    setattr(agent, TELEMETRY, said or bool(getattr(configuration, "capture_telemetry", False)))


def _listed(
    handle: Any, agent: Any, agent_name: str, xfer_list: Any, mem_type: str | None = None, *_: Any, **__: Any
) -> None:
    here = agent.name if agent_name in LOCAL else agent_name
    medium = sizes.tier(xfer_list, mem_type, here, agent.name)
    waiting.prepared_list(handle, medium, sizes.sizes(xfer_list, sizes.PREPARED))


def _list_released(_: Any, agent: Any, handle: Any) -> None:
    del agent
    waiting.forget_list(handle)


def _described(
    agent: Any, operation: str, local_descs: Any, remote_descs: Any, remote_agent: str, notif_msg: Any = b"",
    *_: Any, **__: Any,
) -> Transfer:  # fmt: skip
    each = sizes.sizes(local_descs, sizes.COUNTED)
    return Transfer(
        load=operation == "READ", peer=remote_agent, notif=notif_msg,
        near=sizes.tier(local_descs, None, agent.name, agent.name),
        far=sizes.tier(remote_descs, None, remote_agent, agent.name),
        size=None if each is None else sum(each), descriptors=sizes.count(local_descs),
    )  # fmt: skip


def _prepared(
    operation: str, local_xfer_side: Any, local_indices: Any, remote_xfer_side: Any, remote_indices: Any,
    notif_msg: Any = b"", *_: Any, **__: Any,
) -> Transfer:  # fmt: skip
    del remote_indices
    near, each = waiting.list_of(local_xfer_side)
    far, _sizes = waiting.list_of(remote_xfer_side)
    size = None if each is None else sum(each[int(place)] for place in local_indices)
    return Transfer(
        load=operation == "READ", peer="", notif=notif_msg, near=near, far=far, size=size,
        descriptors=len(local_indices),
    )  # fmt: skip


def _initialized(_: int, handle: Any, agent: Any, *args: Any, **kwargs: Any) -> None:
    _replaced(waiting.prepared(handle, _described(agent, *args, **kwargs)))


def _prepped(_: int, handle: Any, _agent: Any, *args: Any, **kwargs: Any) -> None:
    _replaced(waiting.prepared(handle, _prepared(*args, **kwargs)))


def _not_initialized(start_ns: int, error: BaseException, agent: Any, *args: Any, **kwargs: Any) -> None:
    _failed("initialize_xfer", start_ns, error, _described(agent, *args, **kwargs))


def _not_prepped(start_ns: int, error: BaseException, _agent: Any, *args: Any, **kwargs: Any) -> None:
    _failed("make_prepped_xfer", start_ns, error, _prepared(*args, **kwargs))


def _not_posted(start_ns: int, error: BaseException, _agent: Any, handle: Any, *_: Any, **__: Any) -> None:
    """Nothing new is under way; what was posted before may still be."""
    found = waiting.of(handle)
    if found is not None:
        _failed("transfer", start_ns, error, found)


def _posted(
    start_ns: int, state: str, agent: Any, handle: Any, notif_msg: Any = b"", *_: Any, **__: Any
) -> None:
    found = waiting.of(handle)
    if found is None:
        return
    found.span_id, found.submit_ns = recorder.next_id(), start_ns
    found.notif = notif_msg or found.notif
    op = "load" if found.load else "store"
    recorder.record((OPEN[op], found.span_id, *_columns("transfer", found, start_ns)))
    _seen(state, agent, handle, found)


def _checked(_: int, state: str, agent: Any, handle: Any) -> None:
    found = waiting.of(handle)
    if found is not None and found.span_id is not None:
        _seen(state, agent, handle, found)


def _check_failed(_: int, error: BaseException, _agent: Any, handle: Any) -> None:
    found = waiting.of(handle)
    if found is not None and found.span_id is not None:
        _close(found, recorder.now(), "failed", _reason(error, load=found.load), type(error).__name__)


def _released(_: int, _result: Any, _agent: Any, handle: Any) -> None:
    found = waiting.of(handle)
    if found is not None and found.span_id is not None:
        _close(found, recorder.now(), "cancelled", None, None)
    waiting.forget(handle)


def _replaced(old: Transfer | None) -> None:
    """Its handle is gone without a word: dropped while it was under way."""
    if old is not None:
        _close(old, recorder.now(), "unknown", None, "handle dropped")


def _seen(state: str, agent: Any, handle: Any, found: Transfer) -> None:
    """The state that the caller was told."""
    now = recorder.now()
    if state == "ERR":
        _close(found, now, "failed", "io", state)
    elif state == "DONE":
        _close(found, now, "ok", None, None, *_measured(agent, handle))


def _measured(agent: Any, handle: Any) -> tuple[Any, str | None]:
    """NIXL's own times and the backend it chose, as far as it tells them."""
    telemetry = backend = None
    with suppress(Exception):
        backend = agent.query_xfer_backend(handle)
        if getattr(agent, TELEMETRY, False):
            telemetry = agent.get_xfer_telemetry(handle)
    return telemetry, backend


def _close(
    found: Transfer, now: int, outcome: str, reason: str | None, error: str | None, telemetry: Any = None,
    backend: str | None = None,
) -> None:  # fmt: skip
    start_ns, end_ns, size = found.submit_ns, now, found.bytes
    times, post_ns = "observed", None
    if telemetry is not None and telemetry.startTime:  # microseconds of the monotonic clock
        start_ns = min(max(telemetry.startTime * 1_000, start_ns), now)
        end_ns = min(start_ns + telemetry.xferDuration * 1_000, now)
        size, post_ns, times = telemetry.totalBytes, telemetry.postDuration * 1_000, "telemetry"
    component = "nixl" if backend is None else f"nixl.{backend.lower()}"
    row = (found.span_id, end_ns, outcome, reason, error, start_ns, size, component)
    recorder.record((CLOSE, *row, times, post_ns, now - end_ns))
    found.span_id = None


def _columns(name: str, found: Transfer, start_ns: int) -> tuple[Any, ...]:
    request_id, transfer_id, attribution = asked.by("operation")
    if request_id is None:
        request_id = waiting.read_request(found.notif)
        attribution = attribution if request_id is None else "request"
    media = (found.far, found.near) if found.load else (found.near, found.far)
    return (
        name, request_id, transfer_id, attribution, start_ns, start_ns, found.bytes, *media,
        found.peer or None, found.descriptors, waiting.shown(found.notif),
    )  # fmt: skip


def _failed(name: str, start_ns: int, error: BaseException, found: Transfer) -> None:
    fate = (recorder.now(), "failed", _reason(error, load=found.load), type(error).__name__)
    shape = WHOLE["load" if found.load else "store"]
    columns = _columns(name, found, start_ns)
    recorder.record((shape, recorder.next_id(), *columns[:6], None, *columns[7:], *fate))


def _reason(error: BaseException, *, load: bool) -> str:
    reason = REASONS.get(type(error).__name__, "unknown")
    return reason if load or reason in STORE_REASONS else "unknown"


def _notified(result: Any, _agent: Any, *_: Any, **__: Any) -> None:
    """What peers told us: their transfers are over on their side."""
    now = recorder.now() if result else 0
    for peer, messages in (result or {}).items():
        for message in messages:
            request_id = waiting.read_request(message)
            kind = "operation" if request_id is None else "request"
            recorder.record((NOTIF, "notification", now, now, request_id, kind, peer, waiting.shown(message)))
