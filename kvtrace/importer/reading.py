"""One input after the other into the staging area; what cannot be read is counted, never fatal alone."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.errors import InputError, UnknownFormatError, UsageError
from kvtrace.importer import formats
from kvtrace.importer.facts import COLUMNS
from kvtrace.importer.other_signals import OtherSignals
from kvtrace.importer.runs import read_run
from kvtrace.importer.spools import read_spools, whole
from kvtrace.sources import lmcache_hash_log, otlp, otlp_metrics, recording
from kvtrace.sources.decoded import Options
from kvtrace.sources.losses import Loss
from kvtrace.sources.otlp.framing import batches
from kvtrace.sources.otlp.sniffing import JSON
from kvtrace.sources.stream import Limits, Undecodable, open_input

if TYPE_CHECKING:
    from kvtrace.importer.staging import Staging

Progress = Callable[[Path, int, int], None]


@dataclass(frozen=True, slots=True)
class InputReport:
    """What one input gave: its format, rows, what was lost by cause, and remarks."""

    path: Path
    format: str
    spans: int
    other_rows: int
    lost: dict[str, int]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """What run.json calls it."""
        return self.path.name


SAME = "holds the same bytes as {}: where rows have no ids they count twice; leave one of the two out"


def read_inputs(
    inputs: Sequence[Path],
    staging: Staging,
    *,
    format: str,  # noqa: A002 - the option's name on the command line
    keep_content: bool,
    on_progress: Progress,
) -> list[InputReport]:
    """Read every input.

    Raises:
        UsageError: no such format.
        InputError: an input is missing, one that was named is nothing we know, or nothing was readable.
    """
    if format not in ("auto", *formats.FORMATS, *formats.ALIASES):
        raise UsageError(f"--format {format}: no such format; choose auto, {', '.join(formats.FORMATS)}.")
    reports = []
    spools: list[Path] = []
    options = Options(keep_content=keep_content, digest_key=secrets.token_bytes(32))
    found = formats.expand(list(inputs))
    sources = told_apart([path for path, _ in found])
    for path, named in found:
        _readable(path)
        size = path.stat().st_size if path.is_file() else 0
        on_progress(path, 0, size)
        kind = formats.chosen(path, format)
        if kind is None and path.is_file() and not size:
            reports.append(InputReport(path, "empty", 0, 0, {}, ("holds no bytes",)))
        elif kind is None and named:
            if path.is_file() and (why := formats.wrapped(path)):
                raise UnknownFormatError(f"{path}: {why}.")
            raise UnknownFormatError(
                f"{path}: is nothing that kvtrace knows; it reads {', '.join(formats.FORMATS)} and runs. "
                "Name the format with --format if it is one of them."
            )
        elif kind is None:
            reports.append(_unknown(path, sources[path], staging))
        elif kind == formats.SPOOL:
            spools.append(path)
        else:
            reports.append(_read(path, sources[path], kind, staging, options, named=named))
        on_progress(path, size, size)
    if spools:
        for path, (spans, rows, lost) in read_spools(spools, staging, keep_content=keep_content).items():
            reports.append(InputReport(path, formats.SPOOL, spans, rows, lost, ()))
    if all(report.spans + report.other_rows == 0 for report in reports):
        _nothing(reports)
    same = _same([report.path for report in reports if report.spans + report.other_rows])
    return [
        replace(each, notes=(*each.notes, SAME.format(sources.get(same[each.path], same[each.path].name))))
        if each.path in same
        else each
        for each in reports
    ]


def _same(paths: Sequence[Path]) -> dict[Path, Path]:
    """Files that hold, byte for byte, what one before them holds -> that one; only equal sizes are read."""
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    shared = {size for size, count in Counter(sizes.values()).items() if count > 1 and size}
    first: dict[bytes, Path] = {}
    found = {}
    for path, size in sizes.items():
        if size in shared:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            if first.setdefault(digest, path) != path:
                found[path] = first[digest]
    return found


def told_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each input: its file's, with as many of the folders above as tell it from the others."""
    names = {path: path.name for path in paths}
    for depth in range(2, 1 + max((len(path.parts) for path in paths), default=0)):
        shared = {name for name, count in Counter(names.values()).items() if count > 1}
        if not shared:
            break
        names = {
            path: "/".join(path.parts[-depth:]) if name in shared else name for path, name in names.items()
        }
    return names


