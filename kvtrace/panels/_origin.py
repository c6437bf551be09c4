"""Where a time axis begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    from kvtrace.run import Run


def first_ns(run: Run, *, of: str = "(SELECT start_ns FROM span WHERE op IS NOT NULL)") -> int | None:
    """The first record with a date, else the first of all; `of` is a relation with times as `start_ns`."""
    query = f"""
        SELECT coalesce(min(start_ns) FILTER (start_ns >= {FIRST_DATE_NS}), min(start_ns)) AS ns FROM {of}
    """  # noqa: S608 - constants of the panels
    found = run.connection().sql(query).fetchall()[0][0]
    return None if found is None else int(found)
