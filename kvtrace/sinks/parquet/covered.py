"""Which part of which spool the Parquet files of a run already hold.

Each file says it itself, in its metadata: {spool: [from, to, final]}. Of one pass the small tables are
renamed into place first and `span` last, so a span file that covers a spool up to `to` says that every table
does:

    pass 7    loss ──► process ──► span          a crash at any ──► leaves files that are right in themselves
              to=900    to=900     to=900        and a spool whose tables are covered to different places;
                                                 the next pass converts for each table what is missing of it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import RunError
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

KEY = "kvtrace.spool"
COMMIT = "span"
"""The table that is renamed last: its files speak for all tables."""
ORDER: tuple[str, ...] = (*(table for table in TABLES if table != COMMIT), COMMIT)


@dataclass(frozen=True, slots=True, order=True)
class Reach:
    """How far a spool is covered: up to a byte, and whether what never closed was written as open rows."""

    to: int = 0
    final: bool = False


NOTHING = Reach()


@dataclass(frozen=True)
class Covered:
    """What the files of a run cover, table by table, and the files that say so."""

    tables: Mapping[str, Mapping[str, Reach]]
    files: Mapping[str, tuple[Path, ...]]

    def reach(self, spool: str, table: str) -> Reach:
        """How far a table covers a spool: its own files say it, or those of `span`."""
        own = self.tables.get(table, {}).get(spool, NOTHING)
        return max(own, self.tables.get(COMMIT, {}).get(spool, NOTHING))

    def least(self, spool: str) -> Reach:
        """How far every table covers a spool."""
        return self.tables.get(COMMIT, {}).get(spool, NOTHING)


def covered(run: Path) -> Covered:
    """Read what the files of a run cover.

    `span` is listed before the small tables: a pass that ends in between is then seen in these alone, and
    what it wrote of `span` is converted again by this reader, for itself. The other way round rows of small
    tables would be missing.

    Raises:
        RunError: one of the files is torn.
    """
    files: dict[str, tuple[Path, ...]] = {}
    tables: dict[str, dict[str, Reach]] = {}
    for table in reversed(ORDER):
        files[table] = tuple(table_files(run, table))
        tables[table] = {}
        for spans in map(said, files[table]):
            for spool, (_, to, final) in spans.items():
                tables[table][spool] = max(tables[table].get(spool, NOTHING), Reach(to, final))
    return Covered(tables, files)


Said = dict[str, tuple[int, int, bool]]
"""Spool -> from which byte to which byte, and whether its end is in."""


def said(file: Path) -> Said:
    """What one Parquet file says it covers.

    Raises:
        FileNotFoundError: it is gone since it was listed.
        RunError: it is torn.
    """
    try:
        found = (pq.read_metadata(file).metadata or {}).get(KEY.encode())
    except FileNotFoundError:  # compaction exchanges folders: whoever holds no lock looks again
        raise
    except (OSError, pa.ArrowException) as error:
        raise RunError(
            f"{file}: is not a whole Parquet file; restore it or import the raw files again."
        ) from error
    return {
        spool: (low, high, bool(final)) for spool, (low, high, final) in json.loads(found or "{}").items()
    }


def metadata(spans: Said) -> dict[str, str]:
    """The key-value metadata that says what a file covers; empty when it covers no spool."""
    if not spans:
        return {}
    return {KEY: json.dumps({spool: [low, high, int(final)] for spool, (low, high, final) in spans.items()})}


def united(files: Iterable[Path]) -> Said:
    """What several files cover together: what takes their place says it, so that nothing comes twice."""
    whole: Said = {}
    for file in files:
        for spool, (low, high, final) in said(file).items():
            from_, to, ended = whole.get(spool, (low, high, final))
            whole[spool] = (min(from_, low), max(to, high), ended or final)
    return whole
