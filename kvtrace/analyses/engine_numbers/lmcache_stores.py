"""The stores that LMCache's server says it finished: also those that found no room and kept nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers import _lmcache
from kvtrace.analyses.engine_numbers._number import Cause, in_words, instrument

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

NAMES = ("lmcache_mp_num_finished_stores_total", "lmcache_mp.num_finished_stores")


def lmcache_stores(known: Known) -> list[Number]:
    """Stores from the GPU that kept something."""
    if not _lmcache.present(known):
        return []
    count = known.reported.count(*NAMES)
    rows = _lmcache.copies(known, count)
    kept = rows.filter(pl.col("op") == "store", pl.col("tier_to") == "host", "kept").height
    dropped = rows.filter(pl.col("op") == "drop").height
    basis = "stores of LMCache's server that kept tokens"
    measured = (kept, basis) if rows.height else (None, f"{basis} were not measured: {instrument('stores')}")
    said = f"{in_words(dropped, 'stores')} kept nothing"
    return _lmcache.number(known, count, NAMES[0], "stores", measured, kept, (Cause(dropped, said),))
