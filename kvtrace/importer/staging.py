"""What the decoders gave, on disk, until the whole is known: joins need every row, memory must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.sources.dialects import STAGED
from kvtrace.sources.losses import Loss

ROWS_A_FILE = 1_000_000


@dataclass
class Staging:
    """The staging area of one import: span rows in files, the small tables in memory."""

    folder: Path
    keys: list[dict[str, Any]] = field(default_factory=list)
    identities: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    processes: dict[str | None, dict[str, str | None]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    content: dict[str, int] = field(default_factory=dict)
    recordings: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)
    spans: int = 0
    _writer: pq.ParquetWriter | None = None
    _in_file: int = 0
    _files: int = 0

    def add_spans(self, rows: pa.Table) -> None:
        """Append span rows."""
        if not rows.num_rows:
            return
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"span-{self._files:06d}.parquet"
            self._writer = pq.ParquetWriter(path, STAGED, compression="lz4", use_dictionary=True, write_statistics=False)
            self._files += 1
        self._writer.write_table(rows)
        self.spans += rows.num_rows
        self._in_file += rows.num_rows
        if self._in_file >= ROWS_A_FILE:
            self.close()

    def add_process(self, row: dict[str, str | None]) -> None:
        """Remember who recorded; what a later row of the same process adds is kept."""
        if row["process"] is None:
            return
        known = self.processes.setdefault(row["process"], dict.fromkeys(row))
        known.update({name: value for name, value in row.items() if known.get(name) is None})

    def add_identity(self, row: dict[str, Any]) -> None:
        """Remember one field of an identity, once."""
        self.identities[row["identity_id"], row["side"], row["field"], row["value"]] = row

    def add_content(self, dropped: dict[str, int]) -> None:
        """Count content that was dropped at the door."""
        for name, count in dropped.items():
            self.content[name] = self.content.get(name, 0) + count

    def close(self) -> None:
        """Finish the file being written."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._in_file = None, 0

    def files(self) -> list[str]:
        """The staged span files."""
        self.close()
        return [str(path) for path in sorted(self.folder.glob("span-*.parquet"))] if self.folder.is_dir() else []
