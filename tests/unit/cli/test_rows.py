from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import polars as pl
from kvtrace.cli import main
from kvtrace.cli._rows import csv_lines, json_lines
from kvtrace.cli._table import console, show
from tests.unit.cli.conftest import FORMULA, HOSTILE, T0_NS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

QUERY = "SELECT request_id, op, end_ns, span_id, found_by_tier FROM span ORDER BY op DESC, start_ns"


def sql(run: Path, *options: str) -> int:
    return main(["sql", str(run), QUERY, *options])


def test_json_keeps_integers_null_maps_and_text_exactly(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql(run_path, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [
        {
            "request_id": FORMULA,
            "op": "request",
            "end_ns": T0_NS + 100,
            "span_id": 2**64 - 1,
            "found_by_tier": None,
        },
        {"request_id": HOSTILE, "op": "request", "end_ns": None, "span_id": None, "found_by_tier": None},
        {
            "request_id": FORMULA,
            "op": "lookup",
            "end_ns": T0_NS + 9,
            "span_id": None,
            "found_by_tier": {"host": 50},
        },
    ]


def test_csv_quotes_all_text_and_leaves_null_empty(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql(run_path, "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '"request_id","op","end_ns","span_id","found_by_tier"'
    assert lines[1] == f'"\'{FORMULA}","request",{T0_NS + 100},{2**64 - 1},'
    assert lines[3].endswith('"{""host"": 50}"')


def test_a_hostile_id_starts_no_workflow_command_in_any_format(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("csv", "json", "table"):
        assert sql(run_path, "--format", form) == 0
        out = capsys.readouterr().out
        assert "set-env" in out
        assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]
        assert "\x1b" not in out


def test_a_text_that_a_spreadsheet_would_compute_gets_an_apostrophe() -> None:
    ids = ["=1+1", "@SUM(1)", "+cmd|'/C calc'!A0", "-2+3", "-123", "+4.5", "plain", ""]
    lines = list(csv_lines(pl.DataFrame({"id": ids})))[1:]
    read = [row[0] for row in csv.reader(io.StringIO("\n".join(lines)))]
    assert read == ["'=1+1", "'@SUM(1)", "'+cmd|'/C calc'!A0", "'-2+3", "-123", "+4.5", "plain", ""]


def test_an_empty_text_and_null_differ_in_csv() -> None:
    assert list(csv_lines(pl.DataFrame({"id": ["", None]})))[1:] == ['""', ""]


def test_a_wide_sum_is_an_integer_in_json(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(run_path), "SELECT sum(start_ns) AS total FROM span", "--format", "json"]) == 0
    assert f'"total": {3 * T0_NS + 5}' in capsys.readouterr().out


def test_no_number_becomes_null_in_json_since_json_has_no_word_for_it() -> None:
    assert list(json_lines(pl.DataFrame({"x": [float("nan"), float("inf"), 0.5]})))[1:-1] == [
        '{"x": null},', '{"x": null},', '{"x": 0.5}',
    ]  # fmt: skip


def test_rows_of_no_rows_are_an_empty_list() -> None:
    assert json.loads("".join(json_lines(pl.DataFrame(schema={"x": pl.Int64})))) == []


def test_parquet_needs_a_file(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sql(run_path, "--format", "parquet") == 2
    assert "-o FILE" in capsys.readouterr().err


def test_the_name_of_the_file_chooses_the_format(run_path: Path, tmp_path: Path) -> None:
    assert sql(run_path, "-o", str(tmp_path / "x.parquet")) == 0
    assert pl.read_parquet(tmp_path / "x.parquet")["end_ns"].to_list() == [T0_NS + 100, None, T0_NS + 9]
    assert sql(run_path, "-o", str(tmp_path / "x.json")) == 0
    assert len(json.loads((tmp_path / "x.json").read_text())) == 3


def test_a_file_that_cannot_be_written_is_a_sentence(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql(run_path, "-o", str(run_path / "no" / "x.csv")) == 2
    assert "cannot be written" in capsys.readouterr().err


def shown(frame: pl.DataFrame, width: int) -> str:
    out = io.StringIO()
    term = console(out)
    term._force_terminal, term._color_system, term.width = True, None, width
    show(frame, out, term=term)
    return out.getvalue()


def test_null_is_shown_as_not_observed_and_markup_is_not_interpreted() -> None:
    out = shown(pl.DataFrame({"id": ["[red]x[/red]", None], "n": [1, None]}), 80)
    assert "[red]x[/red]" in out
    assert out.count("not observed") == 2


def test_columns_that_do_not_fit_are_named_the_unobserved_ones_first() -> None:
    frame = pl.DataFrame(
        {"first": ["a" * 30], "nothing": pl.Series([None], dtype=pl.Int64), "last": ["b" * 20]}
    )
    out = shown(frame, 60)
    assert "1 of 3 columns hidden: nothing." in out
    assert "--format csv shows all." in out
    assert "b" * 20 in out
    narrow = shown(frame, 40)
    assert "2 of 3 columns hidden: nothing, last." in narrow


def test_a_bound_is_never_hidden_from_its_number() -> None:
    frame = pl.DataFrame({"exposed_ns": [1], **{f"c{at}": ["x" * 20] for at in range(9)}, "bound": ["upper"]})
    out = shown(frame, 60)
    assert "upper" in out
    assert "columns hidden" in out


def test_rows_beyond_fifty_are_counted_on_a_terminal_and_shown_in_a_pipe() -> None:
    frame = pl.DataFrame({"n": range(60)})
    assert "10 of 60 rows hidden." in shown(frame, 80)
    out = io.StringIO()
    show(frame, out)
    assert "hidden" not in out.getvalue()
    assert "59" in out.getvalue()


def test_a_pipe_gets_every_column_whole() -> None:
    frame = pl.DataFrame({f"column_{at}": ["x" * 30] for at in range(12)})
    out = io.StringIO()
    show(frame, out)
    assert out.getvalue().count("x" * 30) == 12


def test_a_long_cell_is_cut_and_says_so() -> None:
    out = shown(pl.DataFrame({"id": ["x" * 200]}), 100)
    assert "x" * 61 not in out
    assert "are cut" in out


def test_no_rows_are_said() -> None:
    assert "No rows." in shown(pl.DataFrame(schema={"x": pl.Int64}), 80)
