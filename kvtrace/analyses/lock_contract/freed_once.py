"""The GPU blocks of a hold are given back once: not before it ends, and not again afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._pool import Compared, answer

if TYPE_CHECKING:
    from kvtrace.analyses.lock_contract._findings import Asked, Finding, Status
    from kvtrace.run import Run

_SEEN = "block {key} was given back more often than it was taken, or while a transfer still held it"


def freed_once(run: Run, asked: Asked) -> list[Finding]:
    """Seen where references go back to the pool; a hold that never ended was given back by nobody yet."""
    del asked
    return answer(run, "freed_twice", _SEEN, _held)


def _held(found: Compared) -> tuple[Status, str]:
    if not found.ended:
        return "unobserved", "no hold ended"
    return "pass", f"{many(found.ended, 'hold')} ended and gave back once"
