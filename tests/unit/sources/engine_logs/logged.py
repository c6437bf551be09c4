"""Writes lines as vLLM and LMCache write them, and shows what a decoder makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.sources import lmcache_log, vllm_log
from tests.unit.sources.given import Found, decoded

if TYPE_CHECKING:
    from types import ModuleType

T0_NS = 1_796_011_200_000_000_000
"""2026-11-30 04:00:00 UTC, the time of the lines below at second 0."""
MS = 1_000_000


def vllm(
    second: int, message: str, *, name: str = "EngineCore", pid: int = 12, place: str = "core.py:1"
) -> str:
    """A line of vLLM: no year, whole seconds."""
    when = f"11-30 04:{second // 60:02}:{second % 60:02}"
    return f"({name} pid={pid}) INFO {when} [{place}] {message}"


def lmcache(ms: int, message: str, *, place: str = "mq.py:2", level: str = "WARNING") -> str:
    """A line of LMCache in its colours, with a year and milliseconds."""
    when = f"2026-11-30 04:{ms // 60_000:02}:{ms // 1000 % 60:02},{ms % 1000:03}"
    return f"\x1b[33;20m[{when}] LMCache {level}:\x1b[0m {message} \x1b[3m({place}:lmcache.v1.mq)\x1b[0m"


BEGINS = "[2026-11-30 04:00:00,000] LMCache INFO: begins"
"""Has a year, which vLLM's lines lack."""


def read(*lines: str, module: ModuleType = vllm_log) -> Found:
    """What a decoder makes of lines."""
    return decoded(module, "".join(line + "\n" for line in lines).encode())


def served(*lines: str) -> Found:
    """What the decoder of a cache server's log makes of lines."""
    return read(*lines, module=lmcache_log)


def spans(found: Found, *columns: str, **wanted: Any) -> list[tuple[Any, ...]]:
    """Some columns of span rows, null where they are null."""
    return [tuple(row.get(column) for column in columns) for row in found.table("span", **wanted)]


def samples(found: Found) -> dict[str, float]:
    """Metric -> its last value."""
    return {row["name"]: row["value"] for row in found.table("metric")}
