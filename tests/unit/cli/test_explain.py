"""kvtrace explain: sentences for a person, rows for a program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.cli import main
from tests.rows import write_run
from tests.unit.analyses import killed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_run(tmp_path_factory.mktemp("killed") / "run", killed.POOL, **killed.tables()).path)


def test_a_request_by_any_of_its_names(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", path, "req-3"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.strip()]
    assert lines[0] == "cmpl-r3-0-dd"
    assert [line.strip()[:2] for line in lines if line.strip()[1:2] == "."] == [
        "1.",
        "2.",
        "3.",
        "4.",
        "5.",
        "6.",
    ]
    assert "that 3 requests held for stores" in " ".join(out.split())
    assert "fallbacks:" not in out


def test_evidence_on_demand(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", path, "req-0", "--evidence"]) == 0
    assert "(fallbacks: recompute_after_timeout)" in capsys.readouterr().out


def test_the_worst_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", path, "--worst", "2", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 12
    assert list(rows[0]) == ["request_id", "position", "sentence", "evidence"]
    assert [row["request_id"] for row in rows[::6]] == ["cmpl-r3-0-dd", "cmpl-r0-0-aa"]


def test_a_target_that_is_given_is_answered(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--worst", "1", "--ttft-ns", "2000000000", "--e2e-ns", "60000000000", "--format", "json"]
    assert main(["explain", path, *words]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["sentence"].endswith(
        " Of its targets it missed 2 s to its first token (13.7 s); it kept 60 s to its end (14.0 s)."
    )


def test_a_request_and_a_number_of_the_worst_exclude_each_other(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", path, "req-3", "--worst", "2"]) == 2
    assert "a request or --worst, not both" in capsys.readouterr().err


def test_a_name_of_several_is_one_sentence_on_stderr(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", path, "twice"]) == 2
    assert capsys.readouterr().err == (
        "kvtrace: explain: twice names 2 requests: cmpl-r0-0-aa and cmpl-r1-0-bb; give one of these ids.\n"
    )


def test_a_hostile_id_is_harmless_in_a_terminal(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both requests of the fixture have ids from hell."""
    assert main(["explain", str(run_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]


def test_a_run_without_a_request_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(write_run(tmp_path / "run").path)]) == 0
    assert capsys.readouterr().out == "No request is in this run.\n"
