"""A run is an input like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq
import pytest
from kvtrace import schema
from kvtrace.errors import InputError
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.rows import write_run
from tests.unit.importer.drawn import (
    EXTERNAL,
    INTERNAL,
    LISTS,
    NOUNS,
    hash_log,
    imported,
    llm_request,
    lookup,
    losses,
    op,
    query,
    reported,
    retrieve,
    store,
    tables,
)

if TYPE_CHECKING:
    from kvtrace.run import Run

OTHER = "cmpl-req-001-0-99ccb134"
SOME = (
    llm_request(EXTERNAL, 10, 100, first_ms=50, queue_ms=5),
    llm_request(EXTERNAL, 210, 300, first_ms=50, queue_ms=-5),
    lookup(INTERNAL, 12, 15, 1280, 1280, parent=7),
    retrieve(INTERNAL, 16, 20, 5, 0),
    store(INTERNAL, 30, 33, 0, 1),
    store(INTERNAL, 34, 35, 1, 3),
    op("wait", 40, 41, None, reason="load"),
    op("step", 41, 50, None, more={"kvtrace.step.request_ids": [INTERNAL], "kvtrace.step.tokens": [220]}),
)
LOG = hash_log((INTERNAL, 12, 5), (OTHER, 60, 5))


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A run, and the run that was imported from it."""
    folder = tmp_path_factory.mktemp("twice")
    first = imported(folder, SOME, LOG)
    return first, imported(folder, first.path)


@pytest.mark.parametrize("table", [*NOUNS, *LISTS])
def test_a_run_imported_again_is_the_same_run(twice: tuple[Run, Run], table: str) -> None:
    first, again = twice
    assert tables(again, table) == tables(first, table)


def test_a_run_and_what_it_was_made_of_are_one_run(tmp_path: Path) -> None:
    first = imported(tmp_path, SOME)
    both = imported(tmp_path, first.path, SOME)
    assert tables(both, *NOUNS, "alias") == tables(first, *NOUNS, "alias")
    duplicates = [entry for entry in losses(both) if entry[0] == "duplicate"]
    assert duplicates == [("duplicate", None, len(SOME))]


def test_runs_of_two_recordings_become_one(tmp_path: Path) -> None:
    vllm = imported(tmp_path, [llm_request(EXTERNAL, 10, 100)])
    cache = imported(tmp_path, [lookup(INTERNAL, 12, 15, 1280, 1280)])
    both = imported(tmp_path, vllm.path, cache.path)
    assert query(both, "SELECT op, request_id FROM span ORDER BY op") == [
        ("lookup", INTERNAL),
        ("request", INTERNAL),
    ]


def test_rows_of_a_run_belong_to_the_new_run(tmp_path: Path) -> None:
    first = imported(tmp_path, SOME, LOG)
    again = imported(tmp_path, first.path)
    assert first.meta["run_id"] != again.meta["run_id"]
    for table in ("span", "alias", "process", "request_key", "loss"):
        assert query(again, f"SELECT DISTINCT run_id FROM {table}") == [(again.meta["run_id"],)]


def test_what_a_run_says_about_its_recording_goes_with_it(tmp_path: Path) -> None:
    about = {"scenario": "drawn", "captured": "by hand", "engines": {"vllm": "0.32.0"}, "synthetic": True}
    again = imported(tmp_path, imported(tmp_path, SOME, json.dumps(about).encode()).path)
    assert (again.meta["recording"], again.meta["synthetic"]) == (about, True)


@pytest.mark.parametrize("version", [schema.VERSION + 1, 0, -1, "1", None])
def test_a_run_of_another_schema_is_refused(tmp_path: Path, version: object) -> None:
    run = imported(tmp_path, SOME)
    (run.path / "run.json").write_text(json.dumps(run.meta | {"schema_version": version}))
    with pytest.raises(InputError, match=r"schema v.*reads up to v1") as error:
        imported(tmp_path, run.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["torn", "text", "empty", "another table", "run.json"])
def test_a_damaged_run_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    run = imported(tmp_path, SOME, LOG)
    (part,) = run.files("request_key")
    content = part.read_bytes()
    if damage == "another table":
        pl.DataFrame({"request_id": [1.5], "novelty": ["x"]}).write_parquet(part)
    elif damage == "run.json":
        (run.path / "run.json").write_bytes(b"{")
    else:
        part.write_bytes({"torn": content[:-30], "text": b"text, no Parquet", "empty": b""}[damage])
    with pytest.raises(InputError) as error:
        imported(tmp_path, run.path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob(".*importing*"))


