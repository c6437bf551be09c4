"""An SQLite file that somebody else wrote, read without trusting it.

Only tables are read, never views or virtual tables, so that nothing of the file runs; a query that takes more
steps than the file's size explains is stopped. A file beside it (-wal, -journal) is not looked at.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.sources.stream import Stream

STEPS_A_BYTE = 50
_FIRST_STEPS = 20_000_000
_LOOK_EVERY = 1_000_000
_KINDS = frozenset({int, str, type(None)})


BROKEN = (sqlite3.Error, ValueError, OverflowError)
"""What a damaged file raises: the library stumbles over names that are no text even in its own messages."""


class Database:
    """One export.

    Raises, from `open` and `rows`:
        BROKEN: it is damaged, no database, or costs too much.
    """

    def __init__(self, path: Path) -> None:
        self.tables: frozenset[str] = frozenset()
        self._steps = _FIRST_STEPS + STEPS_A_BYTE * path.stat().st_size
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
        self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")

    def open(self) -> None:
        """See which tables there are."""
        self._db.execute("PRAGMA trusted_schema = OFF")
        self._db.execute("PRAGMA query_only = ON")
        self._db.execute("PRAGMA cell_size_check = ON")
        self._db.set_progress_handler(self._step, _LOOK_EVERY)
        listed = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        self.tables = frozenset(str(name) for (name,) in listed)

    def _step(self) -> int:
        self._steps -= _LOOK_EVERY
        return self._steps < 0

    def rows(
        self, query: str, wanted: Sequence[str], values: tuple[int, ...] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Some columns of a query's rows: whole numbers and texts; None for others, and where it has none."""
        cursor = self._db.execute(query, values)
        names = [column[0] for column in cursor.description]
        places = [names.index(name) if name in names else len(names) for name in wanted]
        picked = itemgetter(*places, len(names))  # one more than wanted: always a tuple
        for row in cursor:
            found = picked((*row, None))[:-1]
            yield found if _KINDS.issuperset(map(type, found)) else _clean(found)

    def close(self) -> None:
        """Done with it."""
        self._db.close()


def _clean(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value if type(value) in _KINDS else None for value in row)


@contextmanager
def on_disk(stream: Stream) -> Iterator[Path]:
    """The input as a file that can be read anywhere in it: itself, or what it unpacks to."""
    if stream.plain_path is not None:
        yield stream.plain_path
        return
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as folder:
        path = Path(folder) / "export.sqlite"
        with path.open("wb") as file:
            while more := stream.read():
                file.write(more)
        yield path
