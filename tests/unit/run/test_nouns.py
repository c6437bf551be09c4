"""The views: one file each, every column documented, over no files as over many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.run.nouns import column_docs, noun_files
from kvtrace.schema.tables import TABLES
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path


def test_every_column_of_every_noun_and_table_has_a_meaning(tmp_path: Path) -> None:
    docs = column_docs(write_run(tmp_path / "run").connection())
    assert set(docs) == set(TABLES) | set(noun_files())
    assert [
        f"{view}.{column}" for view, columns in docs.items() for column, doc in columns.items() if not doc
    ] == []


def test_an_empty_run_has_every_noun_with_the_types_of_a_full_one(tmp_path: Path) -> None:
    full = write_run(
        tmp_path / "full",
        span=[
            {
                "op": "step",
                "start_ns": 0,
                "end_ns": 1,
                "members": [{"request_id": "r"}],
                "attributes": [("a", "b")],
            }
        ],
    )
    empty = write_run(tmp_path / "empty")
    for noun in noun_files():
        text = f"SELECT * FROM {noun} WHERE false"
        assert empty.sql(text).schema == full.sql(text).schema


def test_drops_are_stores_that_stored_nothing(tmp_path: Path) -> None:
    rows = [
        {
            "op": "store",
            "request_id": "r",
            "start_ns": 0,
            "end_ns": 5,
            "tokens": 64,
            "transfer_id": "t",
            "rank": rank,
        }
        for rank in (0, 1)
    ]
    drop = {"op": "drop", "request_id": "r", "start_ns": 7, "end_ns": 7, "reason": "duplicate", "tokens": 32}
    run = write_run(tmp_path / "run", span=[*rows, drop])
    assert run.sql("SELECT op, tokens, reason FROM store ORDER BY start_ns").rows() == [
        ("store", 64, None),
        ("drop", 32, "duplicate"),
    ]


def test_members_are_a_row_each_and_none_without(tmp_path: Path) -> None:
    step = {"op": "step", "start_ns": 0, "end_ns": 1, "span_id": 1}
    two = [{"request_id": "a", "scheduled_tokens": 3}, {"request_id": "b"}]
    run = write_run(tmp_path / "run", span=[{**step, "members": two}, {**step, "members": []}, step])
    assert run.sql("SELECT request_id, scheduled_tokens FROM member ORDER BY ALL").rows() == [
        ("a", 3),
        ("b", None),
    ]
    assert sorted(run.sql("SELECT requests FROM step").to_series().to_list(), key=str) == [0, 2, None]
