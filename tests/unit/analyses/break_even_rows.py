"""Short words for a load and what computing would have taken: 0.1 ms a token, 5 ms a step.

r0      [lookup|load ------------|step) ... p0, p1 ... compute their prompts, one after the other
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.break_even import break_even
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import load, request, scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
MS = 1_000_000
GIB, GB = 2**30, 10**9
SIZES = (100, 200, 300, 400, 600, 800, 1000, 1500)
FIXED_MS, A_TOKEN_MS = 5, 0.1


def prefill(at: float, took: float, tokens: int, name: str, before: int | None = 0, **more: Any) -> Row:
    """A step of `took` ms that computes so many prompt tokens of one request."""
    member = {
        "request_id": name, "phase": "prefill", "scheduled_tokens": tokens, "output_tokens": 1,
        "computed_before": before,
    }  # fmt: skip
    row = scheduler("step", round(at * MS), round((at + took) * MS), members=[member], request_id=None)
    return {**row, **more}


def took(tokens: int, before: int = 0, pair_ns: float = 0) -> float:
    """What a step takes on the line, ms."""
    return FIXED_MS + A_TOKEN_MS * tokens + pair_ns / MS * tokens * (before + tokens / 2)


def others(sizes: Iterable[int] = SIZES, start: float = 10_000, pair_ns: float = 0, **more: Any) -> list[Row]:
    """Steps of other requests, on the line, a second apart."""
    return [
        prefill(start + 1000 * place, took(tokens, 0, pair_ns), tokens, f"p{place}", **more)
        for place, tokens in enumerate(sizes)
    ]


def copied(
    tokens: int,
    size: int | None,
    start: float = 10,
    took_ms: float = 160,
    hop: str = "host->gpu",
    **more: Any,
) -> Row:
    """A load of r0 from `start` on, ms."""
    row = load(round(start * MS), round((start + took_ms) * MS), hop, tokens=tokens, bytes=size)
    return {**row, "outcome": "ok", "component": "c", **more}


def loading(
    used: int,
    *loads: Row,
    arrival: float = 0,
    token: float = 2000,
    lookup: float = 0,
    computed: int = 100,
    gpu_hit: int = 0,
    name: str = "r0",
    **more: Any,
) -> list[Row]:
    """A request that uses so many loaded tokens, looks up for `lookup` ms and computes the rest."""
    step_ms = took(computed, gpu_hit + used)
    known = {
        "request_id": name, "prompt_tokens": gpu_hit + used + computed, "gpu_hit_tokens": gpu_hit,
        "selected_tokens": used, "status": "ok", **more,
    }  # fmt: skip
    asked = scheduler("lookup", round(arrival * MS), round((arrival + lookup) * MS), request_id=name)
    return [
        request(round(arrival * MS), round((token + 500) * MS), round(token * MS), **known),
        {**asked, "found_tokens": gpu_hit + used, "outcome": "ok"},
        *loads,
        prefill(token - step_ms, step_ms, computed, name, gpu_hit + used),
    ]


def world(folder: Path, *spans: Row, **tables: Any) -> Run:
    """A run of these rows; span ids count from 1."""
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    return write_run(folder / "run", **{"span": rows, **tables})


def one(run: Run, **options: Any) -> Row:
    """The one row of the answer."""
    (row,) = break_even(run, **options).to_dicts()
    return row
