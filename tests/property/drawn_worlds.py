"""Several drawn runs that know nothing of each other, as one run: a question is asked once for all of them.

    world 0    w00.r0 w00.r1    w00.e0/scheduler ...        span_id    0 ..  999
    world 1    w01.r0           w01.e0/scheduler ...        span_id 1000 .. 1999

Engines, processes, requests and transfers of a world bear its name, so that no row of one can reach another.
A loss of an unknown process would reach all of them: it is left out here (see test_losses.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from tests.property.drawn import Run, runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.property.drawn_rows import Row

_NAMES = ("engine", "process", "request_id", "user_request_id", "transfer_id")
_IDS = 1000


def worlds(one: st.SearchStrategy[Run] | None = None, size: int = 12) -> st.SearchStrategy[list[Run]]:
    """So many drawn runs."""
    return st.lists(runs() if one is None else one, min_size=size, max_size=size)


def apart(run: Run) -> Run:
    """The run without losses of unknown processes."""
    return Run(run.spans, tuple(loss for loss in run.losses if loss.get("process")), run.processes)


def packed(every: Sequence[Run]) -> Run:
    """All of them as one run."""
    tables: list[list[Row]] = [[], [], []]
    for number, run in enumerate(map(apart, every)):
        for table, rows in zip(tables, (run.spans, run.losses, run.processes), strict=True):
            table += [_named(row, number) for row in rows]
    return Run(*(tuple(table) for table in tables))


def unpacked(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Rows of an answer by world, under the names that the world knows."""
    found: list[list[Row]] = [[] for _ in range(size)]
    for row in rows:
        world, name = row["request_id"][1:3], row["request_id"][4:]
        mine = {**row, "request_id": name}
        if mine.get("span_id") is not None:
            mine["span_id"] %= _IDS
        found[int(world)].append(mine)
    return found


def _named(row: Row, number: int) -> Row:
    named: dict[str, Any] = {**row}
    for name in _NAMES:
        if named.get(name) is not None:
            named[name] = f"w{number:02d}.{named[name]}"
    if "span_id" in named:
        named["span_id"] += number * _IDS
    if named.get("members"):
        named["members"] = list(_members(named["members"], number))
    return named


def _members(members: Sequence[Row], number: int) -> Iterator[Row]:
    for member in members:
        yield {**member, "request_id": f"w{number:02d}.{member['request_id']}"}
