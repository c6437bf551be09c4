"""Literal runs that blended, and the pairs that compare them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from kvtrace.analyses.blend import blend
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import request, scheduler

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
LN2 = math.log(2)
UNIFORM, HALVES = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf]
TOKENS = {"full_tokens": [1, 2, 3, 4], "blended_tokens": [1, 2, 9, 4]}


def blending(name: str = "r0", **more: Any) -> Row:
    return scheduler("blend", 10, 20, tokens=64, **more) | {"request_id": name}


def drawn(folder: Path, *spans: Row, meta: dict[str, Any] | None = None, **tables: list[Row]) -> Run:
    rows = [{"span_id": number, **row} for number, row in enumerate(spans or (request(), blending()), 1)]
    return write_run(folder / "run", meta, span=rows, **tables)


def file_of(folder: Path, *lines: Row | str) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def asked(folder: Path, *lines: Row, limits: str | None = None, **more: Any) -> Row:
    """The one row of r0 of a run that blended it."""
    (row,) = asked_all(folder, drawn(folder), *lines, limits=limits, **more)
    return row


def asked_all(folder: Path, run: Run, *lines: Row, limits: str | None = None, **more: Any) -> list[Row]:
    path = None
    if limits is not None:
        path = folder / "limits.toml"
        path.write_text(limits)
    through = more.pop("through", "numpy")
    return blend(run, pairs=file_of(folder, *lines), thresholds=path, through=through).to_dicts()


def of_logits(full: list[list[float]], blended: list[list[float]], **more: Any) -> Row:
    return {"request_id": "r0", "full_logits": full, "blended_logits": blended, **more}
