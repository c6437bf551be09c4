"""What does Mooncake's return code mean, in the words of the schema?

Names and numbers as in mooncake-store/include/types.h. The code itself stays in `attributes`; one that is not
here is a failure for an unknown reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = {
    -1: "INTERNAL_ERROR", -10: "BUFFER_OVERFLOW", -101: "SEGMENT_NOT_FOUND", -103: "CLIENT_NOT_FOUND",
    -200: "NO_AVAILABLE_HANDLE", -400: "INVALID_KEY", -500: "WRITE_FAIL", -600: "INVALID_PARAMS",
    -601: "ILLEGAL_CLIENT", -700: "INVALID_WRITE", -701: "INVALID_READ", -702: "INVALID_REPLICA",
    -703: "REPLICA_IS_NOT_READY", -704: "OBJECT_NOT_FOUND", -705: "OBJECT_ALREADY_EXISTS",
    -706: "OBJECT_HAS_LEASE", -707: "LEASE_EXPIRED", -708: "OBJECT_HAS_REPLICATION_TASK",
    -710: "REPLICA_NOT_FOUND", -712: "REPLICA_IS_GONE", -800: "TRANSFER_FAIL", -801: "CHECKSUM_MISMATCH",
    -900: "RPC_FAIL", -901: "RPC_TIMEOUT", -1010: "UNAVAILABLE_IN_CURRENT_STATUS",
    -1011: "UNAVAILABLE_IN_CURRENT_MODE", -1100: "FILE_NOT_FOUND", -1101: "FILE_OPEN_FAIL",
    -1102: "FILE_READ_FAIL", -1103: "FILE_WRITE_FAIL", -1200: "BUCKET_NOT_FOUND",
    -1203: "KEYS_ULTRA_LIMIT", -1700: "TENANT_QUOTA_EXCEEDED",
}  # fmt: skip
UNSAID = None
"""It failed, and the method says no more than that."""
EXISTS = -705
_MEANT = {
    "no_room": (-10, -200, -1203, -1700),
    "not_found": (-704, -710, -712, -1100, -1200),
    "expired": (-707,),
    "io": (-500, -800, -801, -1101, -1102, -1103),
    "timeout": (-901,),
    "unhealthy": (-101, -103, -900, -1010, -1011),
}
_REASON = {code: reason for reason, codes in _MEANT.items() for code in codes}
_ALLOWED = {
    "load": ("not_found", "expired", "no_room", "io", "timeout", "unhealthy"),
    "store": ("no_room", "io", "timeout", "unhealthy"),
    "lookup": ("timeout", "unhealthy"),
    "evict": (),
}


def name(code: int | None) -> str:
    """The code with its name, as it stands in `attributes` and on block rows."""
    if code is UNSAID:
        return "no code"
    return f"{code} {NAMES[code]}" if code in NAMES else str(code)


def reason(op: str, code: int | None) -> str:
    """Why a call of `op` failed."""
    meant = "unknown" if code is UNSAID else _REASON.get(code, "unknown")
    return meant if meant in _ALLOWED[op] else "unknown"


def said(failed: Iterable[int | None]) -> str | None:
    """How often each failing code came: `-704 OBJECT_NOT_FOUND=2`; None when nothing failed."""
    counts: dict[int | None, int] = {}
    for code in failed:
        counts[code] = counts.get(code, 0) + 1
    return " ".join(f"{name(code)}={count}" for code, count in counts.items()) or None
