"""A thread that looks at growing spools once a second: few, large Parquet files, and rows for a collector.

Whoever opens the run meanwhile reads what is not in files yet from the spools. A thread, so that a long pass
never delays a signal for the command. What it cannot do now it tries again a second later: the spool stays
until it is converted, and after us anybody who opens the run converts the rest.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvtrace.schema.frames import SUFFIX
from kvtrace.schema.layout import SPOOL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.sinks.otlp.delivery import Delivery
    from kvtrace.sources.spool.drain import Drain

PERIOD_SECONDS = 1.0


class Draining:
    """The converter of one run, and the delivery of its rows to a collector if there is one."""

    def __init__(self, run: Path, otlp: str | None, say: Callable[[str], None]) -> None:
        self.run = run
        self.trouble: str | None = None
        self.delivery: Delivery | None = None
        self._otlp, self._say = otlp, say
        self._said_trouble = False
        self._drain: Drain | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvtrace-drain", daemon=True)

    def start(self) -> None:
        """Begin to drain."""
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            self.step()

    @property
    def began(self) -> bool:
        """Whether there ever was anything to drain, and what drains could be loaded."""
        return self._drain is not None

    def stop(self) -> None:
        """End the thread after the pass that it is in; step() is the caller's from now on."""
        self._over.set()
        self._thread.join()

    def step(self, *, final: bool = False) -> None:
        """One pass: what is new in the spools, into the run and on to the collector."""
        try:
            if self._drain is None:
                self._drain = self._begin()
            if self._drain is not None:
                tables = self._drain.step(final=final, giving=self.delivery is not None)
                if self.delivery is not None:
                    self.delivery.offer(tables)
            self.trouble = None
        except Exception as error:  # noqa: BLE001 - said; the command and its spools are unharmed
            self.trouble = f"{type(error).__name__}: {error}"
            if isinstance(error, ImportError):
                self._over.set()  # what is not installed is not installed in a second either
            elif not self._said_trouble and not final:
                self._said_trouble = True
                self._say(f"{self.run}: cannot be converted now, recording goes on ({self.trouble}).")

    def _begin(self) -> Drain | None:
        """Load what drains when there is something to drain: pyarrow alone is 0.2 s of CPU time."""
        if not any(self.run.joinpath(SPOOL).glob(f"*{SUFFIX}")):
            return None
        from kvtrace.sources.spool.drain import Drain

        if self._otlp is not None:
            url, self._otlp = self._otlp, None
            try:
                from kvtrace.sinks.otlp.delivery import Delivery

                self.delivery = Delivery(url)
            except Exception as error:  # noqa: BLE001 - a collector's trouble is no reason not to record
                self._say(f"{self.run}: nothing is sent by OTLP ({type(error).__name__}: {error}).")
        return Drain(self.run)

    def close(self) -> None:
        """Let another process convert."""
        if self._drain is not None:
            self._drain.close()
