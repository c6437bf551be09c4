"""What is done once, when a recording is over: run.json learns what processes said, spools go to raw/.

fold(run)      the configuration that processes described -> `engines` of run.json
put_by(run)    spools that are wholly covered -> RUN/raw/spool, where `kvtrace import` finds them
finish(run)    convert, fold, put by; what `kvtrace run` does at its end and a reader after a crash
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import RunError
from kvtrace.schema.frames import END, FRAME_HEAD, MAGIC
from kvtrace.schema.layout import PARTIAL, RAW, RUN_FILE, SPOOL, table_files
from kvtrace.sinks.parquet.compact import CompactReport, compact_run
from kvtrace.sinks.parquet.covered import covered
from kvtrace.sources.spool import checkpoints
from kvtrace.sources.spool.about import CONFIGURATION
from kvtrace.sources.spool.drain import WAIT_SECONDS, Drain, spool_files
from kvtrace.sources.spool.following import header_of
from kvtrace.sources.spool.liveness import has_ended, is_silent

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 4096
_FIRST = ("scheduler", "api", "worker")
"""Of two processes of an engine that say different things the first of these is believed."""


def is_over(run: Path) -> bool:
    """Whether no process writes to any spool of a run any more."""
    return all(has_closed(spool) for spool in spool_files(run))


def has_closed(spool: Path) -> bool:
    """Whether a spool has its closing mark, or nobody who could write it."""
    with spool.open("rb") as file:
        file.seek(max(spool.stat().st_size - _TAIL_BYTES, 0))
        tail = file.read()
    at = tail.rfind(MAGIC)
    if at >= 0 and len(tail) - at >= FRAME_HEAD.size and FRAME_HEAD.unpack_from(tail, at)[1] == END:
        return True
    header = header_of(spool)
    return is_silent(spool) if header is None else has_ended(header, spool)


def finish(run: Path, *, wait_seconds: float = WAIT_SECONDS) -> bool:
    """Convert all that the spools hold; whether the recording is over and everything was put in its place.

    Raises:
        RunError: the run cannot be written, or another process is converting it.
    """
    with Drain(run, wait_seconds=wait_seconds) as drain:
        return _converted(drain)


def compact(run: Path, *, wait_seconds: float = WAIT_SECONDS) -> CompactReport:
    """Convert all that the spools hold, then make few sorted files of many.

    Of a recording that goes on, what it has so far; its spools stay where they are.

    Raises:
        RunError: no run there, one of its files is torn, it cannot be written, or another is converting it.
    """
    with Drain(run, wait_seconds=wait_seconds) as drain:
        _converted(drain)
        return compact_run(run)


def _converted(drain: Drain) -> bool:
    over = drain.convert()
    if over and (drain.run / RUN_FILE).is_file():
        fold(drain.run)
    if spool_files(drain.run):
        put_by(drain.run)
    return over


def put_by(run: Path) -> None:
    """Move spools that the run's files wholly cover to RUN/raw/spool; the caller holds the run's lock."""
    known = covered(run)
    try:
        for spool in spool_files(run):
            reach = known.least(spool.name)
            if reach.final and reach.to >= spool.stat().st_size:
                kept = run / RAW / SPOOL
                kept.mkdir(mode=0o700, parents=True, exist_ok=True)
                spool.rename(kept / spool.name)
                checkpoints.place(spool).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{run}: its spools cannot be moved ({error.strerror or error}).") from error


def fold(run: Path) -> None:
    """Write what the processes of a run described into `engines` of its run.json.

    An engine's entry has its product, version and configuration; what run.json said of it already stays.

    Raises:
        RunError: run.json is missing, or cannot be read or written.
    """
    file = run / RUN_FILE
    try:
        meta = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        engines = described(run)
        before = meta.get("engines") or {}
        if not engines or not isinstance(before, dict):
            return
        folded = before | {name: _with(before.get(name), facts) for name, facts in engines.items()}
        if folded == before:
            return
        partial = file.with_name(file.name + PARTIAL)
        partial.write_bytes(
            msgspec.json.format(msgspec.json.encode(meta | {"engines": folded}), indent=2) + b"\n"
        )
        partial.replace(file)
    except FileNotFoundError:
        raise RunError(f"{run}: no {RUN_FILE} in it, so it is not a run.") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{file}: cannot be read or written ({error}).") from error


def _with(before: Any, facts: dict[str, Any]) -> dict[str, Any]:
    said = before if isinstance(before, dict) else {} if before is None else {"version": before}
    return facts | said


def described(run: Path) -> dict[str, dict[str, Any]]:
    """Engine -> its product, version and configuration, from the rows of its processes."""
    wanted = ["engine", "role", "product", "version", "attributes"]
    try:
        parts = [
            pq.read_table(file, columns=wanted, partitioning=None) for file in table_files(run, "process")
        ]
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{run}: holds a file that cannot be read ({error}).") from error
    rows = [row for part in parts for row in part.to_pylist() if row["engine"] is not None]
    rows.sort(key=lambda row: _FIRST.index(row["role"]) if row["role"] in _FIRST else len(_FIRST))
    engines: dict[str, dict[str, Any]] = {}
    for row in rows:
        facts = engines.setdefault(row["engine"], {})
        for name in ("product", "version"):
            if row[name] is not None:
                facts.setdefault(name, row[name])
        try:
            configuration = json.loads(dict(row["attributes"] or ()).get(CONFIGURATION, "{}"))
        except json.JSONDecodeError:
            continue
        for name, value in configuration.items() if isinstance(configuration, dict) else ():
            facts.setdefault(name, value)
    return engines
