"""The question `blockers`: whose waits and whose held GPU blocks a request waited for.

waits.py     stretches of a request's time in which the engine waits for others, and for whom
holds.py     stretches in which it lacks GPU blocks, and who holds some
sharing.py   arithmetic: who overlaps whom, and how an instant is divided among those to blame
cache.py     block by block over a whole run, kept under RUN/.derived
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from kvtrace.analyses.blockers.cache import COLUMNS, shares, shares_alone, shares_of

if TYPE_CHECKING:
    from kvtrace.run import Run

__all__ = ["COLUMNS", "blockers", "shares", "shares_alone"]


def blockers(
    run: Run, *, window: Literal["ttft", "decode", "e2e"] = "e2e", requests: tuple[str, ...] = ()
) -> pl.DataFrame:
    """Whose waits and whose held GPU blocks did each request wait for?

    interference: the engine is inside a wait that does not name the request. wait_load, wait_store,
    wait_lookup, wait_lock: a step serves the request, and the engine is inside a wait that names others
    alone. In both, the blockers are whom the waits name; an instant is divided equally among all that are
    named at it (by blocker and reason), so that the parts of interference sum to exposure's. A wait that
    names nobody has a null blocker; inside a step of the request it is the step's own, and not here.

    queue_capacity: the request lacks GPU blocks while holds of its engine keep some. With L = blocks needed
    - blocks free of its queue row, h_i = blocks whose last reference is hold i (of two holds the earlier, as
    recorded) and H = their sum, each instant in which H >= L > 0 is divided by h_i / H; where L <= 0 (it
    lacked slots or budget) or H < L (the holds alone cannot have been why) nobody gets a part. Parts of a
    request over its holders sum to the part of its queue_capacity time in which H >= L > 0, to the
    nanosecond. L or some h_i unknown: exposed_ns is null, overlap_ns is not. Of several queue rows the one
    that started first counts. A hold of the request itself is a row like any other. An open hold or wait
    lasts to its process's last record.

    Args:
        run: the run
        window: which part of the request's time
        requests: only these; none named: all

    Columns:
        request_id: who waited
        blocker_request_id: whom it waited for; null when the wait or hold names nobody
        class: interference, wait_load, wait_store, wait_lookup, wait_lock or queue_capacity
        reason: the wait's or the hold's; null when it gave none
        exposed_ns: this blocker's part of the time that the class has in exposure, ns
        overlap_ns: time in which the request was in this state and the blocker's wait or hold lasted,
            whatever class won, ns
    """
    if requests:
        rows = shares_of(run, requests)
    else:
        rows = pl.scan_parquet(shares(run)).filter(pl.col("window") == window).collect()
    return rows.filter(pl.col("window") == window).select(list(COLUMNS))
