"""Short words for literal rows: a test draws its rows, asks, and compares numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.exposure import exposure
from tests.rows import write_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
Part = tuple[int, int, int | None, int, int, int, int]


def request(start: int = 0, end: int | None = 100, token: int | None = None, **more: Any) -> Row:
    """The request r0 (or another) as its front end saw it."""
    row = {"op": "request", "request_id": "r0", "engine": "e0", "process": "e0/api", "observer": "api"}
    return {**row, "start_ns": start, "end_ns": end, "first_token_ns": token, **more}


def scheduler(op: str, start: int, end: int | None, **more: Any) -> Row:
    """A queue, lookup or lock_wait of r0 as the scheduler saw it."""
    row = {"op": op, "request_id": "r0", "engine": "e0", "process": "e0/scheduler", "observer": "scheduler"}
    return {**row, "start_ns": start, "end_ns": end, **more}


def step(
    start: int, end: int | None, *ids: str, tokens: int | None = 1, out: int | None = None, **more: Any
) -> Row:
    """A step that serves r0, or these."""
    members = [
        {"request_id": name, "scheduled_tokens": tokens, "output_tokens": out} for name in ids or ("r0",)
    ]
    return scheduler("step", start, end, members=members, **{"request_id": None, **more})


def load(start: int, end: int | None, path: str = "host->gpu", **more: Any) -> Row:
    """One hop of a load of r0."""
    tier_from, tier_to = path.split("->")
    row = {"op": "load", "request_id": "r0", "engine": "e0", "process": "e0/worker", "observer": "worker"}
    return {**row, "tier_from": tier_from, "tier_to": tier_to, "start_ns": start, "end_ns": end, **more}


def store(start: int, end: int | None, **more: Any) -> Row:
    """A store of r0."""
    return {**load(start, end, "gpu->host"), "op": "store", **more}


def wait(
    start: int, end: int | None, reason: str | None = "load", name: str | None = None, **more: Any
) -> Row:
    """The engine blocked: it names nobody, or one request."""
    row = {"op": "wait", "request_id": name, "engine": "e0", "process": "e0/worker", "observer": "worker"}
    return {**row, "reason": reason, "start_ns": start, "end_ns": end, **more}


def drawn(folder: Path, *spans: Row, loss: Sequence[Row] = (), process: Sequence[Row] = ()) -> Run:
    """A run of these rows; span ids count from 1 unless given."""
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    return write_run(folder / "run", span=rows, loss=list(loss), process=list(process))


def ask(run: Run, window: str = "e2e", request_id: str = "r0") -> list[Row]:
    """The rows of one request and window."""
    rows = exposure(run, window=window).to_dicts()  # type: ignore[arg-type]
    return [row for row in rows if row["request_id"] == request_id]


def exposed(run: Run, window: str = "e2e", request_id: str = "r0") -> dict[str, int]:
    """Class (load with its hop) -> exposed ns, zeros left out."""
    rows = ask(run, window, request_id)
    return {_key(row): row["exposed_ns"] for row in rows if row["exposed_ns"]}


def part(run: Run, key: str, window: str = "e2e", request_id: str = "r0") -> Part:
    """(exposed, total, hidden by compute, wait, queue, load, rest) of a class, or of a load's hop."""
    row = next(row for row in ask(run, window, request_id) if _key(row) == key)
    names = (
        "exposed",
        "total",
        *(f"hidden_by_{one}" for one in ("compute", "wait", "queue", "load", "rest")),
    )
    return tuple(row[f"{name}_ns"] for name in names)  # type: ignore[return-value]


def value(run: Run, column: str, key: str | None = None, window: str = "e2e", request_id: str = "r0") -> Any:
    """A column of one class, or the one value that all rows of the request and window share."""
    rows = [row for row in ask(run, window, request_id) if key is None or _key(row) == key]
    (found,) = {row[column] for row in rows}
    return found


def path(run: Run, window: str = "e2e", request_id: str = "r0") -> list[tuple[int, int, str, int | None]]:
    """(start, end, class, span_id) of every segment."""
    rows = critical_path(run, window=window, requests=(request_id,)).to_dicts()  # type: ignore[arg-type]
    return [(row["start_ns"], row["end_ns"], _key(row), row["span_id"]) for row in rows]


def _key(row: Row) -> str:
    return row["hop"] or row["class"]
