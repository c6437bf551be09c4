"""Who keeps a difference from being read, asked of vLLM's and LMCache's own functions: no engine is started.

`pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kvtrace.analyses.compatibility._keepers import keeper

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).parent / "keys_script.py"
PRODUCTS = ("vllm", "lmcache", "lmcache.inprocess", "vllm.offloading", "nixl")
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def answers(python: Path) -> dict[str, Any]:
    """What changes which key, told by one process of the engine's environment.

    -P: the folder of the script holds packages named as some of the engine's.
    """
    done = subprocess.run(
        [str(python), "-P", str(SCRIPT)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWERS "))
    return found


@pytest.mark.parametrize("product", PRODUCTS)
def test_what_changes_the_key_is_what_we_say_is_kept(product: str, answers: dict[str, Any]) -> None:
    kept = {field: keeper(product, field, None) != "nobody" for field in answers[product]}
    assert kept == answers[product]
    word = "key" if product in ("vllm", "lmcache", "lmcache.inprocess") else "backend"
    assert {keeper(product, field, None) for field, changes in answers[product].items() if changes} == {word}


def test_what_makes_one_key_of_two_settings(answers: dict[str, Any]) -> None:
    assert answers["one"] == dict.fromkeys(answers["one"], True)


def test_lmcaches_keys_have_no_place_for_more(answers: dict[str, Any]) -> None:
    assert answers["fields"]["ObjectKey"] == [
        "cache_salt", "chunk_hash", "kv_rank", "model_name", "object_group_id",
    ]  # fmt: skip
    assert "lora" not in " ".join(answers["fields"]["IPCCacheServerKey"])
    assert {"cache_salt", "lora_name", "lora_id"}.isdisjoint(answers["fields"]["CacheEngineKey"])
