"""How far was each wrapped library seen to work? Said by `kvtrace doctor` where the library is installed."""

from __future__ import annotations

from kvtrace.instrument import kvbm, mooncake, nixl, sglang

LIBRARIES: dict[str, tuple[str, str]] = {
    "mooncake": mooncake.STATE,
    "nixl": nixl.STATE,
    "sglang": sglang.STATE,
    "kvbm": kvbm.STATE,
}
"""Library -> what was seen running, and what is by source alone."""
_BUILDS = ("mooncake-transfer-engine", "nixl-cu", "nixl-rocm")


def of(distribution: str) -> tuple[str, str] | None:
    """What is said of an installed distribution; None when it is none of these libraries.

    A library may have a distribution for each toolkit (nixl-cu12); others only begin alike (sglang-router).
    """
    known = distribution in LIBRARIES or distribution.startswith(_BUILDS)
    return LIBRARIES[distribution.split("-")[0]] if known else None
