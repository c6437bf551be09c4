"""A group's numbers as a reader sees them, at a terminal and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses._text import NONE, NOT_OBSERVED, digits, duration, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FAMILIES = {"fallbacks": "offer", "slo": "in time", "hit": "of the prompt from"}
_WORDS = {
    "completed": "completed",
    "errors": "errors",
    "aborted": "aborted",
    "open": "no end seen",
    "ttft_p50_ns": "first token p50",
    "ttft_p90_ns": "first token p90",
    "ttft_p99_ns": "first token p99",
    "ttft_mean_ns": "first token mean",
    "itl_p50_ns": "between tokens p50",
    "itl_p90_ns": "between tokens p90",
    "itl_p99_ns": "between tokens p99",
    "e2e_mean_ns": "whole request mean",
    "exposed_transfer_mean_ns": "exposed transfer mean",
    "recomputed_tokens": "recomputed tokens",
    "loaded_bytes": "bytes loaded",
    "stored_bytes": "bytes stored",
    "losses": "records lost",
}
_TIMES = {"ttft_ns": "first token", "itl_p50_ns": "between tokens, p50", "itl_p99_ns": "between tokens, p99",
          "e2e_ns": "whole request"}  # fmt: skip


def metric_words(metric: str) -> str:
    """A metric in words; one that is not known by name is its own."""
    family, dot, member = metric.partition(".")
    if dot:
        return f"{_FAMILIES.get(family, family)} {_TIMES.get(member, member.replace('_', ' '))}"
    return _WORDS.get(metric, metric)


def amount(value: float | None, unit: str, *, signed: bool = False) -> str:
    """A value in its unit: 12.3 ms, 45.0 %, 4.0 MiB; signed: a change."""
    if value is None:
        return NOT_OBSERVED
    sign = "-" if value < 0 else "+" if signed and value > 0 else ""
    size = abs(value)
    if unit == "ns":
        return f"{sign}{duration(size)}"
    if unit == "share":
        return f"{sign}{100 * size:.1f} %"
    if unit == "bytes":
        at = 0
        while size >= 1024 and at < len(_UNITS) - 1:
            size, at = size / 1024, at + 1
        return f"{sign}{digits(size)} {_UNITS[at]}"
    return f"{sign}{digits(size)}"


def level(row: Mapping[str, Any]) -> str:
    """A group's value, and its interval where there is one."""
    return amount(row["value"], row["unit"]) + _between(row["ci_low"], row["ci_high"], row["unit"])


def change(row: Mapping[str, Any]) -> str:
    """What the step to this group brought; of the first group there is none."""
    if row["against"] is None:
        return NONE
    told = amount(row["change"], row["unit"], signed=True)
    return told + _between(row["change_low"], row["change_high"], row["unit"], signed=True)


def limits(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What limits a number or made it null: a sentence a reason, with the groups and metrics it is of."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for reason in (row["because"] or "").split("; ") if row["because"] else ():
            found.setdefault(reason, {}).setdefault(row["group"], []).append(metric_words(row["metric"]))
    for reason, groups in found.items():
        told = "; ".join(f"{name}: {listed(metrics, 4)}" for name, metrics in groups.items())
        yield f"{reason[:1].upper()}{reason[1:]} ({told})."


def _between(low: float | None, high: float | None, unit: str, *, signed: bool = False) -> str:
    """An interval; an end that is not known is left out, in words."""
    if low == high:  # neither is known, or nothing varied at all
        return ""
    if low is None or high is None:
        known = amount(low if high is None else high, unit, signed=signed)
        return f" (from {known})" if high is None else f" (to {known})"
    return f" ({amount(low, unit, signed=signed)} to {amount(high, unit, signed=signed)})"
