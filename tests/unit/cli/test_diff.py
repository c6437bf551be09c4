"""kvtrace diff: exit codes, and forms that CI servers read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from kvtrace.cli import _verdicts, main
from kvtrace.cli._text import escaped
from kvtrace.diff.findings import COLUMNS, Finding
from tests.unit.diff.drawn import draw_runs

if TYPE_CHECKING:
    from pathlib import Path

NEAR = (1.0, 1.001, 0.999)
EVIL = "</testcase>]]>&amp;|<img src=x>::set-env\x1b[31m\n::stop \x00\ud800\ufffe `x` \"'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs a side: b as a, c a tenth slower, d of another block size; and a gate file."""
    folder = tmp_path_factory.mktemp("runs")
    meta = {"engines": {"e": {"product": "vllm", "block_size": "16"}}}
    draw_runs(folder, "a", NEAR, meta=meta)
    draw_runs(folder, "b", NEAR)
    draw_runs(folder, "c", [1.1 * near for near in NEAR])
    draw_runs(folder, "d", NEAR, meta={"engines": {"e": {"product": "vllm", "block_size": "32"}}})
    (folder / "gates.toml").write_text('[[gate]]\nmetric = "ttft_ns"\n[[exact]]\nmetric = "failed"\n')
    (folder / "typo.toml").write_text('[[gate]]\nmetric = "ttft"\n')
    return folder


def ask(folder: Path, base: str, head: str, *more: str, gate: str = "gates.toml", runs: int = 3) -> int:
    sides = [[str(folder / f"{side}{number}") for number in range(runs)] for side in (base, head)]
    return main(["diff", *sides[0], "--vs", *sides[1], "--gate", str(folder / gate), *more])


def test_the_exit_codes_are_those_of_the_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(folder, "a", "b") == 0
    assert capsys.readouterr().out.endswith("pass: 2 same.\n")
    assert ask(folder, "a", "c") == 1
    assert capsys.readouterr().out.startswith("ttft_ns worse: +10% (95%: ")
    assert ask(folder, "a", "c", runs=2) == 4
    assert "it takes 3+3 runs" in capsys.readouterr().out
    assert ask(folder, "a", "d") == 3
    assert capsys.readouterr().err.startswith("kvtrace: not comparable: vllm.block_size differs: 16 in a0")
    assert ask(folder, "a", "c", gate="typo.toml") == 2
    assert "did you mean ttft_ns?" in capsys.readouterr().err


def test_runs_on_one_side_alone_are_bad_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(folder / "a0")]) == 2
    assert "give runs on both sides" in capsys.readouterr().err


def test_json_is_the_rows_with_the_columns_of_the_contract(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(folder, "a", "c", "--format", "json") == 1
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [list(COLUMNS)] * 2
    assert [row["verdict"] for row in rows] == ["worse", "same"]


def test_junit_is_a_test_case_a_gate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(folder, "a", "c", "--format", "junit") == 1
    suites = ET.fromstring(capsys.readouterr().out.encode())
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("2", "1", "0")
    cases = suites.findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == ["ttft_ns", "failed"]
    assert [case.find("failure") is not None for case in cases] == [True, False]


def test_markdown_says_the_verdict_and_a_row_a_gate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(folder, "a", "c", "--format", "markdown") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### kvtrace diff: regression"
    assert lines[4].startswith(r"| ttft\_ns | ")
    assert r"| \+10% |" in lines[4]
    assert len(lines) == 6


def test_names_from_outside_stay_text_in_every_form() -> None:
    found = [Finding(EVIL, verdict=verdict, because=EVIL) for verdict in ("worse", "same", None)]
    suites = ET.fromstring("\n".join(_verdicts.junit(found, 1)).encode())
    cases = suites.findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == [escaped(EVIL)] * 3
    assert [(child.tag, child.get("message") or child.text) for case in cases for child in case] == [
        (tag, escaped(EVIL)) for tag in ("failure", "system-out", "skipped")
    ]
    for lines in (list(_verdicts.markdown(found, 1)), list(_verdicts.text(found, 1))):
        assert all(line.isprintable() for line in lines)
        assert not any(line.lstrip().startswith("::") for line in lines)
    row = list(_verdicts.markdown(found, 1))[4]
    assert "<img" not in row
    assert row.replace(r"\|", "").count("|") == 10
