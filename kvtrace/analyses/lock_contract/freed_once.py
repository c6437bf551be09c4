"""The GPU blocks of a hold are given back once: not before it ends, and not again afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding
from kvtrace.analyses.lock_contract._pool import broken, compared, unjudged

if TYPE_CHECKING:
    from kvtrace.run import Run

_SEEN = "block {key} was given back more often than it was taken, or while a transfer still held it"


def freed_once(run: Run, asked: Asked) -> list[Finding]:
    """Seen where references go back to the pool; a hold that never ended was given back by nobody yet."""
    del asked
    seen = broken(run, "freed_twice", _SEEN)
    if seen:
        return seen
    found = compared(run)
    if (why := unjudged(run, found)) is not None:
        return [why]
    if not found.ended:
        return [Finding("unobserved", "no hold ended")]
    return [Finding("pass", f"{many(found.ended, 'hold')} ended and gave back once", "shim")]
