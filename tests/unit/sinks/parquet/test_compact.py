"""Many files of a run become few sorted ones; no row is lost, whenever it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kvtrace.errors import RunError
from kvtrace.run import Run, open_run
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet import sorting
from kvtrace.sinks.parquet.compact import compact_run
from kvtrace.sinks.parquet.writer import write_table
from tests.rows import write_run

RUN = {"run_id": "drawn"}
R0, R1 = RUN | {"request_id": "r0"}, RUN | {"request_id": "r1"}
SPANS: list[dict[str, Any]] = [
    R1 | {"op": "request", "start_ns": 30, "end_ns": 90, "span_id": 2**64 - 1},
    R0 | {"op": "load", "start_ns": 20, "end_ns": 25, "span_id": 4, "tokens": 256},
    RUN | {"op": "step", "start_ns": 21, "end_ns": 29, "span_id": 5, "members": [{"request_id": "r0"}]},
    R0 | {"op": "request", "start_ns": 10, "end_ns": None, "span_id": 3},
    R0 | {"op": "lookup", "start_ns": 10, "span_id": 2, "found_by_tier": [("host", 1)]},
    RUN | {"op": "step", "start_ns": 11, "end_ns": 20, "span_id": 1, "attributes": [("a", "")]},
]
FIELD = {"identity_id": "i", "side": "reader"}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "block": [{"time_ns": 2, "seq": 2, "key": "b"}, {"time_ns": 1, "seq": 9, "key": "a"}, {"key": "c"}],
    "request_key": [R1 | {"attempt": 1, "position": 1}, R1 | {"attempt": 1, "position": 0}],
    "metric": [
        {"name": "b", "time_ns": 1, "labels": [("x", "y")]},
        {"name": "a", "time_ns": 2, "value": 0.5},
    ],
    "alias": [R1 | {"kind": "client", "alias": "z"}, R0 | {"kind": "client", "alias": "y"}],
    "identity": [FIELD | {"field": "b"}, FIELD | {"field": "a"}],
    "process": [{"process": "q", "instruments": [("otlp", "active")]}, {"process": "p"}],
    "loss": [{"source": "b", "cause": "late", "count": 1}, {"source": "a", "cause": "dropped", "count": 2}],
}


def drawn(path: Path, files: int = 3) -> Run:
    """A run of every table, its rows spread over several files."""
    run = write_run(path)
    for table, rows in {"span": SPANS, **OTHERS}.items():
        for number in range(files):
            some = rows[number::files]
            if some:
                write_run(path.parent / f"{path.name}-{table}-{number}", **{table: some})
                part = path.parent / f"{path.name}-{table}-{number}" / table / "part-0.parquet"
                (path / table).mkdir(exist_ok=True)
                part.rename(path / table / f"part-{number}.parquet")
    return run


def content(path: Path) -> dict[str, list[Any]]:
    """Every row of every table, whatever its order; buckets are made when rows are sorted."""
    found = {}
    for table in TABLES:
        files = table_files(path, table)
        rows = [row for file in files for row in pl.read_parquet(file).drop("bucket", strict=False).rows()]
        found[table] = sorted(rows, key=repr)
    return found


def test_compaction_keeps_every_row_of_every_table(tmp_path: Path) -> None:
    run = drawn(tmp_path / "run")
    before = content(run.path)
    assert all(before[table] for table in TABLES)
    report = compact_run(run.path)
    assert content(run.path) == before
    assert report.rows == {table: len(rows) for table, rows in before.items()}
    assert report.files_before > report.files_after == len(TABLES) + 1
    assert report.bytes_after == sum(file.stat().st_size for table in TABLES for file in run.files(table))


def test_compacted_rows_are_sorted_by_request_and_start(tmp_path: Path) -> None:
    run = drawn(tmp_path / "run")
    compact_run(run.path)
    own = pl.read_parquet(run.path / "span" / "part-000.parquet")
    assert own["bucket"].is_sorted()
    for _, rows in own.group_by("request_id", maintain_order=True):
        assert rows["start_ns"].is_sorted()
    assert own.select("request_id").rows() in ([("r0",)] * 3 + [("r1",)], [("r1",)] + [("r0",)] * 3)
    assert own.filter(request_id="r0")["span_id"].to_list() == [2, 3, 4]
    shared = pl.read_parquet(run.path / "span" / "shared" / "part-000.parquet")
    assert shared.select("start_ns", "bucket").rows() == [(11, 255), (21, 255)]
    assert pl.read_parquet(run.files("alias")[0])["alias"].to_list() == ["y", "z"]
    assert pl.read_parquet(run.files("request_key")[0])["position"].to_list() == [0, 1]


def test_compacting_twice_changes_nothing_more(tmp_path: Path) -> None:
    run = drawn(tmp_path / "run")
    compact_run(run.path)
    first = {file: pl.read_parquet(file).rows() for table in TABLES for file in run.files(table)}
    compact_run(run.path)
    assert {file: pl.read_parquet(file).rows() for table in TABLES for file in run.files(table)} == first


def test_a_large_run_is_a_folder_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "HELD_ROWS", 0)
    monkeypatch.setattr(sorting, "SORT_ROWS", 2)
    monkeypatch.setattr(sorting, "ONE_FILE_ROWS", 3)
    run = drawn(tmp_path / "run")
    before = content(run.path)
    compact_run(run.path)
    assert content(run.path) == before
    folders = {file.parent.name for file in run.files("span")}
    assert folders - {"shared"} == {
        f"bucket={int(bucket):02d}"
        for (bucket,) in run.sql("SELECT DISTINCT bucket FROM span WHERE request_id IS NOT NULL").rows()
    }


def test_half_written_files_are_not_read_and_not_kept(tmp_path: Path) -> None:
    run = drawn(tmp_path / "run")
    before = content(run.path)
    (run.path / "span" / "part-9.parquet.tmp").write_bytes(b"half")
    assert content(run.path) == before
    compact_run(run.path)
    assert content(run.path) == before
    assert not list(run.path.rglob("*.tmp"))


class Killed(BaseException):
    """What no handler expects."""


def killed(run: Run, monkeypatch: pytest.MonkeyPatch, *, before_rename: int) -> None:
    """Compact until the n-th renaming of a folder; nothing is tidied up afterwards, as after kill -9."""
    renamed, rename, seen = [], Path.replace, {}

    def replace(self: Path, target: Path) -> Path:
        if self.is_dir():
            if len(renamed) == before_rename:
                seen["left"] = True
                raise Killed
            renamed.append(self)
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        patched.setattr("shutil.rmtree", lambda *_args, **_options: None)
        with pytest.raises(Killed):
            compact_run(run.path)
    assert seen


@pytest.mark.parametrize("before_rename", [0, 1, 2, 3])
def test_a_crash_between_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_rename: int
) -> None:
    run = drawn(tmp_path / "run")
    before = content(run.path)
    killed(run, monkeypatch, before_rename=before_rename)
    assert content(run.path) == before
    assert open_run(run.path).sql("SELECT count(*) FROM span").rows() == [(len(SPANS),)]


@pytest.mark.parametrize("before_rename", [0, 1, 2, 3])
def test_compaction_after_a_crash_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_rename: int
) -> None:
    run = drawn(tmp_path / "run")
    before = content(run.path)
    killed(run, monkeypatch, before_rename=before_rename)
    compact_run(run.path)
    assert content(run.path) == before
    assert sorted(path.name for path in run.path.iterdir()) == sorted([*TABLES, "run.json"])


def test_a_file_without_rows_is_no_obstacle(tmp_path: Path) -> None:
    run = drawn(tmp_path / "run")
    before = content(run.path)
    write_table(run.path / "span" / "part-.parquet", "span", [])
    write_table(run.path / "metric" / "part-.parquet", "metric", [])
    compact_run(run.path)
    assert content(run.path) == before


def test_an_empty_run_stays_empty(tmp_path: Path) -> None:
    report = compact_run(write_run(tmp_path / "run").path)
    assert (report.files_before, report.files_after, report.rows) == (0, 0, {})


def test_only_a_run_can_be_compacted(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run"):
        compact_run(tmp_path)


@pytest.mark.parametrize("table", ["span", "alias"])
def test_a_torn_file_is_an_error_and_stays_where_it_is(tmp_path: Path, table: str) -> None:
    run = drawn(tmp_path / "run")
    part = run.files(table)[0]
    torn = part.read_bytes()[:-20]
    part.write_bytes(torn)
    with pytest.raises(RunError) as caught:
        compact_run(run.path)
    assert "\n" not in str(caught.value)
    assert part.read_bytes() == torn
    assert not list(run.path.glob(".*"))
