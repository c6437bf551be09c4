"""The two pull requests that the README shows.

    python -m tests.pull_request FOLDER     draws their runs there
    python -m tests.pull_request            writes what kvtrace diff prints of them into README.md

    request i   |- load disk->host: 1 ms a 1,000 tokens -|- step: prefill, 10 ms -|   first token, and the end
    base, same  as above              slow  loads of prompts over 8,000 tokens take 40 ms more

Three runs a side, 400 requests each, of a stated seed: each run is off by about 1 %, each load by about 5 %.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from kvtrace.cli import main
from tests.rows import write_run

if TYPE_CHECKING:
    from kvtrace.run import Run

README = Path(__file__).parent.parent / "README.md"
GATES = README.parent / "docs" / "ci" / "gates.toml"
HEADS = ("slow", "same")
SEED = 2026
REQUESTS, RUNS = 400, 3
LONG_TOKENS, SLOWER_NS = 8_000, 40_000_000
START = 1_790_000_000_000_000_000
GAP_NS = 1_000_000_000
STEP_NS = 10_000_000


def draw(folder: Path) -> dict[str, list[Run]]:
    """base, same and slow: three runs each, in FOLDER/base/1 and so on."""
    random = np.random.default_rng(SEED)
    prompts = random.integers(1, 64, REQUESTS) * 200
    return {
        side: [_run(folder / side / str(number + 1), prompts, random, slower) for number in range(RUNS)]
        for side, slower in (("base", 0), ("same", 0), ("slow", SLOWER_NS))
    }


def _run(path: Path, prompts: np.ndarray, random: np.random.Generator, slower: int) -> Run:
    loads = prompts * 1_000 * random.normal(1, 0.01) * random.normal(1, 0.05, prompts.size)
    loads = (loads + np.where(prompts > LONG_TOKENS, slower, 0)).astype(np.int64).tolist()
    meta = {"synthetic": True, "engines": {"e": {"product": "vllm", "model": "tiny", "block_size": "16"}}}
    rows = zip(prompts.tolist(), loads, strict=True)
    spans = [row for number, each in enumerate(rows) for row in _request(number, *each)]
    return write_run(path, meta, span=spans)


def _request(number: int, prompt: int, load_ns: int) -> list[dict[str, Any]]:
    name, start = f"req-{number:03d}", START + number * GAP_NS
    done, end = start + load_ns, start + load_ns + STEP_NS
    whose = {"engine": "e", "process": "p", "observer": "scheduler", "evidence": "shim"}
    member = {
        "request_id": name,
        "phase": "prefill",
        "scheduled_tokens": 200,
        "computed_before": prompt - 200,
    }
    return [
        {**whose, "op": "request", "request_id": name, "workload_key": name, "start_ns": start, "end_ns": end,
         "first_token_ns": end, "status": "ok", "prompt_tokens": prompt, "output_tokens": 1},
        {**whose, "op": "load", "request_id": name, "start_ns": start, "end_ns": done, "tier_from": "disk",
         "tier_to": "host", "transfer_id": name, "outcome": "ok", "tokens": prompt - 200},
        {**whose, "op": "step", "start_ns": done, "end_ns": end, "members": [{**member, "output_tokens": 1}]},
    ]  # fmt: skip


def summary(folder: Path, head: str) -> str:
    """What `kvtrace diff --format markdown` prints of these runs."""
    sides = [sorted(str(run) for run in (folder / side).iterdir()) for side in ("base", head)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["diff", *sides[0], "--vs", *sides[1], "--gate", str(GATES), "--format", "markdown"])
    return out.getvalue()


def written(readme: str, head: str, text: str) -> str:
    """The README with this summary between its marks."""
    begin, end = (f"<!-- {mark} kvtrace diff base/* --vs {head}/* -->\n" for mark in ("begin", "end"))
    before, _, rest = readme.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        for head in HEADS:
            README.write_text(written(README.read_text(), head, summary(Path(folder), head)))


if __name__ == "__main__":
    draw(Path(sys.argv[1])) if len(sys.argv) > 1 else _write()