def _unknown(path: Path, source: str, staging: Staging) -> InputReport:
    """A file in a folder that no decoder knows is left out; one that is torn is a loss."""
    torn = formats.torn(path)
    staging.losses.extend(Loss(source, "undecodable", 1, detail=detail) for detail in torn)
    lost = {"undecodable": len(torn)} if torn else {}
    why = formats.wrapped(path) or "is nothing that this version reads"
    return InputReport(path, "unknown", 0, 0, lost, (f"{why}; left out",))


def _readable(path: Path) -> None:
    """A file that may not be read is the input's fault, and says so before anything is written."""
    try:
        if path.is_file():
            path.open("rb").close()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); check its rights, or leave it out."
        ) from error


def _nothing(reports: list[InputReport]) -> None:
    """Nothing at all came in: say what was there instead."""
    seen = ", ".join(f"{report.path.name} ({report.format})" for report in reports[:5])
    lost = sum((Counter(report.lost) for report in reports), Counter())
    what = f"; {sum(lost.values())} records were {', '.join(sorted(lost))}" if lost else ""
    raise InputError(
        f"import: no record could be read from {seen}{what}. Name files of traces that hold some."
    )


def _read(
    path: Path, source: str, kind: str, staging: Staging, options: Options, *, named: bool
) -> InputReport:
    """Read one input of a known format, and report the difference it made.

    Raises:
        InputError: one that the user named itself cannot be read; one of a folder is left out, and a loss.
    """
    losses = len(staging.losses)
    keep_content = options.keep_content
    spans = rows = 0
    notes: tuple[str, ...] = ()
    try:
        if kind == formats.RUN:
            with whole(path, staging.folder) as run:
                spans, rows = read_run(run, staging, keep_content=keep_content)
        elif kind == formats.HASH_LOG:
            rows = _hash_log(path, source, staging)
        elif kind == formats.RECORDING:
            staging.recordings.append(recording.decode(path.read_bytes(), str(path)))
            notes = ("describes how the recordings were made",)
        elif kind in formats.decoders() and kind != otlp_metrics.FORMAT:
            spans, rows, notes = _decoded(path, source, kind, staging, options)
        else:
            spans, rows, notes = _otlp(path, source, kind, staging, keep_content=keep_content)
    except InputError as error:
        if named:
            raise
        detail = str(error).removeprefix(f"{path}: ").removeprefix(f"{source}: ")
        staging.losses.append(Loss(source, "undecodable", 1, detail=detail))
        notes = ("cannot be read; left out",)
    lost: Counter[str] = Counter()
    for loss in staging.losses[losses:]:
        lost[loss.cause] += loss.count
    return InputReport(path, kind, spans, rows, dict(lost), notes)


def _decoded(
    path: Path, source: str, kind: str, staging: Staging, options: Options
) -> tuple[int, int, tuple[str, ...]]:
    """A format that is a module of its own; returns its spans, its other rows, and what it remarks."""
    spans = rows = 0
    notes: dict[str, None] = {}
    with open_input(path) as stream:
        for part in formats.decoders()[kind].read(stream, source, options):
            own, others = staging.take(part, source, kind)
            spans, rows = spans + own, rows + others
            notes |= dict.fromkeys(part.notes)
    return spans, rows, tuple(notes)


def _otlp(
    path: Path, source: str, kind: str, staging: Staging, *, keep_content: bool
) -> tuple[int, int, tuple[str, ...]]:
    """OTLP, batch by batch, whatever its file begins with; returns spans, other rows, and remarks."""
    spans = 0
    others = OtherSignals(source, staging, keep_content=keep_content)
    written = otlp_metrics.kind_of(path) if kind == otlp_metrics.FORMAT else kind
    for batch in otlp.read(path, kind=written, keep_content=keep_content, others=others.take):
        spans += staging.take_spans(batch, source)
    others.finish()
    return spans, others.rows, tuple(others.notes)


def _hash_log(path: Path, source: str, staging: Staging) -> int:
    """LMCache's lookup-hash log, batch by batch; returns how many keys it names."""
    keys = 0
    with open_input(path) as stream:
        for item in batches(stream, JSON, Limits()):
            if isinstance(item, Undecodable):
                staging.losses.append(
                    Loss(source, "undecodable", item.count, op="lookup", detail=item.detail)
                )
                continue
            found = lmcache_hash_log.decode(item, source)
            asked = pl.DataFrame(found.asked, schema=COLUMNS["asked"], orient="row")
            staging.facts.keep("asked", asked)
            keys_asked = pl.DataFrame(found.keys, schema_overrides=COLUMNS["keys"])
            staging.facts.keep("keys", keys_asked.with_columns(format=pl.lit(formats.HASH_LOG)))
            staging.losses.extend(found.losses)
            for row in found.identities:
                staging.add_identity(row)
            keys += len(found.keys)
    return keys
