"""A GPU block that a hold keeps is handed out to nobody before the hold ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._pool import Compared, answer

if TYPE_CHECKING:
    from kvtrace.analyses.lock_contract._findings import Asked, Finding, Status
    from kvtrace.run import Run

_SEEN = "block {key} was handed out while a transfer still held it"


def held_block_not_reused(run: Run, asked: Asked) -> list[Finding]:
    """Seen where the pool hands out blocks; without an allocation beside a hold there was nothing to see."""
    del asked
    return answer(run, "held_block_reused", _SEEN, _held)


def _held(found: Compared) -> tuple[Status, str]:
    if not found.allocations:
        return "unobserved", "no block was handed out while one was held"
    compared = f"at least {many(found.allocations, 'allocation')}"
    return "pass", f"{compared} compared with {many(found.holds, 'hold')}"
