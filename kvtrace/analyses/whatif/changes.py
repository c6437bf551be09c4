"""What can be shortened, by how much, and the assumption in words.

copy     |== latency ==|======== grows with bytes ========|
x2       |== latency ==|=================|                      less ... ns: from the whole, down to 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.analyses.exposure.layers import (
    FIRST_HOP,
    LOAD_WAIT,
    LOOKUP,
    NAMED,
    NOBODY,
    OTHERS,
    QUEUE_TRANSFER,
)
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    from kvtrace.analyses.exposure.layers import Bools, Ints, Small

FOR_LOAD, FOR_LOOKUP = 0, 2
"""Reasons of waits, as exposure's layers number them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change by its name and its assumption; `unseen` says why nothing can be replayed, else empty."""

    name: str
    assumption: str
    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorter(Change):
    """Intervals that last less: copies of a path, lookups, or what failed.

    hop           number of the path, None for all
    factor        by which the part of a copy beyond `latency_ns` is divided
    less_ns       what every copy takes less
    lookup_ns     what a lookup takes at most; None leaves lookups alone
    failed_only   only loads that failed, which then take no time, and lookups that timed out
    """

    hop: int | None = None
    copies: bool = False
    factor: float = 1.0
    latency_ns: int = 0
    less_ns: int = 0
    lookup_ns: int | None = None
    failed_only: bool = False

    def changes(self, layer: Small, failed: Bools) -> Bools:
        """Which intervals it is about."""
        loads = layer >= FIRST_HOP if self.hop is None else layer == FIRST_HOP + self.hop
        found: Bools = loads & self.copies
        if self.lookup_ns is not None:
            found = found | (layer == LOOKUP)
        return found & failed if self.failed_only else found

    def lasts(self, layer: Small, length: Ints) -> Ints:
        """What is left of these intervals, ns, never more than there was."""
        if self.failed_only:
            copied = np.zeros(length.size, np.int64)
        else:
            fixed = np.minimum(length, self.latency_ns)
            grows = np.rint((length - fixed) / self.factor).astype(np.int64)
            copied = np.minimum(length, np.maximum(fixed + grows - self.less_ns, 0))
        if self.lookup_ns is None:
            return copied
        return np.where(layer == LOOKUP, np.minimum(length, self.lookup_ns), copied)

    @property
    def reasons(self) -> tuple[int, ...]:
        """Waits that end with what is shortened."""
        return (*((FOR_LOAD,) if self.copies else ()), *((FOR_LOOKUP,) if self.lookup_ns is not None else ()))

    @property
    def follows(self) -> int:
        """Layers that only wait for what is shortened, as bits: they hold no time of their own."""
        found = 1 << QUEUE_TRANSFER
        if self.copies:
            found |= 1 << LOAD_WAIT
        return found | self.bits(NAMED)

    def bits(self, first: int) -> int:
        """Waits of its reasons: NAMED, OTHERS or NOBODY."""
        return sum(1 << (first + reason) for reason in self.reasons)

    @property
    def behind(self) -> int:
        """Waits of its reasons, whomever they name."""
        return self.bits(NAMED) | self.bits(OTHERS) | self.bits(NOBODY)


def hop_of(tier_from: str, tier_to: str) -> int:
    """Number of a path, as exposure's layers count them."""
    return len(TIERS) * TIERS.index(tier_from) + TIERS.index(tier_to)
