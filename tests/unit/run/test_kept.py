"""Nouns of a large run, computed once: the very rows, types and meanings of the views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.analyses import question
from kvtrace.run import Run, kept, open_run
from kvtrace.run.derived import spilling
from kvtrace.run.nouns import column_docs, noun_files
from tests.rows import write_run

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import duckdb
    import polars as pl

LOAD = {
    "op": "load",
    "request_id": "r0",
    "tier_from": "host",
    "tier_to": "gpu",
    "engine": "e0",
    "outcome": "ok",
}
SPANS = [
    {"op": "request", "observer": "api", "request_id": "r0", "engine": "e0", "start_ns": 0, "end_ns": 90,
     "first_token_ns": 80, "prompt_tokens": 64},
    {**LOAD, "observer": "scheduler", "process": "s", "span_id": 1, "start_ns": 5, "end_ns": 60,
     "usable_ns": 70},
    *({**LOAD, "observer": "worker", "process": f"w{rank}", "rank": rank, "span_id": 2 + rank, "tokens": 32,
       "transfer_id": "t", "start_ns": 10 + rank, "end_ns": 40, "bytes": 2**20, "attributes": [("a", "b")],
       "members": [{"request_id": "r0", "scheduled_tokens": 3}]} for rank in range(2)),
    {**LOAD, "op": "store", "observer": "worker", "process": "w0", "span_id": 9, "start_ns": 82},
]  # fmt: skip
ASKED = ("exposure", "hit_funnel", "fallbacks", "store_lag", "bandwidth", "explain")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", span=SPANS)


@pytest.fixture
def large(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same run, which counts as large."""
    monkeypatch.setattr(kept, "MANY_ROWS", len(SPANS))
    return open_run(run.path)


def files(run: Run) -> list[str]:
    return sorted(file.name.partition("-")[0] for file in (run.path / ".derived").glob("*.parquet"))


def rows(connection: duckdb.DuckDBPyConnection, noun: str) -> pl.DataFrame:
    return connection.sql(f"SELECT * FROM {noun} ORDER BY ALL").pl()


def test_every_noun_has_the_rows_and_types_of_its_view(run: Run, large: Run) -> None:
    before = run.connection()
    after = spilling(large)
    assert files(large) == ["copy", "transfer"]
    for noun in noun_files():
        assert rows(after, noun).equals(rows(before, noun)), noun
        assert after.sql(f"DESCRIBE {noun}").fetchall() == before.sql(f"DESCRIBE {noun}").fetchall()
    assert rows(after, "transfer")["ranks"].to_list() == [2, 1]


def test_what_is_kept_is_read_and_says_what_its_columns_mean(run: Run, large: Run) -> None:
    meanings = column_docs(run.connection())
    spilling(large).close()
    connection = open_run(large.path).connection()
    assert column_docs(connection) == meanings
    for noun in kept.NOUNS:
        ((text,),) = connection.execute(
            f"SELECT sql FROM duckdb_views() WHERE view_name = '{noun}'"
        ).fetchall()
        assert "read_parquet" in text


def test_a_connection_alone_keeps_nothing(large: Run) -> None:
    large.connection()
    assert not files(large)


def test_a_small_run_keeps_nothing(run: Run) -> None:
    spilling(run).close()
    assert not files(run)


def test_another_file_of_the_run_is_another_answer(large: Run, tmp_path: Path) -> None:
    spilling(large).close()
    more = write_run(tmp_path / "more", span=[{**SPANS[-1], "request_id": "r1"}])
    (file,) = more.files("span")
    file.rename(large.files("span")[0].with_name("later.parquet"))
    assert rows(spilling(open_run(large.path)), "copy").height == 4


def test_a_file_that_comes_while_it_is_computed_is_of_another_key(
    large: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = write_run(tmp_path / "more", span=[{**SPANS[-1], "request_id": "r1"}])
    real = kept.published

    def published(target: Path) -> AbstractContextManager[Path]:
        if (late := more.files("span")) and target.name.startswith("copy"):
            late[0].rename(large.files("span")[0].with_name("later.parquet"))
        return real(target)

    monkeypatch.setattr(kept, "published", published)
    spilling(large).close()
    after = spilling(open_run(large.path))
    assert [rows(after, noun)["request_id"].n_unique() for noun in kept.NOUNS] == [2, 2]


def test_questions_answer_the_same(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = {name: question(name)(run) for name in ASKED}
    monkeypatch.setattr(kept, "MANY_ROWS", 1)
    large = write_run(tmp_path / "large", span=SPANS)
    for name in ASKED:
        assert question(name)(large).equals(before[name]), name
    assert {"copy", "transfer"} <= set(files(large))
