"""The tokens that LMCache's server says were hit: all that it found, whatever became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers import _lmcache
from kvtrace.analyses.engine_numbers._known import summed, total
from kvtrace.analyses.engine_numbers._number import Cause, in_words

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

NAMES = ("lmcache_mp_lookup_hit_tokens_total", "lmcache_mp.lookup_hit")
_PARTS = {
    "lost_shadowed": "were found which the GPU had as well",
    "lost_rounding": "were found and are less than a block of the engine",
    "lost_last_token": "were found and computed all the same, the last of whole prompts",
    "lost_declined": "were found and not selected",
    "lost_vanished": "were found and gone when they were read",
    "lost_lock": "were found and no longer protected when they were read",
    "lost_failed": "were found and lost with a load that failed",
}
"""Column of hit_funnel -> what became of such tokens."""


def lmcache_hits(known: Known) -> list[Number]:
    """Tokens found, against those that were loaded and used."""
    if not _lmcache.present(known):
        return []
    count = known.reported.count(*NAMES)
    rows = _lmcache.answered(known, count)
    causes = tuple(
        Cause(total(rows, column), f"{in_words(total(rows, column), 'tokens')} {text}")
        for column, text in _PARTS.items()
    )
    measured = summed(rows, "used_tokens", "loaded_tokens of hit_funnel", "gpu_hit_tokens")
    return _lmcache.number(known, count, NAMES[0], "tokens", measured, rows.height, causes)
