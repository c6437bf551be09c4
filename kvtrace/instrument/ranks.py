"""Which rank of its engine is this process?

Whoever knows it says so (a worker of vLLM: vllm/configuration.py), whatever records a copy asks. A forked
child has no rank until it is told one.
"""

from __future__ import annotations

import os

_told: tuple[int, int] | None = None


def tell(rank: int) -> None:
    """From now on this process is this rank of its engine."""
    global _told
    _told = (os.getpid(), rank)


def mine() -> int | None:
    """The rank of this process; None where nobody said."""
    told = _told
    return told[1] if told is not None and told[0] == os.getpid() else None
