"""The bits of the sweep: what can be going on for a request at an instant.

A layer is a kind of interval as it was recorded; a class is what docs/exposure.md makes of the layers that
are active together. Both are bits of an int64, so that a whole instant is one integer.

    layers     serving step | waits: named, of others, of nobody (by reason) | queue | ... | one a hop
    classes    compute > wait_load > wait_store > wait_lookup > wait_lock > queue_capacity > load
               > load_wait > lock > lookup > store > interference > queue > other
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtrace.schema.vocabulary import TIERS

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint64]
Small = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

SERVING = 0
REASONS = ("load", "store", "lookup", "lock", None)
NAMED = 1
OTHERS = 6
NOBODY = 11
QUEUE_CAPACITY, QUEUE_OTHER, LOAD_WAIT, LOCK, LOOKUP, STORE, QUEUE_TRANSFER = range(16, 23)
FIRST_HOP = 23
HOPS = len(TIERS) ** 2

CLASSES = (
    "compute", "wait_load", "wait_store", "wait_lookup", "wait_lock", "queue_capacity", "load",
    "load_wait", "lock", "lookup", "store", "interference", "queue", "other",
)  # fmt: skip
COMPUTE, WAIT, CAPACITY, LOAD, LOAD_WAIT_CLASS = 0, 1, 5, 6, 7
INTERFERENCE, QUEUE, OTHER = 11, 12, 13
TRANSFER_CLASSES = (1, 2, 3, 4, 6, 7, 8, 9, 10)
"""Classes that the agreement compares with the measured stall."""
HIDING = (1, 2, 2, 2, 2, 3, 4, 4, 5, 5, 5, 5, 0, 0)
"""Class that wins -> which hidden_by_* column its victims' time goes to (0: it hides nothing)."""
HIDDEN_COLUMNS = (
    "hidden_by_compute_ns", "hidden_by_wait_ns", "hidden_by_queue_ns", "hidden_by_load_ns",
    "hidden_by_rest_ns",
)  # fmt: skip


def _bits(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


ANY_NAMED = _bits(NAMED, 5)
ANY_OTHERS = _bits(OTHERS, 5)
ANY_NOBODY = _bits(NOBODY, 5)
ANY_WAIT = ANY_NAMED | ANY_OTHERS | ANY_NOBODY
ANY_HOP = _bits(FIRST_HOP, HOPS)
TRANSFERS = ANY_HOP | (1 << LOAD_WAIT) | (1 << LOCK) | (1 << LOOKUP) | (1 << STORE)
"""What a request itself has going on while it lacks blocks."""


def hop_name(hop: int) -> str:
    """disk->host of a hop's number."""
    return f"{TIERS[hop // len(TIERS)]}->{TIERS[hop % len(TIERS)]}"


def hop_order(hop: int) -> int:
    """Rank of a hop where the unions are equal: by tier_to, then tier_from, in the tier order."""
    return (hop % len(TIERS)) * len(TIERS) + hop // len(TIERS)


def classes_of(layers: Ints, context: Ints) -> Ints:
    """Own classes at each instant, as bits by position in CLASSES; hops stay in the layers.

    `context` is all that is active; `layers` is the same, or a part of it whose share is asked for (open
    intervals): a part is judged by what it stands in.

        layers   serving  wait of others  ->  classes  wait_<reason> (shared step), interference
                 serving                  ->           compute
                          wait of others  ->           interference
    """
    serving = context & 1
    quiet = ((context & ANY_WAIT) == 0).astype(np.int64)
    own: Ints = (layers & 1 & quiet) << COMPUTE
    for number in range(4):
        shared = (layers >> (OTHERS + number)) | (layers >> (NOBODY + number))
        own |= (((layers >> (NAMED + number)) | (shared & serving)) & 1) << (WAIT + number)
    own |= ((layers >> QUEUE_CAPACITY) & 1) << CAPACITY
    own |= ((layers & ANY_HOP) != 0).astype(np.int64) << LOAD
    own |= ((layers >> LOAD_WAIT) & ((context & ANY_HOP) == 0).astype(np.int64)) << LOAD_WAIT_CLASS
    for layer, number in ((LOCK, 8), (LOOKUP, 9), (STORE, 10)):
        own |= ((layers >> layer) & 1) << number
    disturbed = ((layers & ANY_OTHERS) != 0) | (((layers & ANY_NOBODY) != 0) & (serving == 0))
    own |= disturbed.astype(np.int64) << INTERFERENCE
    own |= (((layers >> QUEUE_OTHER) | (layers >> QUEUE_TRANSFER)) & 1) << QUEUE
    return own


def stalled(layers: Ints) -> Bools:
    """Instants of a measured stall.

    A wait names the request, or its step is inside one, or it is queued for a transfer or a lookup.
    """
    serving = (layers & 1).astype(bool)
    inside = serving & ((layers & ANY_WAIT) != 0)
    found: Bools = inside | ((layers & ANY_NAMED) != 0) | (((layers >> QUEUE_TRANSFER) & 1) != 0)
    return found


def first_bit(own: Ints) -> Ints:
    """The strongest class at each instant: the lowest bit set, OTHER where there is none."""
    lowest = own & -own
    winner = np.full(own.shape, OTHER, dtype=np.int64)
    some = lowest != 0
    winner[some] = np.log2(lowest[some].astype(np.float64)).astype(np.int64)
    return winner
