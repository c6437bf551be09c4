"""The house keeps its own rules: layers, docs, light imports, published files."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
import yaml
from kvtrace import schema
from kvtrace.analyses import answer, question, questions, takes
from kvtrace.cli._docs import columns, commands, parse
from kvtrace.cli._nouns import view_columns, view_docs
from kvtrace.panels import panel, panels
from kvtrace.run.nouns import noun_files
from kvtrace.schema import publish, vocabulary
from kvtrace.schema.attributes import CANONICAL, MEMBERS
from kvtrace.schema.tables import MEMBER, SPAN, TABLES, TYPES
from tests.rows import write_run

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kvtrace"
CONTRACT = """
run collect import compact info sql analyze explain check report diff compare experiment model app export
list describe schema doctor
"""
HEAVY = ("polars", "duckdb", "pyarrow", "numpy", "scipy", "plotly", "msgspec", "google", "cyclopts", "rich")


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_dashboards" not in path.parts)


@pytest.mark.parametrize("view", sorted(view_columns()))
def test_every_noun_and_column_has_a_meaning(view: str) -> None:
    assert view_docs()[view]
    assert not [column.name for column in view_columns()[view] if not column.meaning.strip()]


def test_every_noun_and_table_is_a_view() -> None:
    assert set(view_columns()) == set(noun_files()) | set(TABLES)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_is_in_the_contract_and_shows_an_example(command: str) -> None:
    assert command in CONTRACT.split()
    doc = parse(commands()[command])
    assert doc.prose
    assert f"kvtrace {command}" in doc.sections["Example"]


@pytest.mark.parametrize("name", sorted(questions()))
def test_a_question_documents_the_columns_it_gives_on_an_empty_run(name: str, tmp_path: Path) -> None:
    empty = write_run(tmp_path / "run")
    frame = answer(name, [empty] * max(len(takes(name).names), 1))
    assert isinstance(frame, pl.DataFrame)
    assert list(columns(question(name).__doc__)) == frame.columns
    assert questions()[name].endswith("?")


@pytest.mark.parametrize("name", panels())
def test_a_panel_says_what_it_asks_and_how_to_read_it(name: str) -> None:
    module = panel(name)
    assert module.TITLE
    assert module.READING
    assert callable(module.data)
    assert callable(module.draw)


@pytest.mark.parametrize(
    "module", ["kvtrace", "kvtrace.schema", "kvtrace.schema.publish", "kvtrace.errors", "kvtrace.cli"]
)
def test_light_modules_import_the_standard_library_alone(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_file_is_longer_than_300_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): n
        for path in sources()
        if (n := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_there_is_no_drawer_for_things_without_a_place() -> None:
    drawers = {"utils", "util", "common", "base", "manager", "helpers", "helper", "misc"}
    names = [path for path in PACKAGE.rglob("*") if path.stem.strip("_") in drawers]
    assert not names


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(publish.files()))
def test_the_published_files_are_what_the_words_say(name: str) -> None:
    assert (ROOT / "schemas" / name).read_text(encoding="utf-8") == publish.files()[name], (
        "stale: run python -m kvtrace.schema.publish schemas"
    )


def test_the_published_contract_holds_every_table_column_and_closed_list() -> None:
    contract = json.loads(publish.contract_json())
    assert contract["version"] == schema.VERSION
    assert list(contract["history"]) == [str(version) for version in range(1, schema.VERSION + 1)]
    for table, expected in TABLES.items():
        published = contract["tables"][table]["columns"]
        assert [(c["name"], c["type"], c["doc"]) for c in published] == [
            (c.name, c.type, c.doc) for c in expected
        ]
        assert {c["type"] for c in published} <= set(TYPES)
    assert set(contract["reasons"]) <= set(contract["operations"])
    assert contract["closed_lists"]["span.op"] == list(vocabulary.OPS)


def test_the_attributes_are_a_semantic_convention_group() -> None:
    (group,) = yaml.safe_load(publish.attributes_yaml())["groups"]
    assert {"id", "type", "brief", "attributes"} <= set(group)
    assert group["type"] == "attribute_group"
    ids = [entry["id"] for entry in group["attributes"]]
    assert len(ids) == len(set(ids))
    assert set(CANONICAL) | set(MEMBERS) <= set(ids)
    for entry in group["attributes"]:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", entry["id"]), entry["id"]
        assert {"id", "type", "brief", "note", "stability"} <= set(entry), entry["id"]
        if isinstance(entry["type"], dict):
            for member in entry["type"]["members"]:
                assert {"id", "value", "brief", "stability"} == set(member)
                assert isinstance(member["value"], str)
            continue
        assert entry["type"] in {"int", "string", "int[]", "string[]"}
        wanted = int if entry["type"].startswith("int") else str
        for example in entry["examples"]:
            values = example if entry["type"].endswith("[]") else [example]
            assert all(isinstance(value, wanted) for value in values), entry["id"]


def test_every_attribute_names_a_column() -> None:
    assert set(CANONICAL.values()) <= {column.name for column in SPAN}
    assert set(MEMBERS.values()) <= {column.name for column in MEMBER}


@pytest.mark.parametrize("file", sorted((ROOT / "dashboards").glob("*.toml")), ids=lambda file: file.name)
def test_a_dashboard_names_panels_and_options_that_exist(file: Path) -> None:
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["panel"]
    assert entries
    for entry in entries:
        assert entry["name"] in panels()
        known = inspect.signature(panel(entry["name"]).data).parameters
        assert set(entry.get("options", {})) <= set(known), entry["name"]
