"""What two sources tell of the same happening: their rows, paired one to one in the order of time.

file     a        a     b            a     times of one group (a, b), each with the group of its own
inside    a        a    b   b              a pair: same group, not SLACK_NS apart

The earliest that fit are paired first, which of all pairings in order leaves the fewest rows alone. What is
left alone was told by one of the two only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

SLACK_NS = 50_000_000
"""Two stamps of one happening are microseconds apart (25 were seen), more when a thread waits between them.

LMCache's storage trace counts its seconds from one look at the wall clock, its spans carry the wall clock,
and what was recorded inside is moved onto the run's anchor: a clock that is set meanwhile parts them for
good, and then both stay.
"""


def matched(rows: pl.DataFrame, own: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Pairs (at, own) of the numbers `at` of rows on both sides; both have `time_ns` and what to group by."""
    left, right = (_in_order(side, by) for side in (rows, own))
    found = _pairs(
        left["group"].to_numpy().data,
        left["time_ns"].to_numpy().data,
        right["group"].to_numpy().data,
        right["time_ns"].to_numpy().data,
    )
    at = left["at"].gather([one for one, _ in found])
    return pl.DataFrame({"at": at, "own": right["at"].gather([other for _, other in found])})


def _in_order(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The groups as hashes of 64 bits, so that no text is held; a row without a time fits none."""
    timed = rows.drop_nulls("time_ns")
    group = timed.select(pl.col(name).cast(pl.String) for name in by).hash_rows()
    return timed.select("at", pl.col("time_ns").cast(pl.Int64), group=group).sort("group", "time_ns", "at")


def _pairs(
    groups: memoryview, times: memoryview, own_groups: memoryview, own_times: memoryview
) -> list[tuple[int, int]]:
    """Places of pairs in two sides, each sorted by group and time."""
    found = []
    at = place = 0
    while at < len(groups) and place < len(own_groups):
        group, other = groups[at], own_groups[place]
        apart = own_times[place] - times[at] if group == other else 0
        if group == other and -SLACK_NS <= apart <= SLACK_NS:
            found.append((at, place))
            at, place = at + 1, place + 1
        elif group < other or apart > 0:
            at += 1
        else:
            place += 1
    return found
