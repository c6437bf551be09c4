"""What was measured against what is allowed: a verdict a request, and one of the run.

requests = 20          # at least so many must have been compared (default 1)
rejected = 0           # at most so many of them may be rejected (default 0)
[least]                # a request's number must be at least
top1_agreement = 0.99
[most]                 # and at most
kl_mean = 0.01
quality_drop = 0.02
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

METRICS = (
    "top1_agreement", "kl_mean", "kl_max", "logit_diff_mean", "logit_diff_max", "recompute_ratio",
    "quality_blended", "quality_drop", "e2e_ns",
)  # fmt: skip
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Thresholds:
    """What is allowed."""

    requests: int
    rejected: int
    least: dict[str, float]
    most: dict[str, float]


def read_thresholds(path: Path) -> Thresholds:
    """Read a thresholds file.

    Raises:
        InputError: it is no TOML, names something that is not measured, or a limit is no finite number.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        found = tomllib.loads(text.decode()) if len(text) <= MOST_BYTES else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no TOML.") from error
    if found is None or set(found) - {"requests", "rejected", "least", "most"}:
        raise InputError(f"{path}: thresholds are requests, rejected, and the tables least and most.")
    least, most = (_limits(path, found.get(name, {})) for name in ("least", "most"))
    if not least and not most:
        raise InputError(f"{path}: names no limit; give at least one in least or most.")
    return Thresholds(_count(path, found, "requests", 1), _count(path, found, "rejected", 0), least, most)


def _count(path: Path, found: dict[str, Any], name: str, default: int) -> int:
    value = found.get(name, default)
    if type(value) is not int or value < 0:
        raise InputError(f"{path}: {name} is no count.")
    return value


def _limits(path: Path, table: Any) -> dict[str, float]:
    unknown = set(table) - set(METRICS) if isinstance(table, dict) else {"least and most, which are tables"}
    if unknown:
        raise InputError(f"{path}: knows no limit {min(unknown)!r}; there are {', '.join(METRICS)}.")
    for name, value in table.items():
        if type(value) not in (int, float) or not _is_finite(value):
            raise InputError(f"{path}: the limit of {name} is no finite number.")
    return {name: float(value) for name, value in table.items()}


def _is_finite(value: float) -> bool:
    """An integer of 400 digits is none."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def judged(row: dict[str, Any], allowed: Thresholds | None) -> tuple[str, str]:
    """`accepted`, `rejected` or `unverified`, and why."""
    if row["compared"] is None:
        return "unverified", "no pair was given"
    if allowed is None:
        return "unverified", "no thresholds were given"
    limits = [(name, limit, 1) for name, limit in allowed.least.items()]
    limits += [(name, limit, -1) for name, limit in allowed.most.items()]
    missed = [
        f"{name} {row[name]:.6g} is {'below' if sign > 0 else 'above'} {limit:.6g}"
        for name, limit, sign in limits
        if row[name] is not None and sign * (row[name] - limit) < 0
    ]
    if missed and row["positions"]:
        return "rejected", "; ".join(missed)
    unknown = [name for name, *_ in limits if row[name] is None]
    if unknown:
        return "unverified", f"not measured: {', '.join(unknown)}"
    if row["left_out"]:
        return "unverified", f"positions that cannot be compared: {row['left_out']}"
    if not row["positions"]:
        return "unverified", "no position was compared"
    return "accepted", f"within {len(limits)} of {len(limits)} limits"


def of_run(verdicts: Sequence[str], allowed: Thresholds | None) -> str:
    """The one verdict: every blended request must have been compared, and few enough be rejected."""
    if allowed is None:
        return "unverified"
    if verdicts.count("rejected") > allowed.rejected:
        return "rejected"
    enough = sum(verdict != "unverified" for verdict in verdicts) >= allowed.requests
    return "accepted" if enough and "unverified" not in verdicts else "unverified"
