"""Short words for the rows of one request that a cache may serve: 1,536 tokens, blocks of 128, chunks of 256.

r0      [queue|lookup|load --------|step prefill|step ... )
time    0     10     20           40           60        100
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import load, request, scheduler, store

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
PROMPT = 1536
BLOCK = 128

__all__ = [
    "BLOCK", "PROMPT", "Row", "asked", "block_size", "decode", "key", "load", "loaded", "lookup", "prefill",
    "request", "route", "scheduler", "store", "stored", "written",
]  # fmt: skip


def asked(gpu_hit: int | None = 0, selected: int | None = 0, name: str = "r0", **more: Any) -> Row:
    """A request of 1,536 tokens that is over at 100."""
    known = {"prompt_tokens": PROMPT, "gpu_hit_tokens": gpu_hit, "selected_tokens": selected, "status": "ok"}
    return request(0, 100, 60, **{**known, "request_id": name, **more})


def lookup(found: int | None, outcome: str | None = "ok", start: int = 10, **more: Any) -> Row:
    """The scheduler's inquiry, 10 long."""
    return scheduler("lookup", start, start + 10, found_tokens=found, outcome=outcome, **more)


def loaded(
    tokens: int | None, outcome: str = "ok", path: str = "host->gpu", start: int = 20, **more: Any
) -> Row:
    """A hop of a load, 20 long."""
    return load(start, start + 20, path, tokens=tokens, outcome=outcome, **more)


def prefill(before: int | None, tokens: int, start: int = 40, name: str = "r0", **more: Any) -> Row:
    """A step that computes so many tokens of the prompt after so many."""
    member = {
        "request_id": name, "phase": "prefill", "scheduled_tokens": tokens, "output_tokens": 1,
        "computed_before": before,
    }  # fmt: skip
    return scheduler("step", start, start + 20, request_id=None, members=[member], **more)


def decode(end: int, tokens: int = 1, name: str = "r0") -> Row:
    """A step that puts out tokens of a request and ends then."""
    member = {
        "request_id": name, "phase": "decode", "scheduled_tokens": tokens, "output_tokens": tokens,
        "computed_before": PROMPT,
    }  # fmt: skip
    return scheduler("step", end - 1, end, request_id=None, members=[member])


def route(found: int | None, start: int = 5, **more: Any) -> Row:
    """A router chooses a worker."""
    row = {"op": "route", "request_id": "r0", "observer": "router", "process": "router"}
    return {**row, "start_ns": start, "end_ns": start, "found_tokens": found, **more}


def key(position: int, name: str = "r0", space: str = "vllm:sha256:m", **more: Any) -> Row:
    """The request asks for its key k<position>, 256 tokens each."""
    row = {"run_id": "r", "request_id": name, "attempt": 1, "position": position, "key_space": space}
    return {**row, "key": f"k{position}", "tokens": 256, "time_ns": 10, **more}


def stored(position: int, time: int = 1, event: str = "stored", **more: Any) -> Row:
    """An event of key k<position>."""
    row = {"run_id": "r", "time_ns": time, "event": event, "tier": "host", "component": "vllm.offloading.cpu"}
    return {**row, "key_space": "vllm:sha256:m", "key": f"k{position}", "engine": "e0", **more}


def block_size(tokens: int = BLOCK, engine: str = "e0") -> Row:
    """The engine says how large its blocks are."""
    return {
        "run_id": "r",
        "identity_id": engine,
        "side": "writer",
        "field": "block_size",
        "value": str(tokens),
    }


def written(folder: Path, *spans: Row, **tables: Any) -> Run:
    """A run of these rows; span ids count from 1."""
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    return write_run(folder / "run", **{"span": rows, "identity": [block_size()], **tables})
