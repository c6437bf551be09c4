"""One converter of a run at a time: a lock file, which a killed process lets go of by itself."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from kvtrace.errors import RunError
from kvtrace.schema.layout import SPOOL

if TYPE_CHECKING:
    from pathlib import Path

LOCK = ".converting"
_PAUSE_SECONDS = 0.05


class Lock:
    """The right to convert the spools of one run; held until close()."""

    def __init__(self, run: Path) -> None:
        self.path = run / SPOOL / LOCK
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """Whether this is the converter."""
        return self._file is not None

    def take(self, wait_seconds: float = 0.0) -> bool:
        """Become the converter; False when another process still is after so many seconds.

        Raises:
            RunError: the run cannot be written.
        """
        deadline = time.monotonic() + wait_seconds
        while not self.held and not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _try(self) -> bool:
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be written ({error.strerror or error}); its spools stay as they are."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == os.stat(self.path).st_ino:  # noqa: PTH116 - else it was removed meanwhile
                self._file, file = file, -1
        except BlockingIOError:
            pass
        except OSError as error:
            raise RunError(f"{self.path}: cannot be locked ({error.strerror or error}).") from error
        finally:
            if file >= 0:
                os.close(file)
        return self.held

    def close(self) -> None:
        """Let another convert."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
