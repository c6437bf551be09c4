"""Torch and numpy give the same numbers for the same logits, in the environment in which torch is.

Seconds, no engine starts: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "blend_script.py"
FORMS = ("npy", "both.pt", "both.safetensors", "halves.pt", "halves.safetensors")


@pytest.fixture(scope="module")
def said(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), str(SCRIPT), str(tmp_path_factory.mktemp("logits"))],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = dict(
        line.split(" ", 1) for line in done.stdout.splitlines() if line[:7] in ("ANSWERS", "REFUSED")
    )
    assert len(lines) == 2, done.stderr[-3000:]
    return {name: json.loads(line) for name, line in lines.items()}


@pytest.fixture(scope="module")
def answers(said: dict[str, Any]) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = said["ANSWERS"]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_torch_and_numpy_agree_whatever_form_the_logits_have(
    answers: dict[str, dict[str, list[Any]]], form: str
) -> None:
    by_numpy, by_torch = (answers[form][backend] for backend in ("numpy", "torch"))
    assert by_numpy[:4] == by_torch[:4]
    assert by_numpy[:3] == ["logits", 37, 3]
    assert by_numpy[4:] == pytest.approx(by_torch[4:], rel=1e-9)
    assert all(number > 0 for number in by_numpy[4:])


def test_every_form_of_the_same_numbers_gives_the_same_answer(
    answers: dict[str, dict[str, list[Any]]],
) -> None:
    assert answers["npy"] == answers["both.pt"] == answers["both.safetensors"]
    assert answers["halves.pt"] == answers["halves.safetensors"]
    assert answers["npy"] != answers["halves.pt"]


def test_a_file_of_torch_that_holds_no_matrix_is_refused_in_a_sentence(said: dict[str, Any]) -> None:
    told = said["REFUSED"]
    assert told.pop("ran") == "False"
    assert set(told) == {"expanded", "sparse", "compressed", "meta", "quantized", "planted"}
    for form, sentence in told.items():
        assert re.search(r"is no matrix|claims more numbers|does not load", sentence), (form, sentence)
