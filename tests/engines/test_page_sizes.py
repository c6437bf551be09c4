"""A block of every kind of layer takes what vLLM's own cache specification says, on one rank of several."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kvtrace.geometry import model_of
from kvtrace.geometry.layers import TokenLayer
from kvtrace.geometry.parallel import stages
from tests.unit.geometry.shapes import KINDS

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).parent / "page_sizes_script.py"
TIMEOUT_S = 300
NOT_IN_VLLM = {"minimax-text", "zamba"}
"""This engine serves them no longer, or never did."""
NOT_IN_TRANSFORMERS = {"kimi-k2"}
"""Its own configuration class is in no library: its layers are those of DeepSeek V3."""
RANKS = {"falcon-7b": (1,), "gemma3n": (1, 2), "falcon-h1": (1, 2, 4)}
"""Where the number of heads allows no more."""
DTYPES = {
    "llama": ("fp8", "int8_per_token_head", "int4_per_token_head", "fp8_per_token_head", "float32"),
    "gpt-oss": ("fp8_e5m2", "int8_per_token_head"),
    "deepseek-v3": ("fp8", "float16"),
    "deepseek-v32": ("fp8_ds_mla", "nvfp4_ds_mla"),
}


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Each shape on several ranks, and some with other dtypes."""
    served = sorted(set(KINDS) - NOT_IN_VLLM - NOT_IN_TRANSFORMERS)
    return [
        (f"{name}-{tp}-{dtype}", {"config": KINDS[name][0], "tp": tp, "block": 64, "dtype": dtype})
        for name in served
        for tp in RANKS.get(name, (1, 2, 4))
        for dtype in ("auto", *DTYPES.get(name, ()))
    ]


def splits() -> list[dict[str, Any]]:
    """Stages that come out even, and such that do not."""
    return [{"layers": layers, "pp": pp} for layers in (8, 31, 61, 62, 63) for pp in (1, 2, 3, 4, 7)]


@pytest.fixture(scope="module")
def answers(python: Path) -> dict[str, Any]:
    """What vLLM says of every case, asked in one process of its environment."""
    names = [name for name, _ in cases()] + [json.dumps(split) for split in splits()]
    done = subprocess.run(
        [str(python), str(SCRIPT)], input=json.dumps([*(case for _, case in cases()), *splits()]),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[-1].removeprefix("ANSWERS "))
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize(("name", "case"), cases(), ids=[name for name, _ in cases()])
def test_as_many_layers_have_pages_as_large_as_vllm_says(
    name: str, case: dict[str, Any], answers: dict[str, Any]
) -> None:
    tp, block = case["tp"], case["block"]
    ours = Counter(
        (layer.kind, layer.span, block * layer.token_bytes(tp) + layer.state_bytes(tp))
        for layers in model_of(case["config"], dtype=case["dtype"]).stack
        for layer in layers
        if layer.kind != "shared"
    )
    said = answers[name]
    assert not isinstance(said, str), said
    assert ours == {(kind, span, size): layers for kind, span, size, layers in said}


@pytest.mark.parametrize("split", splits(), ids=json.dumps)
def test_pipeline_stages_have_the_layers_that_vllm_gives_them(
    split: dict[str, Any], answers: dict[str, Any]
) -> None:
    stack = ((TokenLayer("full", 1, 1),),) * split["layers"]
    assert [len(stage) for stage in stages(stack, split["pp"])] == answers[json.dumps(split)]
