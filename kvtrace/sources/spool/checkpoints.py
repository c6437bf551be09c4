"""What is open at some place of a spool, kept beside it: `.NAME.open`, one Parquet file.

It saves reading a large spool from its beginning to learn which operations are open. It is never the truth:
one that is missing, torn or too new is passed over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.schema.layout import PARTIAL
from kvtrace.sources.spool.about import About
from kvtrace.sources.spool.pairing import Pairing

if TYPE_CHECKING:
    from pathlib import Path

WORTH_BYTES = 1 << 20
"""A spool that is shorter is read again sooner than a file is written."""
_POSITION, _ABOUT = b"kvtrace.position", b"kvtrace.about"


def place(spool: Path) -> Path:
    """Where the checkpoint of a spool lies."""
    return spool.with_name(f".{spool.name}.open")


def save(spool: Path, about: About, pairing: Pairing, position: int, *, final: bool) -> None:
    """Write it anew; a spool that has ended needs none."""
    file = place(spool)
    with suppress(OSError):
        if final:
            file.unlink(missing_ok=True)
        elif position >= WORTH_BYTES:
            said = {_POSITION: str(position).encode(), _ABOUT: about.as_json().encode()}
            partial = file.with_name(file.name + PARTIAL)
            pq.write_table(pairing.table().replace_schema_metadata(said), partial, compression="zstd")
            partial.replace(file)


def load(spool: Path, most: int) -> tuple[About, Pairing, int]:
    """The last one that is not beyond `most`; the beginning of the spool when there is none."""
    pairing = Pairing()
    try:
        table = pq.read_table(place(spool), partitioning=None)
        said = table.schema.metadata or {}
        position = int(said[_POSITION])
        if 0 < position <= most:
            about = About.from_json(said[_ABOUT].decode())
            pairing.restore(table)
            return about, pairing, position
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        pairing = Pairing()
    return About(), pairing, 0
