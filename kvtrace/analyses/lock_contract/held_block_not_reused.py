"""A GPU block that a hold keeps is handed out to nobody before the hold ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding
from kvtrace.analyses.lock_contract._pool import broken, compared, unjudged

if TYPE_CHECKING:
    from kvtrace.run import Run

_SEEN = "block {key} was handed out while a transfer still held it"


def held_block_not_reused(run: Run, asked: Asked) -> list[Finding]:
    """Seen where the pool hands out blocks; without an allocation beside a hold there was nothing to see."""
    del asked
    seen = broken(run, "held_block_reused", _SEEN)
    if seen:
        return seen
    found = compared(run)
    if (why := unjudged(run, found)) is not None:
        return [why]
    if not found.allocations:
        return [Finding("unobserved", "no block was handed out while one was held")]
    told = f"at least {many(found.allocations, 'allocation')} compared with {many(found.holds, 'hold')}"
    return [Finding("pass", told, "shim")]
