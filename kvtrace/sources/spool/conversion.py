"""Spools -> Parquet parts: what was decoded is held until a part is worth writing, then written at once.

    spool A  ────────frames──────►┐
    spool B  ──────────frames────►├─► held rows, a list a table ──► commit: one part a table, `span` last
    spool C  ──frames────────────►┘   (bounded by HELD_BYTES)        each says which bytes it covers

A part is named spool-<pass>.parquet; files of a pass share its number. Held rows are nothing but a copy of
what the spools say: whoever dies before the commit loses nothing, the next one decodes them again.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kvtrace.schema.layout import PARQUET
from kvtrace.sinks.parquet.arrow import conform, memory_schema, together
from kvtrace.sinks.parquet.covered import COMMIT, ORDER, Covered, Reach, Said, metadata
from kvtrace.sinks.parquet.sorting import in_order
from kvtrace.sinks.parquet.writer import ROW_GROUP_ROWS, open_writer
from kvtrace.sources.spool.following import Spool
from kvtrace.sources.spool.rows import with_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

CHUNK_BYTES = 16 << 20
"""So much of a spool is decoded at a time."""
HELD_BYTES = 32 << 20
"""Rows of so many bytes of spools are held in memory at most; then they are written."""
_PREFIX = "spool-"


class Conversion:
    """Some spools of a run on their way into the tables of a folder."""

    def __init__(
        self,
        out: Path,
        run_id: str | None,
        covered: Covered,
        *,
        held_bytes: int = HELD_BYTES,
        hasty: bool = False,
    ) -> None:
        """`hasty`: take half a flush as well, for a reader who asks once and never goes on."""
        self.out, self.run_id, self.held_bytes, self.hasty = out, run_id, held_bytes, hasty
        self.covered = covered
        self.giving = False
        """Whether advance() gives the new rows; else they are only written."""
        self.spools: dict[str, Spool] = {}
        self._held_bytes = 0
        self._reach: dict[str, dict[str, Reach]] = {}
        self._held: dict[str, list[tuple[Spool, pa.Table]]] = {table: [] for table in ORDER}
        self._number = 1 + max(
            map(_number, (file for files in covered.files.values() for file in files)), default=-1
        )

    def follow(self, paths: Iterable[Path]) -> None:
        """Take in spools that were not there before; one that is wholly covered is left alone.

        Raises:
            FileNotFoundError: a spool is another than it was: somebody removed it, and it was begun anew.
        """
        for path in paths:
            whole = self.covered.least(path.name)
            if path.name in self.spools and path.stat().st_size < self.spools[path.name].read_to:
                raise FileNotFoundError(errno.ENOENT, "spool was replaced", str(path))
            if path.name in self.spools or (whole.final and path.stat().st_size <= whole.to):
                continue
            reach = {table: self.covered.reach(path.name, table) for table in ORDER}
            self._reach[path.name] = reach
            self.spools[path.name] = Spool(path, reach, hasty=self.hasty)

    def advance(self, *, everything_ended: bool = False) -> Iterator[dict[str, pa.Table]]:
        """Convert what the spools hold now, a chunk at a time; gives the new rows of each table.

        A commit is made whenever `held_bytes` are held. `everything_ended`: no process writes any more,
        whatever can be seen of it.
        """
        for spool in self.spools.values():
            over = spool.is_over(everything_ended=everything_ended)
            while not spool.final or spool.read_to < spool.path.stat().st_size:
                before, position = spool.read_to, spool.position
                yield self._take(spool, spool.read(CHUNK_BYTES, over=over))
                self._held_bytes += spool.position - position
                if self._held_bytes >= self.held_bytes:
                    self.commit()
                if spool.read_to == before:
                    break
            if (over or spool.about.ended) and not spool.final:
                yield self._take(spool, spool.end())

    @property
    def ended(self) -> bool:
        """Whether every spool has ended."""
        return all(spool.final for spool in self.spools.values())

    def show_open(self) -> None:
        """Take what has not ended as it stands, for a reader: open operations, and who is recording."""
        for spool in self.spools.values():
            if not spool.final:
                self._take(spool, spool.as_it_stands())

    def _take(self, spool: Spool, found: Mapping[str, list[pa.Table]]) -> dict[str, pa.Table]:
        """Hold rows, and give them as they are now."""
        given = {}
        for table, parts in found.items():
            held = [(spool, part) for part in parts if part.num_rows]
            if held:
                self._held[table] += held
                spool.rows[table] += sum(part.num_rows for _, part in held)
                if self.giving:
                    given[table] = conform(self._whole(table, held), table)
        return given

    def _whole(self, table: str, held: list[tuple[Spool, pa.Table]]) -> pa.Table:
        """Held rows of one table with who recorded them."""
        parts = [
            with_words(part, table, {"run_id": self.run_id, **spool.words(table)}) for spool, part in held
        ]
        return together(parts, memory_schema(table))

    def commit(self) -> None:
        """Write everything held, one file a table.

        Raises:
            RunError: the folder cannot be written; nothing more can be converted here, begin anew.
        """
        moved = [spool for name, spool in self.spools.items() if spool.reach > self._reach[name][COMMIT]]
        if not moved and not any(self._held.values()):
            return
        for table in ORDER:
            if self._held[table] or table == COMMIT:
                self._write(
                    table,
                    {
                        spool.name: (self._reach[spool.name][table].to, spool.reach.to, spool.reach.final)
                        for spool in moved
                    },
                )
        for spool in moved:
            self._reach[spool.name] = dict.fromkeys(ORDER, spool.reach)
            if not self.hasty:
                spool.save()
        self._held_bytes = 0
        self._number += 1

    def _write(self, table: str, said: Said) -> None:
        """Write what is held of one table; a file of `span` without rows still says what is covered."""
        path = self.out / table / f"{_PREFIX}{self._number:06d}{PARQUET}"
        with open_writer(path, table) as writer:
            if self._held[table]:
                rows = self._whole(table, self._held[table])
                rows = in_order(rows) if table == COMMIT else rows
                writer.write_table(conform(rows, table), row_group_size=ROW_GROUP_ROWS)
            writer.add_key_value_metadata(metadata(said))
        self._held[table] = []


def _number(file: Path) -> int:
    """The pass that wrote a file; -1 for one that no pass wrote."""
    digits = file.stem.removeprefix(_PREFIX)
    return int(digits) if file.stem.startswith(_PREFIX) and digits.isdigit() else -1
