"""Small runs whose requests have a time to first token each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rows import write_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.run import Run

START = 1_700_000_000_000_000_000


def draw_run(path: Path, ttft_ns: Sequence[int | None], *, keyed: bool = True, **more: Any) -> Run:
    """A request a value; null: it failed before its first token."""
    span = [
        {
            "op": "request", "request_id": f"{path.name}-r{number}", "start_ns": START + number,
            "end_ns": START + number + (value or 10) * 3, "observer": "api", "evidence": "shim",
            "first_token_ns": None if value is None else START + number + value,
            "status": "error" if value is None else "ok", "engine": "e", "process": "p",
            "prompt_tokens": 8, "output_tokens": 2,
        }
        for number, value in enumerate(ttft_ns)
    ]  # fmt: skip
    alias = [
        {"alias": f"req-{number}", "kind": "client", "request_id": f"{path.name}-r{number}"}
        for number in range(len(ttft_ns) if keyed else 0)
    ]
    return write_run(path, more.pop("meta", None), span=span, alias=alias, **more)


def draw_runs(
    folder: Path, name: str, factors: Sequence[float], requests: int = 20, **more: Any
) -> list[Run]:
    """A run a factor: the requests take 10 ms, 11 ms, 12 ms ... times that."""
    runs = []
    for number, factor in enumerate(factors):
        values = [round(factor * (10 + k) * 1e6) for k in range(requests)]
        runs.append(draw_run(folder / f"{name}{number}", values, **more))
    return runs
