"""How many tokens has a block of a trace that does not say it?

A prompt of L tokens has ceil(L / B) keys: L = 6,758 with 14 keys leaves B = 483 .. 519; the next request
leaves fewer. What all of the first requests leave is compared with what the format is known to use, else with
powers of two; where nothing is left, or several sizes are, nobody knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOKED_AT = 1_000
"""Requests of a trace that are looked at."""
MOST_TOKENS = 1 << 20


def block_tokens(requests: Iterable[tuple[int, int]], usual: int) -> int | None:
    """The block size that (prompt tokens, keys) of requests tell: the usual one, else the only one."""
    low, high = 1, MOST_TOKENS
    seen = False
    for tokens, keys in requests:
        if not keys or not tokens:
            continue
        seen = True
        low = max(low, -(-tokens // keys))
        if keys > 1:
            high = min(high, -(-tokens // (keys - 1)) - 1)
    if not seen or low > high:
        return None
    if low <= usual <= high:
        return usual
    powers = [1 << bits for bits in range(21) if low <= 1 << bits <= high]
    if len(powers) == 1:
        return powers[0]
    return low if low == high else None
