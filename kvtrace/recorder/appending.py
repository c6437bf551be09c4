"""One spool file: opened when first needed, appended to in whole frames, watched for being taken away."""

from __future__ import annotations

import os
import time

from kvtrace.schema.frames import SUFFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class SpoolFile:
    """Appends blocks of frames; what could not be written stays in `pending` and is tried again."""

    __slots__ = ("_folder", "_identity", "_owner", "_path", "fd", "pending", "start_ns")

    def __init__(self, folder: str, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._path = ""
        self._identity: tuple[int, int] | None = None
        self.start_ns = 0
        self.fd = -1
        self.pending: list[bytes] = []

    def open(self) -> bool:
        """Open our file again or begin a new one; whether it is a new one.

        A file that was taken away is never begun anew under its name: readers know names and offsets. The
        folder is made (0700) in a run directory that exists.

        Raises:
            OSError: no such run directory, no permission, no space.
        """
        try:
            os.mkdir(self._folder, 0o700)
        except FileExistsError:
            pass
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        if self._identity is not None:
            try:
                self.fd = os.open(self._path, flags)
            except FileNotFoundError:
                pass
            else:
                if self._is_ours():
                    return False
                self.close()
        self.start_ns = time.monotonic_ns()
        self._path = os.path.join(self._folder, f"{self._owner}-{self.start_ns}{SUFFIX}")
        self.fd = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        found = os.fstat(self.fd)
        self._identity = (found.st_dev, found.st_ino)
        return True

    def here(self) -> bool:
        """Whether the file is still ours and still in its folder.

        An engine that closes descriptors it does not know may give ours to another file: it is left alone.
        """
        if self.fd < 0:
            return False
        try:
            if not self._is_ours():
                self.fd = -1
            elif os.fstat(self.fd).st_nlink == 0:
                self.close()
        except OSError:
            self.fd = -1
        return self.fd >= 0

    def _is_ours(self) -> bool:
        found = os.fstat(self.fd)
        return (found.st_dev, found.st_ino) == self._identity

    def append(self, frames: Sequence[bytes]) -> None:
        """Append frames behind those that are pending.

        Raises:
            OSError: not all could be written; the file ends with a whole frame and the rest is pending.
        """
        self.pending.extend(frames)
        if not self.pending:
            return
        block = b"".join(self.pending)
        written = 0
        try:
            while written < len(block):
                written += os.write(self.fd, memoryview(block)[written:])
        except OSError:
            self._cut(written)
            raise
        self.pending.clear()

    def _cut(self, written: int) -> None:
        """Take half a frame off the end again, and keep what is not in the file."""
        whole = 0
        while self.pending and whole + len(self.pending[0]) <= written:
            whole += len(self.pending.pop(0))
        if whole < written:
            try:
                os.ftruncate(self.fd, os.fstat(self.fd).st_size - (written - whole))
            except OSError:
                pass  # the reader finds the next frame behind the torn one

    def close(self) -> None:
        """Close the descriptor, whatever it says."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                pass
