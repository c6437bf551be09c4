"""Cached results of a run: where they lie, and under which key.

The key is a hash over the run's files (name, size, time of change) and over what the result depends on,
so that a new file or a new algorithm never meets an old answer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.schema.layout import DERIVED
from kvtrace.schema.tables import TABLES

if TYPE_CHECKING:
    from kvtrace.run.opening import Run


def files_hash(run: Run, *depends_on: str) -> str:
    """Hash of everything a derived result can depend on."""
    digest = hashlib.sha256()
    for table in TABLES:
        for file in run.files(table):
            stat = file.stat()
            digest.update(f"{file.relative_to(run.path)}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    for part in depends_on:
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()[:20]


def derived_folder(run: Run) -> Path:
    """RUN/.derived when it can be written, else a private temporary folder of this run."""
    own = run.path / DERIVED
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        probe = own / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError:
        name = hashlib.sha256(str(run.path).encode()).hexdigest()[:20]
        own = Path(tempfile.gettempdir()) / f"kvtrace-{os.getuid()}" / name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own
