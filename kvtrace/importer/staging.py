"""What the decoders gave, on disk, until the whole is known: joins need every row, memory must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather

from kvtrace.importer.arrowing import arrow_rows
from kvtrace.importer.facts import Facts
from kvtrace.sinks.parquet.arrow import conform, together, with_used_texts
from kvtrace.sources.dialects import STAGED, to_words
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvtrace.sources.decoded import Decoded
    from kvtrace.sources.otlp.batch import SpanBatch

ROWS_A_FILE = 120_000
ROWS_A_TABLE = 400_000
"""As long as everything fits into memory: larger tables, fewer times the cost of each."""
HELD_BYTES = 192 << 20
"""Rows that fit into this stay in memory, and are neither written nor read again."""
PARTS_A_TABLE = 512
"""Small parts, as a live source sends them, become one table when they are so many."""

LISTED = 64
"""Roles, or numbers of processes, that one name stands for."""


@dataclass
class Staging:
    """Span rows and facts about them, in files when they are many; the small tables in memory.

    lasting: nobody knows how much will come: rows go to disk from the first on
    """

    folder: Path
    lasting: bool = False
    facts: Facts = field(init=False)
    identities: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    processes: dict[str | None, dict[str, str | None]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    content: dict[str, int] = field(default_factory=dict)
    recordings: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, list[pa.Table]]] = field(default_factory=list)
    engines: dict[str, Any] = field(default_factory=dict)
    spans: int = 0
    _held: list[pa.Table] = field(default_factory=list)
    _held_rows: int = 0
    _whole: list[pa.Table] = field(default_factory=list)
    _whole_bytes: int = 0
    _files: int = 0
    _parts: int = 0

    def __post_init__(self) -> None:
        """Facts lie beside the rows."""
        self.facts = Facts(self.folder / "facts")

    def add_spans(self, parts: Iterable[pa.Table]) -> None:
        """Append span rows; a column that a part lacks is null in it."""
        for part in parts:
            if part.num_rows:
                self._held.append(part)
                self._held_rows += part.num_rows
                self.spans += part.num_rows
        in_files = self._files or self.lasting
        if self._held_rows >= (ROWS_A_FILE if in_files else ROWS_A_TABLE) or len(self._held) > PARTS_A_TABLE:
            self.flush()

    def flush(self) -> None:
        """Make one table of what came last, and write it where too many wait already."""
        if not self._held:
            return
        rows = together(self._held, STAGED)
        self._held, self._held_rows = [], 0
        self.facts.gather(rows, self.spans - rows.num_rows)
        self._whole.append(rows)
        self._whole_bytes += rows.nbytes
        if self._files or self.lasting or self._whole_bytes > HELD_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the tables into files; from now on there is a file a table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for rows in self._whole:
            for first in range(0, rows.num_rows, ROWS_A_FILE):
                file = str(self.folder / f"rows-{self._files:06d}.arrow")
                part = with_used_texts(rows.slice(first, ROWS_A_FILE))
                feather.write_feather(part, file, compression="uncompressed")
                self._files += 1
        self._whole = []

    def chunks(self) -> Iterator[pa.Table]:
        """The staged rows, table by table, in order of their numbers."""
        self.flush()
        yield from self._whole
        for path in sorted(self.folder.glob("rows-*.arrow")):
            yield feather.read_table(str(path), memory_map=False)

    def take_spans(self, batch: SpanBatch, source: str) -> int:
        """Stage a batch of OTLP spans in our words; returns how many spans it has."""
        self.losses.extend(
            Loss(source, "undecodable", item.count, detail=item.detail) for item in batch.undecodable
        )
        self.add_content(dict(batch.content))
        if batch.spans.num_rows:
            words = to_words(batch, source)
            self.add_spans(words.spans)
            self.losses.extend(words.losses)
            if words.aliases is not None:
                self.facts.keep("given", words.aliases)
            for process in words.processes:
                self.add_process(process)
        return batch.spans.num_rows

    def take(self, part: Decoded, source: str, kind: str) -> tuple[int, int]:
        """Stage what a decoder gave of an input; returns how many spans and how many other rows it has."""
        spans = others = 0
        for table, frame in part.tables.items():
            if table == "span":
                self.add_spans([arrow_rows(frame, table)])
                spans += frame.height
                continue
            if table == "request_key":
                self.facts.keep("keys", frame.with_columns(source=pl.lit(source), format=pl.lit(kind)))
            elif table == "alias":
                self.facts.keep("given", frame)
            else:
                self._keep_part(table, source, frame)
            others += frame.height
        for process in part.processes:
            self.add_process(process)
        for row in part.identities:
            self.add_identity(row)
        self.losses.extend(part.losses)
        self.add_content(dict(part.content))
        return spans, others

    def _keep_part(self, table: str, source: str, frame: pl.DataFrame) -> None:
        """Rows of a table that no join needs whole: into a file of their own."""
        rows = conform(arrow_rows(frame, table), table)
        if rows.num_rows:
            folder = self.folder / table
            folder.mkdir(parents=True, exist_ok=True)
            file = str(folder / f"part-{self._parts:06d}.arrow")
            feather.write_feather(
                rows.replace_schema_metadata({"source": source}), str(file), compression="lz4"
            )
            self._parts += 1

    def parts(self, table: str) -> Iterator[tuple[str, pa.Table]]:
        """What decoders gave of a table, in the order in which it came, and the input it came from."""
        for path in sorted((self.folder / table).glob("part-*.arrow")):
            rows = feather.read_table(str(path), memory_map=False)
            yield rows.schema.metadata[b"source"].decode(), rows.replace_schema_metadata(None)

    def given(self, table: str) -> list[list[pa.Table]]:
        """The parts of a small table that runs gave, run by run."""
        return [run[table] for run in self.runs if run.get(table)]

    def add_process(self, row: dict[str, str | None]) -> None:
        """Remember who recorded; what a later row of the same process adds is kept."""
        if row["process"] is None:
            return
        known = self.processes.setdefault(row["process"], dict.fromkeys(row))
        lists = {name: _listed(known.get(name), row.get(name)) for name in ("role", "pids")}
        known.update({name: value for name, value in row.items() if known.get(name) is None})
        known.update(lists)

    def add_identity(self, row: dict[str, Any]) -> None:
        """Remember one field of an identity, once."""
        self.identities[row["identity_id"], row["side"], row["field"], row["value"]] = row

    def add_content(self, dropped: dict[str, int]) -> None:
        """Count content that was dropped at the door."""
        for name, count in dropped.items():
            self.content[name] = self.content.get(name, 0) + count


def _listed(known: str | None, more: str | None) -> str | None:
    """Words of two lists as one; of one name there are few, unless somebody makes them up."""
    found = {word for said in (known, more) for word in (said or "").split(", ") if word}
    return ", ".join(sorted(found)[:LISTED]) or None
