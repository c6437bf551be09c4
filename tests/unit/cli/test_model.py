"""kvtrace model: the sums as rows, and one sentence for what it does not know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.cli import main, model
from kvtrace.cli._docs import columns
from tests.unit.geometry import shapes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, shapes.GPT_OSS)


def written(folder: Path, value: Any) -> Path:
    path = folder / "config.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def rows(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["model", *words, "--format", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_person_reads_the_figures_downwards(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(config), "--tokens", "1000"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "bytes_per_token 36,864" in lines
    assert "dtype bfloat16" in lines


def test_the_length_is_the_models_own_unless_it_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (long,), (short,) = rows([str(config)], capsys), rows([str(config), "--tokens", "64"], capsys)
    assert (long["tokens"], short["tokens"]) == (131072, 64)
    assert long["bytes_per_token"] * 2 == short["bytes_per_token"]


def test_groups_sum_to_the_whole(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = rows([str(config), "--tp", "4", "--pp", "3"], capsys)
    parts = rows([str(config), "--tp", "4", "--pp", "3", "--by", "group"], capsys)
    assert [part["group"] for part in parts] == ["window", "full"]
    assert [part["span_tokens"] for part in parts] == [128, None]
    for name in whole:
        if name.startswith("bytes_"):
            assert whole[name] == sum(part[name] for part in parts), name


def test_every_column_is_documented(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (part, *_) = rows([str(config), "--by", "group"], capsys)
    assert list(part) == list(columns(model.model.__doc__))


def test_states_alone_need_no_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows([str(written(tmp_path, shapes.MAMBA2))], capsys)
    assert found["bytes_per_sequence"] == found["bytes_per_request"] == 64 * (61440 + 2097152)


@pytest.mark.parametrize(
    ("value", "words", "sentence"),
    [
        ("{", [], "is no JSON"),
        ("[]", [], "is no JSON object"),
        ("[" * 100_000, [], "is no JSON"),
        (shapes.LLAMA_8B | {"num_hidden_layers": None}, [], "num_hidden_layers: is missing"),
        (shapes.LLAMA_8B | {"hidden_size": float("nan")}, [], "hidden_size: is NaN"),
        (shapes.STARCODER, [], "max_position_embeddings: is missing; name the length with --tokens."),
        (shapes.LLAMA_8B, ["--tp", "5"], "--tp 5: num_attention_heads is 32, which it does not divide."),
        (shapes.LLAMA_8B, ["--dtype", "fp7"], "--dtype fp7: is not known; there are auto, bfloat16"),
        (shapes.LLAMA_8B | {"model_type": "\x1b[31mred"}, [], "model_type: is"),
    ],
)  # fmt: skip
def test_what_it_cannot_answer_is_one_sentence_and_exit_2(
    value: Any, words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", str(written(tmp_path, value)), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "bug in kvtrace" not in said
    assert "\x1b" not in said
    assert said.count("\n") == 1


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(tmp_path / "none.json")]) == 2
    assert main(["model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 2
