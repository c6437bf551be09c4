"""vLLM's own benchmark under `kvtrace run`: one start of the engine, eight requests. `pytest -m engine`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kvtrace.run import Run, open_run
from tests.engines import model
from tests.engines.environment import engine_python, skip_when_missing
from tests.engines.plugin.offline import TIMEOUT_S, surroundings

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("benchmark_script.py")
REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS = 8, 100, 8
ARGUMENTS = {
    "model": model.NAME,
    "load-format": "dummy",
    "dtype": "bfloat16",
    "max-model-len": 4096,
    "block-size": 128,
    "num-gpu-blocks-override": 40,
    "dataset-name": "random",
    "num-prompts": REQUESTS,
    "random-input-len": INPUT_TOKENS,
    "random-output-len": OUTPUT_TOKENS,
    "output-json": "result.json",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_when_missing()
    folder = tmp_path_factory.mktemp("benchmark")
    model.write_model(folder / model.NAME)
    arguments = [text for name, value in ARGUMENTS.items() for text in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "kvtrace",
        "run",
        "--out",
        "run",
        "--",
        str(engine_python()),
        str(SCRIPT),
    ]
    done = subprocess.run(
        [*command, *arguments, "--enforce-eager"],
        cwd=folder,
        env=surroundings(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return open_run(folder / "run")


def test_every_request_of_the_benchmark_is_recorded_and_nothing_lost(run: Run) -> None:
    rows = run.sql("SELECT prompt_tokens, output_tokens, status FROM request").rows()
    assert len(rows) == REQUESTS
    assert {(output, status) for _, output, status in rows} == {(OUTPUT_TOKENS, "ok")}
    assert run.sql("SELECT * FROM loss WHERE cause <> 'unclean_end'").rows() == []


def test_the_benchmarks_own_count_of_tokens_is_the_recordings(folder: Path, run: Run) -> None:
    result = json.loads((folder / "result.json").read_text())
    (tokens,) = run.sql("SELECT sum(prompt_tokens) + sum(output_tokens) FROM request").rows()[0]
    assert result["num_requests"] == REQUESTS
    assert result["total_num_tokens"] == tokens
