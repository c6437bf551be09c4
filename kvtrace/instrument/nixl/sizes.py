"""How many bytes does a list of descriptors have, and on which medium do they lie?

Descriptors are read one by one through the bindings, several microseconds each: longer lists are not counted,
their bytes are null unless NIXL's telemetry says them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Sizes = list[int] | None

COUNTED = 256
"""Descriptors that are read in a transfer's own time."""
PREPARED = 8_192
"""Descriptors that are read when a list is prepared, which happens once."""
TIERS = {
    "DRAM_SEG": "host", "VRAM_SEG": "gpu", "FILE_SEG": "disk", "BLK_SEG": "disk", "OBJ_SEG": "object",
    "DRAM": "host", "VRAM": "gpu", "FILE": "disk", "BLOCK": "disk", "OBJ": "object",
    "cpu": "host", "cuda": "gpu",
}  # fmt: skip
"""NIXL's kinds of memory -> the tier."""


def count(descriptors: Any) -> int | None:
    """How many there are."""
    counting = getattr(descriptors, "descCount", None)
    if counting is not None:
        return int(counting())
    return len(descriptors) if hasattr(descriptors, "__len__") else None


def sizes(descriptors: Any, limit: int) -> Sizes:
    """Bytes of each; None where there are too many, or in a form that we cannot read."""
    number = count(descriptors)
    if number is None or number > limit:
        return None
    if hasattr(descriptors, "descCount"):
        return [int(descriptors[place][1]) for place in range(number)]
    shape = getattr(descriptors, "shape", None)
    if shape is not None:
        return [int(size) for size in descriptors[:, 1]] if len(shape) == 2 and shape[1] == 3 else None
    if all(isinstance(one, (tuple, list)) and len(one) >= 3 for one in descriptors):
        return [int(one[1]) for one in descriptors]
    return None


def tier(descriptors: Any, named: str | None, agent: str, here: str) -> str:
    """The medium of one side; of another agent's memory it is `peer`."""
    kind = getattr(descriptors, "getType", None)
    raw = named if kind is None else kind().name
    own = TIERS.get(raw or "", "unknown")
    return "peer" if agent != here and own in ("host", "gpu", "unknown") else own
