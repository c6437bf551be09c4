"""A thread a page: asks, passes on what came, waits until it is time again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kvtrace.collect.pages.fetching import CUT, Missed, Page, Place, fetch

if TYPE_CHECKING:
    from kvtrace.collect.feeding import Source
    from kvtrace.collect.intake import Intake

MISSED_BYTES = 200


class Polling:
    """Polls one page from the beginning to the end: the first at once, the last when it is stopped."""

    def __init__(self, where: Place, source: Source, intake: Intake, *, every_seconds: float) -> None:
        self._where = where
        self._source = source
        self._intake = intake
        self._every = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvtrace-poll", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask once more, and no more."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            self._ask()
            due = max(due + self._every, time.monotonic())  # after a slow page: at once, not several times
        self._ask()

    def _ask(self) -> None:
        found = fetch(self._where)
        size = len(found.content) if isinstance(found, Page) else MISSED_BYTES
        if not self._intake.offer(self._source, found, size) and isinstance(found, Page):
            left_out = Missed(CUT, "page that was left out: the queue was full", found.time_ns)
            self._intake.wait(self._source, left_out, MISSED_BYTES)
