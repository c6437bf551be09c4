"""The hot path inside an engine: tuples in, spool frames out. Standard library alone.

    STEP = shape("span", ("start_ns", "end_ns", "members"), op="step", observer="scheduler", evidence="shim")
    record((STEP, now(), now(), members))

Never raises into the engine, never blocks it, holds nothing per open operation, and counts what it loses.
Without KVTRACE_OUT (the absolute run directory) everything here does nothing. Also read: KVTRACE_ANCHOR
(monotonic ns:unix ns, the run's one anchor) and KVTRACE_RUN_ID.

    shapes.py     kinds of rows                     writing.py    rows -> frames, losses, facts, anchors
    buffers.py    rows of one thread that wait      encoding.py   columns -> bytes
    recording.py  one process's threads and end     appending.py  the file
    losses.py     what is known to be lost          place.py      who and where this process is

Values of a row are int, str, float, bool or None (not observed); every *_ns is raw monotonic ns. What is
handed in must not be changed afterwards: it is read when it is written, up to FLUSH_S later.
"""

from __future__ import annotations

import os
from itertools import count
from time import monotonic_ns as now

from kvtrace.recorder.buffers import Buffer, Local, Token
from kvtrace.recorder.recording import Recording
from kvtrace.recorder.shapes import IDENTITY, Shape, shape
from kvtrace.schema.frames import ID_SHIFT, PREFIX_BITS

__all__ = [
    "Shape", "close", "describe", "divert", "enabled", "flush", "identity", "lost", "next_id", "now",
    "record", "shape",
]  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Taker = Callable[[tuple[object, ...]], object]

_local = Local()
_recordings: dict[int, Recording] = {}
_inherited: dict[str, object] = {}
_OFF = Buffer(None, 0)
"""Of threads whose rows nobody writes; stays empty."""
_prefix = 0
_ids = count()
_taker: Taker | None = None


def divert(taker: Taker | None) -> None:
    """Hand each row to `taker`, in the thread that records it, where no recording is asked for; None ends it.

    With KVTRACE_OUT rows are written, and `taker` sees none of them. What it raises goes nowhere.
    """
    global _taker
    _taker = taker


def record(row: tuple[object, ...]) -> None:
    """Keep one row, (SHAPE, value, value, ...) in the order of the shape's columns."""
    try:
        buffer = _local.buffer
        if len(buffer) < buffer.quota:
            buffer.append(row)
        else:
            _crowded(buffer, row)
    except AttributeError:
        _first(row)
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def next_id() -> int:
    """A span id that no other process of the run gives: this process's prefix and a counter."""
    return next(_ids)


def describe(**facts: str | int | dict[str, object]) -> None:
    """Say what this process is: engine, role, product, version, instruments, config ...; calls merge."""
    try:
        recording = _recording()
        if recording is not None:
            recording.facts.append({k: dict(v) if isinstance(v, dict) else v for k, v in facts.items()})
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def identity(
    identity_id: str,
    side: str,
    fields: dict[str, str],
    *,
    source: str,
    enforced_by: dict[str, str] | str | None = None,
) -> None:
    """Rows of `identity`: one a field, on the writing or the reading side."""
    try:
        for name, value in fields.items():
            who = enforced_by.get(name) if isinstance(enforced_by, dict) else enforced_by
            record((IDENTITY, identity_id, side, name, value, source, who))
    except Exception as error:  # noqa: BLE001 - never into the engine
        lost("undecodable", detail=f"identity: {type(error).__name__}")


def lost(cause: str, count: int = 1, *, op: str | None = None, detail: str | None = None) -> None:
    """Count records that are missing; `cause` is one of schema.vocabulary.LOSS_CAUSES."""
    try:
        recording = _recording()
        if recording is not None:
            recording.writing.losses.add(cause, count, op, detail)
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def enabled() -> bool:
    """Whether rows are wanted: KVTRACE_OUT names a directory and close() was not called, or `divert` was."""
    try:
        recording = _recordings.get(os.getpid())
        if recording is not None:
            return not recording.closed
        return os.path.isdir(_out()) or (_taker is not None and not _out())
    except Exception:  # noqa: BLE001 - never into the engine
        return False


def flush(timeout_s: float = 1.0) -> None:
    """Return when everything recorded so far is in the spool, or after the timeout."""
    try:
        recording = _recordings.get(os.getpid())
        if recording is not None:
            recording.flush(timeout_s)
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def close() -> None:
    """Write what is left and the closing mark. Also runs at exit; nothing is recorded afterwards."""
    try:
        recording = _recordings.get(os.getpid())
        if recording is not None:
            recording.close()
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def _out() -> str:
    out = os.environ.get("KVTRACE_OUT", "")
    return out if os.path.isabs(out) else ""


def _recording() -> Recording | None:
    """The recording of this process, begun if it is not; None without KVTRACE_OUT.

    Two threads may be here at once, or a signal handler inside: setdefault lets one of them win.
    """
    pid = os.getpid()
    found = _recordings.get(pid)
    if found is not None:
        return found
    out = _out()
    if not out:
        return None
    made = Recording(pid, out, _prefix)
    found = _recordings.setdefault(pid, made)
    if found is made:
        if _inherited:
            made.facts.append(dict(_inherited))
        made.start(close)
        _register_exit()
    return found


def _first(row: tuple[object, ...]) -> None:
    """A thread's first row."""
    try:
        recording = _recording()
        if recording is None or recording.closed:
            _local.buffer = _OFF
            if recording is None and _taker is not None:
                _taker(row)
            return
        token = Token()
        buffer = Buffer(token)
        recording.buffers.append(buffer)
        _local.token, _local.buffer = token, buffer
        record(row)
    except Exception:  # noqa: BLE001, S110 - never into the engine
        pass


def _crowded(buffer: Buffer, row: tuple[object, ...]) -> None:
    recording = _recordings.get(os.getpid())
    if recording is not None:
        if buffer is not _OFF:
            recording.crowded(buffer, row)
        elif not recording.closed:
            _first(row)
    elif _recordings:  # a fork that ran no hooks: what waits is the parent's
        _begin_process()
        _first(row)
    elif _taker is not None and not _out():
        _taker(row)


def _at_exit() -> None:
    """Multiprocessing's own end comes after its children's, and closes us; else this does."""
    recording = _recordings.get(os.getpid())
    if recording is not None and recording.close_later():
        flush()
    else:
        close()


_exit_registered = False


def _register_exit() -> None:
    global _exit_registered
    if not _exit_registered:
        import atexit

        _exit_registered = True
        atexit.register(_at_exit)


def _begin_process() -> None:
    """At import, and in a forked child: no buffer, no recording, ids of our own.

    The child is the same program with the same instruments, so it says again what its parent described,
    all but the role; it records nothing into its parent's spool.
    """
    global _local, _prefix, _ids, _inherited
    _local = Local()
    for recording in _recordings.values():
        try:
            _inherited = {name: value for name, value in recording.forget().items() if name != "role"}
        except Exception:  # noqa: BLE001, S110 - a fork is no place to raise
            pass
    _recordings.clear()
    _prefix = int.from_bytes(os.urandom(3), "big") & ((1 << PREFIX_BITS) - 1) or 1
    _ids = count(_prefix << ID_SHIFT | 1)


_begin_process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)
