"""The question `exposure`, and the partition of a request's time that other questions build on.

layers.py      bits: what can be going on, and what class it makes
intervals.py   SQL: requests, their windows and their intervals
sweep.py       intervals -> segments in which nothing changes
serving.py     which steps served whom: runs of steps, which need no sweep
totals.py      segments -> how long what was active together, and who wins
rows.py        -> rows; work.py the plain sums beside them
users.py       several requests of one user as one
cache.py       block by block over a whole run, kept under RUN/.derived
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from kvtrace.analyses.exposure.cache import partition
from kvtrace.analyses.exposure.rows import COLUMNS

if TYPE_CHECKING:
    from kvtrace.run import Run

__all__ = ["COLUMNS", "exposure", "partition"]


def exposure(run: Run, *, window: Literal["ttft", "decode", "e2e"] | None = None) -> pl.DataFrame:
    """Which transfer time does a request wait for?

    Every instant of a request's window belongs to exactly one class, the first of this list that is active
    for the request at that instant; exposed parts sum to the window to the nanosecond.

    compute: a step with this request among its members, while no wait of the engine is active.
    wait_load, wait_store, wait_lookup, wait_lock: a wait of the request's engine is active, and a step
    serving the request is active too or the wait names the request. queue_capacity: a queue row with reason
    capacity: it could not have run anyway. load: a hop is copying; where several overlap, the one with the
    largest union in the window (ties by tier_to, then tier_from, in the order of tiers). load_wait: between
    submit and usable of a load with no hop copying. lock, lookup, store: a row of that kind. interference:
    the engine is inside a wait that does not name this request. queue: any other queue reason, so late on
    purpose: a sum of queue time must not hide a transfer. other: nothing was recorded.

    The bound is exact when the request is a member of a step of its engine (or has no first token while
    the engine has steps) and no loss of the scheduler's process overlaps the window, else upper: then the
    compute row is there with null, its time falls into what is next in the list, and exposed parts of
    transfer classes are upper bounds, no measure. Unfinished requests stay in, censored. Steps, transfers,
    lookups and waits that were only predicted are no part of it. A row wherever a class has a total or is
    exposed.

    Columns:
        request_id: the request
        window: ttft [arrival, first token), decode [first token, finish) or e2e [arrival, finish)
        class: compute, wait_load, wait_store, wait_lookup, wait_lock, queue_capacity, load, load_wait, lock,
            lookup, store, interference, queue or other
        hop: tier_from->tier_to of a load; null for every other class
        exposed_ns: the partition, ns
        total_ns: union of the class's (hop's) own intervals in the window, ns
        hidden_by_compute_ns: part of total in which compute wins, ns
        hidden_by_wait_ns: part of total in which a wait_* wins, ns
        hidden_by_queue_ns: part of total in which queue_capacity wins, ns
        hidden_by_load_ns: part of total in which another hop or load_wait wins, ns
        hidden_by_rest_ns: part of total in which lock, lookup, store or interference wins, ns
        work_ns: plain sum of durations, ns; null for compute, interference and other
        open_ns: part of total that comes from intervals whose end nobody saw, ns
        bound: exact or upper
        censored: the window's end was not seen
        agreement: interval exposure - measured stall of the request and window, ns; null unless exact
    """
    rows = pl.read_parquet(partition(run))
    return rows if window is None else rows.filter(pl.col("window") == window)
