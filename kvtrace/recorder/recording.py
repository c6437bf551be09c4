"""The recording of one process: its buffers, its writer thread, its end. State is keyed by process id.

    engine's threads          writer thread (daemon)              spool file
      record(row) ─► Buffer ─►  every FLUSH_S, or when woken: ─►  frames
                    a thread    Writing.cycle

record() takes no lock, so that it may run in a signal handler or a finaliser. `busy` is held by whoever
writes: the writer thread, or flush() and close() where there is none.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from itertools import count

from kvtrace.recorder.buffers import QUOTA_ROWS, Buffer
from kvtrace.recorder.writing import Writing
from kvtrace.schema.frames import FLUSH_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PENDING_ROWS = 200_000
"""Rows that may wait in a process, give or take QUOTA_ROWS a thread; what is over is dropped and counted."""
WAKE_ROWS = 20_000
"""With so many rows waiting the writer does not sleep on."""
CLOSE_S = 3.0


class Recording:
    """Everything that belongs to one process id."""

    def __init__(self, pid: int, out: str, prefix: int) -> None:
        self.pid = pid
        self.buffers: list[Buffer] = []
        self.facts: deque[dict[str, object]] = deque()
        self.closed = False
        self.inherited: dict[str, object] = {}
        self.writing = Writing(out, prefix)
        self._closing = False
        self._running = False
        self._asked = 0
        self._done = 0
        self._tickets = count(1)
        self._busy = allocate_lock()
        self._wake = allocate_lock()
        self._wake.acquire()
        self._finalizer: object = None
        self._at_exit: Callable[[], None] | None = None

    def start(self, at_exit: Callable[[], None]) -> None:
        """Start the writer thread; where none can be started, flush and close do its work."""
        self._at_exit = at_exit
        self._watch_exit()
        if not self._running:
            try:
                self._running = True
                start_new_thread(self._run, ())
            except RuntimeError:
                self._running = False

    def crowded(self, buffer: Buffer, row: tuple[object, ...]) -> None:
        """A thread used up its quota: more of it while there is room, else the row is thrown away."""
        if self.closed or self._closing:
            return
        waiting = sum(map(len, self.buffers)) + self.writing.backlog
        if waiting < PENDING_ROWS:
            buffer.quota = len(buffer) + min(QUOTA_ROWS, PENDING_ROWS - waiting)
            buffer.append(row)
            if waiting < WAKE_ROWS:
                return
        else:
            key = ("disk_failure" if self.writing.failing else "dropped", row[0])
            buffer.drops[key] = buffer.drops.get(key, 0) + 1
        self._rouse()

    def flush(self, timeout_s: float) -> None:
        """Return when everything recorded so far is written, or after the timeout."""
        ticket = next(self._tickets)
        self._asked = ticket
        self._rouse()
        deadline = time.monotonic() + timeout_s
        while self._done < ticket and not self.closed and time.monotonic() < deadline:
            if self._running:
                time.sleep(0.0005)
            elif self._busy.acquire(timeout=max(0.0, deadline - time.monotonic())):
                try:
                    self._cycle()
                finally:
                    self._busy.release()

    def close(self) -> None:
        """Write the rest and the closing mark; nothing is recorded afterwards."""
        self._closing = True
        for buffer in list(self.buffers):
            buffer.quota = 0
        self._rouse()
        deadline = time.monotonic() + CLOSE_S
        while self._running and not self.closed and time.monotonic() < deadline:
            time.sleep(0.0005)
        if not self.closed and self._busy.acquire(timeout=0.1):
            try:
                self._finish()
            finally:
                self._busy.release()

    def forget(self) -> dict[str, object]:
        """In a forked child: let go of the parent's spool; what the parent described."""
        self.writing.close()
        self._merge_facts()
        return self.writing.facts

    def close_later(self) -> bool:
        """Whether multiprocessing closes us at its own end, after it has waited for its children."""
        return self._finalizer is not None and bool(self._finalizer.still_active())  # type: ignore[attr-defined]

    def _rouse(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it is awake already

    def _run(self) -> None:
        """The writer thread. A failure of a flush is that flush's; the thread goes on."""
        try:
            while not self.closed:
                self._wake.acquire(timeout=FLUSH_S)
                with self._busy:
                    if self._closing:
                        self._finish()
                    else:
                        self._cycle()
        except BaseException:  # noqa: BLE001 - the interpreter is going down
            self._running = False

    def _cycle(self) -> None:
        if self.closed:
            return
        asked = self._asked
        try:
            self._merge_facts()
            self._watch_exit()
            self.writing.cycle(self.buffers, hurry=self._closing or asked > self._done)
        except OSError:
            return  # kept, tried again, counted when no room is left
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
            self.writing.losses.add("undecodable", 1, None, f"recorder: {type(error).__name__}")
        self._done = asked

    def _finish(self) -> None:
        if self.closed:
            return
        for buffer in list(self.buffers):
            buffer.quota = 0
        self._cycle()
        try:
            self.writing.end()
        except Exception:  # noqa: BLE001, S110 - then the spool has no closing mark, and readers say so
            pass
        self.closed = True
        self.writing.close()

    def _merge_facts(self) -> None:
        """Later calls of describe win, key by key inside a dict."""
        writing = self.writing
        if not self.facts:
            return
        merged = dict(writing.facts)
        while self.facts:
            for name, value in self.facts.popleft().items():
                earlier = merged.get(name)
                if isinstance(value, dict) and isinstance(earlier, dict):
                    value = {**earlier, **value}
                merged[name] = value
        writing.facts = merged
        writing.facts_changed = True

    def _watch_exit(self) -> None:
        """A child of multiprocessing ends by os._exit: only finalizers run, and a fork clears those."""
        util = sys.modules.get("multiprocessing.util")
        if util is None or self.close_later():
            return
        try:
            self._finalizer = util.Finalize(None, self._at_exit, exitpriority=-100)
        except Exception:  # noqa: BLE001 - half imported: the next flush tries again
            self._finalizer = None

    def owner(self) -> bool:
        """Whether this is the process it was made in (a fork outside of Python runs no hooks)."""
        return self.pid == os.getpid()
