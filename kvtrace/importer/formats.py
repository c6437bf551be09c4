"""Which decoder a file needs, by looking at it: names decide nothing."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from kvtrace import sources
from kvtrace.errors import InputError
from kvtrace.schema.frames import MAGIC
from kvtrace.schema.layout import RUN_FILE
from kvtrace.sources import lmcache_hash_log, recording
from kvtrace.sources.otlp.sniffing import BODY, FRAMES, HEAD_BYTES, JSON, sniff
from kvtrace.sources.stream import GZIP_MAGIC, ZSTD_MAGIC, open_input

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.sources.decoded import Format

HASH_LOG = "lmcache-hash-log"
RECORDING = "recording"
RUN = "run"
_OTHERS = tuple(f"{sources.__name__}.{name}" for name in ("otlp", "dialects", "spool"))
SPOOL = "spool"
OWN: tuple[str, ...] = (JSON, FRAMES, BODY, HASH_LOG, RECORDING, SPOOL)
"""Formats that the importer reads with code of its own, because joins need more of them than rows."""
ALIASES: dict[str, tuple[str, ...]] = {"otlp-proto": (FRAMES, BODY)}
"""Names of the command line's contract that cover several formats: looking decides which, else the first."""


@cache
def decoders() -> dict[str, Format]:
    """Format -> the module that reads it, by listing kvtrace/sources: a new format is a new file."""
    found: dict[str, Format] = {}
    for entry in pkgutil.walk_packages(sources.__path__, f"{sources.__name__}."):
        if entry.name.rpartition(".")[0] in _OTHERS:
            continue
        module = importlib.import_module(entry.name)
        if hasattr(module, "FORMAT"):
            found[module.FORMAT] = module
    return dict(sorted(found.items()))


def names() -> tuple[str, ...]:
    """Formats that `--format` may name; a run directory is recognised by its run.json."""
    return (*OWN, *decoders())


FORMATS: tuple[str, ...] = names()


def format_of(path: Path) -> str | None:
    """The format of a file or run directory; None when nothing that we know.

    Raises:
        InputError: the file is missing or unreadable.
    """
    if path.is_dir():
        return RUN if (path / RUN_FILE).is_file() else None
    with open_input(path) as stream:
        head = stream.peek(HEAD_BYTES)
    if head.startswith(MAGIC):
        return SPOOL
    if lmcache_hash_log.looks_like(head):
        return HASH_LOG
    if recording.looks_like(head):
        return RECORDING
    return sniff(head) or next((name for name, module in decoders().items() if module.looks_like(head)), None)


def chosen(path: Path, wanted: str) -> str | None:
    """The format of a file, as `--format` says it or as looking shows."""
    if wanted == "auto":
        return format_of(path)
    covered = ALIASES.get(wanted, (wanted,))
    if len(covered) == 1:
        return covered[0]
    seen = format_of(path)
    return seen if seen in covered else covered[0]


def wrapped(path: Path) -> str | None:
    """What around a file's content keeps it from being known, and what to do; None when nothing does."""
    with open_input(path) as stream:
        head = stream.peek(HEAD_BYTES)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        return "is compressed twice; decompress it once"
    return None


def torn(path: Path) -> list[str]:
    """What decompressing the beginning of a file complains of."""
    with open_input(path) as stream:
        stream.peek(HEAD_BYTES)
        return [loss.detail for loss in stream.losses]


def expand(inputs: list[Path]) -> list[tuple[Path, bool]]:
    """Files and runs below the inputs, and whether the user named each one itself.

    Raises:
        InputError: an input does not exist.
    """
    found: list[tuple[Path, bool]] = []
    for path in inputs:
        _reachable(path)
        if path.is_dir() and not (path / RUN_FILE).is_file():
            below = sorted(
                file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")
            )
            if not below:
                raise InputError(
                    f"{path}: is an empty folder; name the files or the folder that holds the traces."
                )
            found.extend((file, False) for file in below)
        elif path.exists():
            found.append((path, True))
        else:
            raise InputError(f"{path}: does not exist; name a file or a folder of traces.")
    return found


def _reachable(path: Path) -> None:
    """Whether anything can be said of a path at all: a folder above it may be closed."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(
            f"{path}: cannot be reached ({error.strerror or error}); check the rights of the folders above."
        ) from error
