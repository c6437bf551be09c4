"""Who reads the events of copies that are over, without ever waiting for a device?

One thread a process, started by the first copy. While copies wait it looks every POLL_S, else it sleeps until
a copy wakes it. It lets other threads capture CUDA graphs: a query in the driver's usual mode would break a
capture that goes on elsewhere, so the thread asks in relaxed mode, and where it cannot, not at all meanwhile.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.wrapping import lose

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kvtrace.instrument.torch_cuda.station import Station

POLL_S = 0.005
IDLE_S = 1.0
LAST_S = 0.1
PAUSE_S = 0.0001
TELL_NS = 60_000_000_000
"""How often what was measured of the clocks goes to the process's facts."""


def _pause() -> None:
    time.sleep(PAUSE_S)


class Reaper:
    """Reads the stations of all devices. `start` and `wake` may be called by any thread."""

    def __init__(self, device: Any) -> None:
        self.stations: dict[int, Station] = {}
        self.idle = False
        self._device = device
        self._wake = threading.Event()
        self._stop = False
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None
        self._relaxed = False
        self._told_ns = recorder.now()

    def start(self) -> None:
        """Begin to read, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kvtrace-copies", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Something waits; cheap, and needed only while `idle`."""
        self.idle = False
        self._wake.set()

    def _run(self) -> None:
        with suppress(Exception):
            self._relaxed = self._device.relax_thread()
        while not self._stop:
            try:
                waiting = self.turn(_pause)
            except Exception as error:  # noqa: BLE001 - a thread of ours inside an engine
                lose("reaper of copies", error)
                waiting = False
            if waiting:
                self._wake.wait(POLL_S)
            else:
                self.idle = True
                if not any(station.incoming for station in list(self.stations.values())):
                    self._wake.wait(IDLE_S)
                self.idle = False
            if not self._stop:
                self._wake.clear()

    def turn(self, pause: Callable[[], None] = lambda: None) -> bool:
        """Read every station once; whether copies still wait."""
        waiting = False
        with self._busy:
            for station in list(self.stations.values()):
                if not station.waiting():
                    continue
                if not self._relaxed and self._device.captures():
                    waiting = True
                    continue
                with self._device.on(station.index):
                    station.read(pause)
                waiting = station.waiting() or waiting
        if recorder.now() - self._told_ns > TELL_NS:
            self.tell()
        return waiting

    def tell(self) -> None:
        """Say what was measured of the devices' clocks, as facts of this process."""
        self._told_ns = recorder.now()
        for station in list(self.stations.values()):
            name = self._device.name(station.index)
            facts = station.anchors.facts()
            recorder.describe(attributes={f"{name}.{key}": value for key, value in facts.items()})

    def finish(self, why: str) -> None:
        """Read what is over by now or very soon, count what is not, stop."""
        self._stop = True
        self._wake.set()
        until = time.monotonic() + LAST_S
        while self.turn() and time.monotonic() < until:
            time.sleep(LAST_S / 20)
        with self._busy:
            for station in list(self.stations.values()):
                station.give_up(why)
        self.tell()
