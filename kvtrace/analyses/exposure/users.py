"""Several requests of one user as one: prefill and decode on two engines are one answer waited for.

    prefill     [==lookup==)[=compute=)                    |  first token of its own, which nobody reads
    decode                       [queue)[=load=)[=compute=)|  the user's first token
    the user    [==lookup==)[=compute=)-[=load=)[=compute=)   one class an instant, the strongest of both

A user's window lasts from the first arrival to the last end. The first token is that of the request which
ends last: that one answers. Of every request counts what lies between its own arrival and its own end,
judged on its own engine (another engine's wait does not stop its step); of the classes that its requests
are in, the strongest is the user's, and the bottleneck is the hop with the largest union over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.exposure.layers import classes_of
from kvtrace.analyses.exposure.sweep import Requests, Segments, width

if TYPE_CHECKING:
    import duckdb

    from kvtrace.analyses.exposure.layers import Ints
    from kvtrace.analyses.exposure.totals import Window

_ENDS = """
WITH users AS (
    SELECT
        user_id, min(start_ns) AS start_ns, max(stop_ns) AS stop_ns,
        nullif(struct_extract(max({'stopped': stop_ns, 'token': coalesce(token_ns, -1)}), 'token'), -1)
            AS token_ns
    FROM windowed GROUP BY user_id
), parts AS (
    SELECT user_id, seen_stepping, engine, start_ns AS came_ns, greatest(stop_ns, token_ns) AS left_ns
    FROM windowed
), judged AS (
    SELECT u.*, p.seen_stepping, p.came_ns, p.left_ns, l.from_ns, l.to_ns
    FROM users u JOIN parts p USING (user_id)
    LEFT JOIN lost l ON l.engine = p.engine AND l.from_ns < p.left_ns AND l.to_ns >= p.came_ns
)
SELECT user_id, start_ns, stop_ns, token_ns, $windows
FROM judged GROUP BY user_id, start_ns, stop_ns, token_ns ORDER BY user_id
"""
_EXACT = """
coalesce(bool_and(
    seen_stepping
    AND NOT coalesce(from_ns < least($end, left_ns) AND to_ns >= greatest($begin, came_ns), false)
) FILTER (least($end, left_ns) > greatest($begin, came_ns)), false) AS $name_exact"""
_WINDOWS = (
    ("ttft", "start_ns", "coalesce(token_ns, stop_ns)"),
    ("decode", "coalesce(token_ns, stop_ns)", "stop_ns"),
    ("e2e", "start_ns", "stop_ns"),
)


def users(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Every user, in the order of their requests: times, and whether all requests in a window are exact."""
    exact = (
        _EXACT.replace("$name", name).replace("$begin", begin).replace("$end", end)
        for name, begin, end in _WINDOWS
    )
    return pl.DataFrame(connection.sql(_ENDS.replace("$windows", ", ".join(exact))).to_arrow_table())


@dataclass(frozen=True, slots=True)
class Together:
    """Segments of users, and the parts of their requests' segments that lie in each.

    cells   stretches in which nothing changes for any request of the user; layers of all of them
    parts   one a (cell, request that is there): its own layers; `own` its classes, `cell` which cell
    """

    cells: Segments
    own: Ints
    parts: Segments
    part_own: Ints
    cell: Ints

    def within(self, window: Window) -> Together:
        """The cells that lie in a window of their users."""
        user = self.cells.request
        kept = (self.cells.s >= window.begin[user]) & (self.cells.e <= window.end[user])
        part = np.flatnonzero(kept[self.cell])
        number = np.cumsum(kept) - 1
        return Together(
            self.cells.where(kept), self.own[kept], self.parts.where(part), self.part_own[part],
            number[self.cell[part]],
        )  # fmt: skip


def alone(cuts: Segments) -> Together:
    """Every request is a user of its own."""
    own = classes_of(cuts.layers, cuts.layers)
    return Together(cuts, own, cuts, own, np.arange(cuts.s.size))


def together(cuts: Segments, user: Ints, block: Requests) -> Together:
    """Cut the segments of every user's requests at each other's ends; `user` says whose a request is.

    request 1   |--A--|-----B-----|               cells   |A|A|B|B| |C|
    request 2     |------C--------|--|                      |C|C|C|C|

    A request without a length has no segment, and still begins or ends its user's window.
    """
    cuts = replace(cuts, e=np.minimum(cuts.e, block.last[user[cuts.request]]))
    cuts = cuts.where(cuts.e > cuts.s)  # an unread first token may lie beyond all ends
    stretch = width(block)
    whose = user[cuts.request]
    base = whose * stretch - block.start[whose]
    own_base = np.arange(block.start.size) * stretch
    bounds = [own_base, own_base + block.stop - block.start, own_base + block.last - block.start]
    edge = np.unique(np.concatenate([cuts.s + base, cuts.e + base, *bounds]))
    of = edge // stretch
    inside = np.append(of[1:] == of[:-1], np.zeros(min(edge.size, 1), bool))
    low, high = np.searchsorted(edge, cuts.s + base), np.searchsorted(edge, cuts.e + base)
    count = high - low
    part = np.repeat(np.arange(count.size), count)
    cell = (np.cumsum(inside) - 1)[np.arange(part.size) - np.repeat(np.cumsum(count) - count - low, count)]

    at = np.flatnonzero(inside)
    back = block.start[of[at]] - of[at] * stretch
    none = np.zeros(at.size, np.int64)
    cells = Segments(of[at], edge[at] + back, edge[at + 1] + back, none.copy(), none, none)
    layers = cuts.layers[part]
    parts = replace(cuts.where(part), s=cells.s[cell], e=cells.e[cell])
    part_own = classes_of(layers, layers)
    own = none.copy()
    np.bitwise_or.at(cells.layers, cell, layers)
    np.bitwise_or.at(own, cell, part_own)
    return Together(cells, own, parts, part_own, cell)
