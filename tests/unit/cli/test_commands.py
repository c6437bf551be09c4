from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kvtrace.cli import import_, main
from kvtrace.schema.publish import contract_json
from kvtrace.schema.tables import TABLES
from tests.spools import Drawn, living_header, run_file
from tests.unit.cli.conftest import FORMULA

Progress = Callable[[Path, int, int], None]


def output(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_info_says_who_recorded_what_and_what_nobody_observed(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [" ".join(line.split()) for line in output(["info", str(run_path)], capsys).splitlines()]
    for said in (
        "vllm 0.32.0", "group tiered", "total 2", "open 1", "undecodable 1 otlp.binpb", "gen_ai.prompt 3",
        "first_ns 2023-11-14T22:13:20.000000000Z", "request_finish: 1 of 2 lack it", "step_members",
        "would fill it: kvtrace run",
    ):  # fmt: skip
        assert said in lines, said


def test_info_as_json_holds_both_tables(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = json.loads(output(["info", str(run_path), "--format", "json"], capsys))
    assert {"what": "requests", "name": "total", "value": 2, "detail": None} in both["inventory"]
    assert next(row for row in both["coverage"] if row["fact"] == "step_members")["observed"] is False


def test_a_question_takes_its_own_options(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(["analyze", "exposure", str(run_path), "--window", "ttft", "--format", "json"], capsys)
    assert {row["window"] for row in json.loads(out)} == {"ttft"}


def test_an_option_that_takes_several_is_repeated(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "critical_path", str(run_path), "--requests", FORMULA, "--requests", "x"]
    rows = json.loads(output([*words, "--format", "json"], capsys))
    assert {row["request_id"] for row in rows} == {FORMULA}


def test_a_path_may_be_asked_for_by_user(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "critical_path", str(run_path), "--format", "json"]
    rows = [json.loads(output([*words, "--by", by], capsys)) for by in ("user", "request")]
    assert rows[0] == rows[1]  # nobody has a user_request_id here: every request stands alone


def test_the_help_of_a_question_shows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(["analyze", "exposure", "--help"], capsys)
    for said in ("--window", "ttft, decode, e2e", "--format", "--output", "kvtrace analyze exposure run"):
        assert said in out


def test_list_names_questions_panels_nouns_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(["list", "--format", "json"], capsys))
    kinds = {(row["kind"], row["name"]) for row in rows}
    assert {("question", "coverage"), ("noun", "transfer"), ("table", "span")} <= kinds
    assert all(row["about"] for row in rows)
    assert "transfer" in output(["list"], capsys)


def test_describe_a_table_gives_every_column_with_type_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = json.loads(output(["describe", "loss", "--format", "json"], capsys))
    assert [(row["column"], row["meaning"]) for row in rows] == [(c.name, c.doc) for c in TABLES["loss"]]
    assert next(row for row in rows if row["column"] == "count")["type"] == "BIGINT"


def test_describe_a_question_gives_its_definition_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert "consequence: what cannot be answered without it" in output(["describe", "coverage"], capsys)


def test_describe_a_name_of_several_things_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(["describe", "exposure"], capsys)
    assert "exposure is a question" in out
    assert "exposure is a panel" in out


def test_schema_prints_the_published_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(["schema"], capsys) == contract_json()


@pytest.mark.parametrize("query", ["COPY span TO 'x'", "SELECT 1; SELECT 2", "EXPLAIN SELECT 1", ""])
def test_sql_takes_exactly_one_select(query: str, run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(run_path), query]) == 2
    assert capsys.readouterr().err.startswith("kvtrace: sql: ")


def test_a_type_that_cannot_come_out_is_a_sentence(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", str(run_path), "SELECT INTERVAL 1 DAY AS x"]) == 2
    assert "cast it" in capsys.readouterr().err


@dataclass(frozen=True)
class Said:
    """What the importer reports, as the command line reads it."""

    path: Path = Path("\x1b[31m.binpb")
    format: str = "otlp-proto"
    spans: int = 12
    other_rows: int = 0
    lost: dict[str, int] = field(default_factory=lambda: {"undecodable": 2, "duplicate": 3})
    notes: tuple[str, ...] = ("cut in the middle of a message",)


@dataclass(frozen=True)
class Report:
    run: Path
    inputs: tuple[Said, ...] = (Said(),)
    rows: dict[str, int] = field(default_factory=lambda: {"span": 12, "block": 0})


def test_import_says_per_input_what_came_in_and_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, object] = {}

    def import_files(inputs: tuple[Path, ...], out: Path, **options: object) -> Report:
        asked.update(options, inputs=inputs)
        return Report(out)

    monkeypatch.setattr(import_, "import_files", import_files)
    run = tmp_path / "run"
    out = output(["import", "a.binpb", "b.jsonl", "--out", str(run), "--group", "tiered"], capsys)
    assert asked == {
        "inputs": (Path("a.binpb"), Path("b.jsonl")), "format": "auto", "keep_content": False,
        "group": "tiered", "on_progress": None,
    }  # fmt: skip
    assert out.splitlines() == [
        "\\x1b[31m.binpb: otlp-proto, 12 spans", "    lost: 2 undecodable",
        "    came twice, counted once: 3 duplicate",
        "    cut in the middle of a message", f"{run}: 12 span", f"Next: kvtrace report {run}",
    ]  # fmt: skip


def test_import_shows_a_bar_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def import_files(inputs: tuple[Path, ...], out: Path, *, on_progress: Progress, **_: object) -> Report:
        for done in (0, 5, 10):
            on_progress(inputs[0], done, 10)
        return Report(out)

    monkeypatch.setattr(import_, "import_files", import_files)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["import", "a.binpb", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "a.binpb" in said.err
    assert "10/10" in said.err
    assert "Next: kvtrace report" in said.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["import", "--out", "run"], "name at least one file"),
        (["import", "x", "--out", "run", "--format", "otlp-prto"], "Did you mean"),
        (["import", "x"], "--out"),
        (["report"], "name at least one run"),
    ],
)
def test_what_import_and_report_need_is_said(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_info_says_that_a_run_is_still_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_file(tmp_path / "run", kind="run", ended_ns=None)
    Drawn(run / "spool", **living_header()).facts(engine="e0")
    said = output(["info", str(run)], capsys).splitlines()
    assert said[:2] == [
        str(run),
        "being recorded; this is what there is at this moment (processes that write: 1)",
    ]
