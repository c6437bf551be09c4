"""Where a time axis begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.run import Run

FIRST_DATE_NS = 31_536_000_000_000_000
"""1971: an earlier time is of a clock that counts from its own start, and has no place beside dates."""


def first_ns(run: Run, *, of: str = "(SELECT start_ns FROM span WHERE op IS NOT NULL)") -> int | None:
    """The first record with a date, else the first of all; `of` is a relation with times as `start_ns`."""
    query = f"""
        SELECT coalesce(min(start_ns) FILTER (start_ns >= {FIRST_DATE_NS}), min(start_ns)) AS ns FROM {of}
    """  # noqa: S608 - constants of the panels
    found = run.connection().sql(query).fetchall()[0][0]
    return None if found is None else int(found)