@pytest.mark.parametrize(
    "said",
    [{"content_dropped": [1]}, {"content_dropped": {"a": "x"}}, {"recording": "x"}, {"recording": [1]}],
)
def test_a_run_whose_description_has_other_types_is_refused(tmp_path: Path, said: dict[str, object]) -> None:
    run = imported(tmp_path, SOME)
    (run.path / "run.json").write_text(json.dumps(run.meta | said))
    with pytest.raises(InputError, match="is no readable run") as error:
        imported(tmp_path, run.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("alias", {"alias": ["a"]}),
        ("alias", {"kind": [1], "request_id": [2]}),
        ("block", {"time_ns": ["noon"], "event": ["stored"]}),
        ("loss", {"count": ["many"]}),
        ("metric", {"labels": ["a=b"]}),
    ],
)
def test_a_table_whose_columns_have_other_types_is_refused(
    tmp_path: Path, table: str, columns: dict[str, list[object]]
) -> None:
    run = imported(tmp_path, SOME)
    (run.path / table).mkdir(exist_ok=True)
    pl.DataFrame(columns).write_parquet(run.path / table / "other.parquet")
    with pytest.raises(InputError, match="is no readable run") as error:
        imported(tmp_path, run.path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("column", ["attributes", "start_ns", "request_id", "members", "name"])
def test_a_span_whose_column_has_another_type_is_refused(tmp_path: Path, column: str) -> None:
    run = imported(tmp_path, SOME)
    part = run.files("span")[0]
    rows = pq.ParquetFile(part).read()
    kind = [5] * rows.num_rows if column in ("request_id", "members", "name") else ["x"] * rows.num_rows
    pq.write_table(rows.set_column(rows.column_names.index(column), column, [kind]), part)
    with pytest.raises(InputError, match="is no readable run"):
        imported(tmp_path, run.path)


def test_a_run_without_rows_is_nothing_to_import(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record could be read"):
        imported(tmp_path / "x", write_run(tmp_path / "empty").path)


def test_a_run_that_compaction_left_half_exchanged_is_read_whole(tmp_path: Path) -> None:
    first = imported(tmp_path, SOME, LOG)
    shutil.move(first.path / "span", first.path / ".replaced-span")
    again = imported(tmp_path, first.path)
    assert len(tables(again, "span")["span"]) == len(tables(open_run(first.path), "span")["span"]) > 0


def test_raw_files_and_runs_are_read_together(tmp_path: Path) -> None:
    first = imported(tmp_path / "a", SOME[:1])
    report = reported(tmp_path / "b", first.path, SOME[6:])
    assert [entry.format for entry in report.inputs] == ["run", "otlp-json"]
    whole = imported(tmp_path / "c", [SOME[0], *SOME[6:]])
    assert tables(open_run(report.run), "span") == tables(whole, "span")


def test_samples_that_differ_in_their_labels_alone_are_all_kept(tmp_path: Path) -> None:
    sample = {"time_ns": 5, "name": "hits", "kind": "counter", "value": 1.0}
    rows = [sample | {"labels": [("tier", "host")]}, sample | {"labels": [("tier", "disk")]}, sample]
    run = write_run(tmp_path / "metrics", metric=rows)
    again = imported(tmp_path / "x", run.path)
    assert query(again, "SELECT count(*) FROM metric") == [(3,)]


def test_losses_of_a_run_that_look_alike_are_all_counted(tmp_path: Path) -> None:
    lost = {"source": "otlp.binpb", "cause": "undecodable", "count": 1, "detail": "torn"}
    run = write_run(tmp_path / "lossy", loss=[lost, lost])
    assert losses(imported(tmp_path / "x", run.path)) == [("undecodable", None, 2)]


def test_a_run_given_twice_is_there_once(tmp_path: Path) -> None:
    first = imported(tmp_path, SOME, LOG)
    twice = imported(tmp_path, first.path, first.path)
    names = (*NOUNS, "span", "alias", "process", "request_key", "identity")
    assert tables(twice, *names) == tables(first, *names)


def test_a_process_of_two_inputs_is_one_row(tmp_path: Path) -> None:
    first = imported(tmp_path, [llm_request("cmpl-a-0", 10, 50)])
    both = imported(tmp_path, first.path, [llm_request("cmpl-b-0", 60, 100)])
    assert query(both, "SELECT process, first_ns, last_ns FROM process") == [
        ("vllm-1", 10_000_000, 100_000_000)
    ]


def test_a_run_and_the_raw_recordings_it_was_made_of_are_one_run(tmp_path: Path) -> None:
    sample = Path(__file__).parents[3] / "sample_traces" / "server-killed"
    alone = import_files([sample / "raw"], tmp_path / "alone")
    both = import_files([sample, sample / "raw"], tmp_path / "both")
    differing = {name for name in {*alone.rows, *both.rows} if alone.rows.get(name) != both.rows.get(name)}
    assert differing == {"loss"}, "what arrived twice is counted, and nothing else differs"
    counted = "SELECT cause, sum(count) FROM loss WHERE cause <> 'duplicate' GROUP BY 1 ORDER BY 1"
    assert query(open_run(both.run), counted) == query(open_run(alone.run), counted)
