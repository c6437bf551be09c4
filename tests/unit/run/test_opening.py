"""open_run: every error is one sentence with the file and the way out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace import schema
from kvtrace.errors import RunError
from kvtrace.run import open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path


def refused(path: Path) -> str:
    with pytest.raises(RunError) as caught:
        open_run(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert text.endswith(".")
    return text


def meta(path: Path, content: bytes) -> Path:
    path.mkdir()
    (path / "run.json").write_bytes(content)
    return path


def test_a_run_is_opened_with_what_its_file_says(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"group": "tiered"})
    again = open_run(str(run.path))
    assert (again.path, again.meta["group"]) == (run.path, "tiered")
    assert again.files("span") == []


def test_a_path_that_is_not_a_run_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert "does not exist" in refused(tmp_path / "nothing")
    assert "is a file" in refused(tmp_path / "file")
    assert "no run.json in it" in refused(tmp_path / "empty")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"null"])
def test_a_run_file_that_is_not_an_object_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    assert "cannot be read" in refused(meta(tmp_path / "run", content))


@pytest.mark.parametrize("version", ["null", '"1"', "true", "0", "-1", "1.5"])
def test_a_run_file_without_a_version_was_not_written_by_us(tmp_path: Path, version: str) -> None:
    assert "no schema version" in refused(meta(tmp_path / "run", f'{{"schema_version": {version}}}'.encode()))


def test_a_run_of_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    newer = json.dumps({"schema_version": schema.VERSION + 1}).encode()
    found = refused(meta(tmp_path / "run", newer))
    assert (
        f"written by schema v{schema.VERSION + 1}; this kvtrace reads up to v{schema.VERSION}. Upgrade"
        in found
    )


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 20, b"x" * 20 + b"PAR1"])
def test_a_torn_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    run = write_run(tmp_path / "run", span=[{"op": "step", "start_ns": 0, "end_ns": 1}])
    torn = run.path / "span" / "part-1.parquet"
    torn.write_bytes(content)
    with pytest.raises(RunError, match="is not a whole Parquet file") as caught:
        open_run(run.path)
    assert str(torn) in str(caught.value)


def test_a_half_written_file_is_no_part_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[{"op": "step", "start_ns": 0, "end_ns": 1}])
    (run.path / "span" / "part-1.parquet.tmp").write_bytes(b"half")
    assert open_run(run.path).sql("SELECT count(*) FROM span").rows() == [(1,)]


def test_connections_are_apart_and_see_every_noun(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[{"op": "step", "start_ns": 0, "end_ns": 1}])
    one, two = run.connection(), run.connection()
    pending = one.execute("SELECT * FROM range(3)")
    assert two.sql("SELECT count(*) FROM step").fetchall() == [(1,)]
    assert pending.fetchall() == [(0,), (1,), (2,)]
