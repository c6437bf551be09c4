"""Which way does a copy go, by what a profiler calls it?

    Memcpy HtoD (Pinned -> Device)    Kineto on CUDA; H host, D device, A array on it, P another device
    CopyHostToDevice                  Kineto on ROCm
    Memcpy M2D (...)                  Kineto on XPU; M host memory, S memory that both share
    Host-to-Device, Unified Host-to-Device    Nsight Systems

Towards the device is a load, away from it a store. Between two devices it is a load of the one that receives:
from `peer` to `gpu`. What stays on one device, or on the host, moves no state between tiers and has no
operation of its own; a range of kvtrace's own around it says whether it is part of a load or of a store.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_LETTERS = re.compile(r"\b([HDAPMS])(?:to|2)([HDAPMS])\b")
_WORDS = re.compile(r"(host|device|array|peer)[- ]?to[- ]?(host|device|array|peer)", re.IGNORECASE)
_TIERS = {"H": "host", "M": "host", "D": "gpu", "A": "gpu", "P": "peer", "S": "unknown"}
_OPS = {("host", "gpu"): "load", ("gpu", "host"): "store", ("peer", "gpu"): "load", ("gpu", "peer"): "store"}


class Hop(NamedTuple):
    """Operation, and the media on both sides; an operation of None moves nothing between tiers."""

    op: str | None
    tier_from: str
    tier_to: str


UNKNOWN = Hop(None, "unknown", "unknown")


@lru_cache(maxsize=4096)
def hop(name: str) -> Hop:
    """The hop that a copy's name says; UNKNOWN when it says none."""
    found = _LETTERS.search(name) or _WORDS.search(name)
    if found is None:
        return UNKNOWN
    origin, goal = (_TIERS[side[0].upper()] for side in found.groups())
    if origin == goal == "peer":
        goal = "gpu"
    return Hop(_OPS.get((origin, goal)), origin, goal)
