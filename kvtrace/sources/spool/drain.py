"""The spools of a run -> its Parquet files, exactly once, while the engine writes and after it died.

    with Drain(run) as drain:
        while engine.poll() is None:
            rows = drain.step()          new rows of each table, for whoever sends them on
            time.sleep(1)
        drain.step(final=True)

A step decodes what the spools hold; a part is written every HELD_BYTES of spool or PART_SECONDS, whichever
comes first, so that a long recording has few files. A reader converts what is not yet written for itself
(view.py). Only one drain converts a run at a time (locking.py); a killed one is no loss: its held rows are
decoded again, and each file says what it covers (sinks/parquet/covered.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import msgspec
import pyarrow as pa

from kvtrace.errors import RunError
from kvtrace.schema.frames import SUFFIX
from kvtrace.schema.layout import RUN_FILE, SPOOL
from kvtrace.sinks.parquet.compact import heal
from kvtrace.sinks.parquet.covered import covered
from kvtrace.sources.spool.conversion import HELD_BYTES, Conversion
from kvtrace.sources.spool.locking import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_SECONDS = 600.0
WAIT_SECONDS = 60.0
"""So long the last step waits for another converter to finish."""
RETRY_SECONDS = 10.0
"""After a disk was full or a folder could not be written, it is tried again so much later."""


class Drain:
    """Converts the spools of one run; holds the run's lock from its first step until it is closed."""

    def __init__(
        self,
        run: Path,
        *,
        part_bytes: int = HELD_BYTES,
        part_seconds: float = PART_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.run = run
        self.part_bytes, self.part_seconds, self.wait_seconds = part_bytes, part_seconds, wait_seconds
        self._lock = Lock(run)
        self._conversion: Conversion | None = None
        self._last_part = time.monotonic()
        self._not_before = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another convert; what is held and not written is decoded again by whoever comes next."""
        self._conversion = None
        self._lock.close()

    def step(self, *, final: bool = False, giving: bool = True) -> dict[str, pa.Table]:
        """Convert what the spools hold now; the new rows of each table that has some, if they are wanted.

        `final` writes what is held, however little, and waits for another converter. Of a spool that has
        ended what never closed becomes open rows; one whose process still writes stays as it is.

        Raises:
            RunError: the run cannot be written; nothing is lost, a later step tries again.
        """
        parts: dict[str, list[pa.Table]] = {}
        for given in self._steps(final=final, giving=giving):
            for table, rows in given.items():
                parts.setdefault(table, []).append(rows)
        return {table: pa.concat_tables(held) for table, held in parts.items()}

    def convert(self) -> bool:
        """Convert all that there is, giving no rows; whether every spool has ended and is covered.

        Raises:
            RunError: the run cannot be written, or another process has been converting it for a minute.
        """
        for _ in self._steps(final=True, giving=False):
            pass
        return self._conversion.ended if self._conversion is not None else not spool_files(self.run)

    def _steps(self, *, final: bool, giving: bool) -> Iterator[dict[str, pa.Table]]:
        """One chunk after the other, written when it is time."""
        if not final and time.monotonic() < self._not_before:
            return
        if not (self.run / SPOOL).is_dir() or not self._begin(final=final, giving=giving):
            return
        conversion = self._conversion
        assert conversion is not None
        try:
            conversion.follow(spool_files(self.run))
            for given in conversion.advance():
                if given:
                    yield given
            due = time.monotonic() - self._last_part >= self.part_seconds
            if final or due or conversion.ended:
                conversion.commit()
                self._last_part = time.monotonic()
        except FileNotFoundError:  # a spool is gone or another: the next step looks what is there
            self._conversion = None
        except BaseException as error:
            self._conversion = None  # what it holds may be half written: the next step asks the files
            self._not_before = time.monotonic() + RETRY_SECONDS
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise RunError(f"{self.run}: its spools cannot be read ({reason}).") from error
            raise

    def _begin(self, *, final: bool, giving: bool) -> bool:
        """Take the lock and look what is covered; False while another process converts."""
        if not self._lock.take(self.wait_seconds if final else 0.0):
            if final:
                raise RunError(f"{self.run}: another process is converting it; try again when it has ended.")
            return False
        if self._conversion is None:
            heal(self.run)
            self._conversion = Conversion(
                self.run, run_id(self.run), covered(self.run), held_bytes=self.part_bytes
            )
        self._conversion.giving = giving
        return True


def spool_files(run: Path) -> list[Path]:
    """The spools that lie in a run's folder of spools."""
    return sorted(file for file in (run / SPOOL).glob(f"*{SUFFIX}") if not file.name.startswith("."))


def run_id(run: Path) -> str | None:
    """What run.json says the run is called; None when it does not say."""
    try:
        found = msgspec.json.decode((run / RUN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    named = found.get("run_id") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None
