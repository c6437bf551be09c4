"""The tokens that LMCache's server says it was asked for: whole chunks alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers import _lmcache
from kvtrace.analyses.engine_numbers._known import summed, total
from kvtrace.analyses.engine_numbers._number import Cause, in_words

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

NAMES = ("lmcache_mp_lookup_requested_tokens_total", "lmcache_mp.lookup_requested")


def lmcache_asked(known: Known) -> list[Number]:
    """Tokens of the lookups that it answered."""
    if not _lmcache.present(known):
        return []
    count = known.reported.count(*NAMES)
    rows = _lmcache.answered(known, count)
    tail = total(rows, "tail_tokens")
    said = f"{in_words(tail, 'tokens')} behind the last whole chunk were asked for and are not counted"
    measured = summed(rows, "asked_tokens", "requested_tokens of lookup", "lookup_asked_tokens")
    return _lmcache.number(known, count, NAMES[0], "tokens", measured, rows.height, (Cause(-tail, said),))
