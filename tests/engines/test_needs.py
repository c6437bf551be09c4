"""Which tokens a group of layers needs is what vLLM's own managers keep when it computes on from there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "needs_script.py"


def test_every_kind_of_group_needs_what_vllm_does_not_skip(python: Path) -> None:
    done = subprocess.run(
        [str(python), str(SCRIPT)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("NEEDS ")]
    assert lines, done.stderr[-2000:]
    answers = json.loads(lines[0].removeprefix("NEEDS "))
    assert {kind for _, kind, _ in answers} == {"full", "latent", "window", "chunked", "recurrent"}
    for name, kind, found in answers:
        assert [ours for _, ours, _ in found] == [theirs for *_, theirs in found], (name, kind)
