"""What the pages of metrics of a run count: increases by name, and between which instants.

watched    created    first page        last page
   |----------|-----------|-----------------|  what was created while its process was watched, which may
                          |                 |  be with its first count, was counted in the run from 0 on;
                          |-----------------|  of all else what was added between the pages
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.counters import SOURCE, counters

if TYPE_CHECKING:
    from kvtrace.run import Run

_PAIR = re.compile(r'([^=,]+)="((?:[^"\\]|\\.)*)"')
_SUFFIX = re.compile(r"_(total|sum|count|created)$")

_CREATED = """
SELECT name, map_entries(labels) AS labels, process, min(value) * 1e9 AS created_ns FROM metric
WHERE suffix(name, '_created') AND isfinite(value) AND value BETWEEN 1e6 AND 9e9
GROUP BY name, labels, process
"""
_PAGES = """
SELECT name, process, min(time_ns) AS first_ns, max(time_ns) AS last_ns
FROM metric GROUP BY name, process
"""
_WATCHED = """
WITH watched AS (
    SELECT product, coalesce(engine, process) AS engine, min(first_ns) AS since_ns FROM process
    WHERE product IS NOT NULL GROUP BY ALL
)
SELECT product, NULL AS process, max(since_ns) FROM watched GROUP BY product
UNION ALL
SELECT p.product, p.process, w.since_ns FROM process p JOIN watched w
    ON w.product = p.product AND w.engine = coalesce(p.engine, p.process)
WHERE p.process IS NOT NULL
"""
"""Since when: of a process its engine; of pages that name none the engine that was watched last."""


@dataclass(frozen=True, slots=True)
class Count:
    """A counter's increase and the instants between which it grew; None: from the beginning, to the end.

    `doubts` is why it may be over other requests than those between them.
    """

    name: str
    value: float
    from_ns: int | None
    to_ns: int | None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Series:
    labels: dict[str, str]
    process: str | None
    value: float
    from_ns: int | None
    to_ns: int | None
    resets: int


class Reported:
    """All counters of a run, by name."""

    def __init__(self, run: Run) -> None:
        connection = run.connection()
        self._series: dict[str, list[_Series]] = {}
        watched = {tuple(who): since_ns for *who, since_ns in connection.sql(_WATCHED).fetchall()}
        pages = {(name, process): row for name, process, *row in connection.sql(_PAGES).fetchall()}
        created: dict[tuple[object, ...], float] = {}
        for name, entries, process, created_ns in connection.sql(_CREATED).fetchall():
            labels = {each["key"]: each["value"] for each in entries or ()}
            key = _key(name, labels, process)
            created[key] = min(created_ns, created.get(key, created_ns))
        for row in counters(run).iter_rows(named=True):
            labels = dict(_PAIR.findall(row["labels"]))
            first_ns, last_ns = pages[row["name"], row["process"]]
            begun_ns = created.get(_key(row["name"], labels, row["process"]))
            product = _product(row["name"])
            since_ns = watched.get((product, row["process"]), watched.get((product, None)))
            whole = begun_ns is not None and since_ns is not None and begun_ns >= since_ns
            if row["increase"] is None and not whole:
                continue
            value = (row["increase"] or 0.0) + (row["first"] if whole else 0.0)
            from_ns = None if whole else first_ns
            series = _Series(labels, row["process"], value, from_ns, last_ns, row["resets"] or 0)
            self._series.setdefault(row["name"], []).append(series)

    def count(self, *names: str, **labels: str) -> Count | None:
        """The sum of the first of these names that was reported, over its series with these labels."""
        for name in names:
            found = [
                one
                for one in self._series.get(name, ())
                if all(one.labels.get(key) == value for key, value in labels.items())
            ]
            if found:
                shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
                return Count(
                    f"{name}{{{shown}}}" if shown else name,
                    sum(one.value for one in found),
                    max((one.from_ns for one in found if one.from_ns is not None), default=None),
                    max((one.to_ns for one in found if one.to_ns is not None), default=None),
                    _doubts(found),
                )
        return None

    def products(self) -> set[str]:
        """Products whose counters are here."""
        return {_product(name) for name in self._series}


def _doubts(series: list[_Series]) -> tuple[str, ...]:
    """Why the sum of these series may be over other requests than those between its instants."""
    said = []
    if len({(one.from_ns, one.to_ns) for one in series}) > 1:
        processes = len({(one.process, one.labels.get(SOURCE)) for one in series})
        whose = (
            f"pages of {many(processes, 'process', 'processes')}" if processes > 1 else "series of one page"
        )
        said.append(f"{whose} begin or end at different times")
    resets = max(one.resets for one in series)
    if resets:
        said.append(f"the counter began anew {many(resets, 'time')}")
    return tuple(said)


def _product(name: str) -> str:
    return re.split(r"[:_.]", name, maxsplit=1)[0]


def _key(name: str, labels: dict[str, str], process: str | None) -> tuple[object, ...]:
    own = frozenset((key, value) for key, value in labels.items() if not key.startswith("kvtrace."))
    return _SUFFIX.sub("", name), own, process
