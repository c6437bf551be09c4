"""The chunks that LMCache's server says were read from its first tier, by its own copies as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers import _lmcache
from kvtrace.analyses.engine_numbers._known import total
from kvtrace.analyses.engine_numbers._number import Cause, in_words, instrument, not_measured

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

NAMES = ("lmcache_mp_l1_read_chunks_total", "lmcache_mp.l1_read")


def lmcache_reads(known: Known) -> list[Number]:
    """Chunks that were copied to the GPU."""
    if not _lmcache.present(known):
        return []
    count = known.reported.count(*NAMES)
    rows = _lmcache.copies(known, count)
    loads = rows.filter(pl.col("op") == "load", pl.col("tier_to") == "gpu")
    below = total(rows.filter(pl.col("op") == "store", pl.col("tier_to") != "host"), "chunks")
    basis = "chunks of loads into the GPU that LMCache's server saw"
    value: tuple[int | None, str] = (total(loads, "chunks"), basis)
    if loads["chunks"].null_count():
        value = (None, not_measured(basis, "loads_to_gpu", loads["chunks"].null_count(), loads.height))
    elif not rows.height:
        value = (None, f"{basis} were not measured: {instrument('loads_to_gpu')}")
    found = total(_lmcache.answered(known, count), "found_chunks")
    unread = max(0, found - total(loads, "chunks"))
    causes = (
        Cause(below, f"{in_words(below, 'chunks')} were read to be stored in the tier below"),
        Cause(unread, f"{in_words(unread, 'chunks')} were found, which counts as read, and not copied"),
    )
    return _lmcache.number(known, count, NAMES[0], "chunks", value, loads.height, causes)
