"""Rows of LMCache's client and server that are one transfer.

client  [-----)   [-----)          [------)
server    [--)       [--)    (lost)          in order, of one worker
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
from kvtrace.importer.facts import COLUMNS, Facts
from kvtrace.importer.transfers import SLACK_NS, Ties, certain, tie
from kvtrace.importer.transfers import tied as renamed

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
START = 10**18


def move(observer: str, start: int, end: int | None, transfer_id: str, **more: Any) -> dict[str, Any]:
    """A store of request r by worker 7; times in ms."""
    row = {
        "request_id": "r", "engine_id": "7", "op": "store", "observer": observer, "transfer_id": transfer_id,
        "start_ns": START + start * MS, "submit_ns": None, "begin_ns": START + start * MS,
        "end_ns": None if end is None else START + end * MS, "is_span": False,
    }  # fmt: skip
    return row | more


def tied(tmp_path: Path, *rows: dict[str, Any], extra: tuple[int, ...] = ()) -> tuple[dict[int, str], Ties]:
    """The transfer id that each tied row takes, by its number."""
    facts = Facts(tmp_path)
    numbered = [row | {"row": number} for number, row in enumerate(rows)]
    facts.keep("moves", pl.DataFrame(numbered, schema=COLUMNS["moves"], infer_schema_length=None))
    found = tie(facts, np.array(extra, np.int64))
    return dict(zip(found.rows.tolist(), found.ids.to_list(), strict=True)), found


def test_stores_of_one_request_are_tied_in_order(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("client", 0, 50, "r/store/1"), move("client", 30, 90, "r/store/2"),
        move("server", 40, 60, "r#2"), move("server", 5, 35, "r#1"),
    )  # fmt: skip
    assert found == {0: "r#1", 1: "r#2"}
    assert ties.losses == []


def test_two_workers_are_never_mixed(tmp_path: Path) -> None:
    found, _ = tied(
        tmp_path,
        move("client", 0, 50, "r/store/1"), move("client", 0, 50, "r/store/1", engine_id="8"),
        move("server", 5, 35, "r#2", engine_id="8"), move("server", 6, 35, "r#1"),
    )  # fmt: skip
    assert found == {0: "r#1", 1: "r#2"}


def test_loads_and_stores_of_one_request_are_apart(tmp_path: Path) -> None:
    found, _ = tied(
        tmp_path,
        move("client", 0, 50, "r/load/1", op="load"), move("client", 60, 90, "r/store/1"),
        move("server", 5, 35, "r#1", op="load"), move("server", 65, 80, "r#2"),
    )  # fmt: skip
    assert found == {0: "r#1", 1: "r#2"}


def test_one_that_the_server_lost_leaves_the_others_where_time_says_so(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("client", 0, 50, "r/store/1"), move("client", 1000, 1050, "r/store/2"),
        move("server", 1010, 1030, "r#9"),
    )  # fmt: skip
    assert found == {1: "r#9"}
    assert ties.losses == []


def test_one_that_may_be_either_stays_apart_and_is_counted(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("client", 0, 50, "r/store/1"), move("client", 10, 60, "r/store/2"),
        move("server", 20, 30, "r#9"),
    )  # fmt: skip
    assert found == {}
    assert [(loss.cause, loss.count) for loss in ties.losses] == [("ambiguous_join", 2)]


def test_what_began_long_before_it_was_asked_for_is_another(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("client", 1000, 1050, "r/store/1"),
        move("server", 1000 - SLACK_NS // MS - 1, 1030, "r#1"),
    )
    assert found == {}
    assert ties.losses == []


def test_one_side_alone_is_neither_tied_nor_counted(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path, move("client", 0, 50, "r/store/1"), move("server", 0, 9, "q#1", request_id="q")
    )
    assert found == {}
    assert ties.losses == []


def test_a_client_that_never_saw_the_end_is_tied_by_its_begin(tmp_path: Path) -> None:
    found, _ = tied(tmp_path, move("client", 0, None, "r/store/1"), move("server", 5000, 5035, "r#1"))
    assert found == {0: "r#1"}


def test_a_store_that_stored_nothing_is_the_servers_drop_alone(tmp_path: Path) -> None:
    found, ties = tied(tmp_path, move("client", 0, 50, "r/store/1"), move("server", 5, 35, "r#1", op="drop"))
    assert found == {0: "r#1"}
    assert ties.silenced.tolist() == [0]


def test_a_drop_of_the_client_went_to_no_server(tmp_path: Path) -> None:
    found, _ = tied(
        tmp_path,
        move("client", 0, 0, "r/store/1", op="drop"), move("client", 0, 50, "r/store/2"),
        move("server", 5, 35, "r#1"),
    )  # fmt: skip
    assert found == {1: "r#1"}


def test_a_span_of_what_the_bus_told_is_no_second_transfer(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("server", 5, 35, "r#1"), move("server", 5, 35, "r#1", is_span=True),
        move("server", 50, 70, "r#2", is_span=True),
        move("client", 0, 40, "r/store/1"), move("client", 45, 75, "r/store/2"),
    )  # fmt: skip
    assert ties.silenced.tolist() == [1]
    assert found == {3: "r#1", 4: "r#2"}


def test_what_an_earlier_import_tied_is_not_tied_again(tmp_path: Path) -> None:
    found, ties = tied(
        tmp_path,
        move("client", 0, 50, "r#1"), move("client", 10, 60, "r/store/2"),
        move("server", 20, 30, "r#1"), move("server", 25, 35, "r#2"),
    )  # fmt: skip
    assert found == {1: "r#2"}
    assert ties.losses == []


def test_rows_that_count_no_more_are_left_out(tmp_path: Path) -> None:
    found, _ = tied(
        tmp_path,
        move("client", 0, 50, "r/store/1"), move("client", 0, 50, "r/store/1"), move("server", 5, 35, "r#1"),
        extra=(1,),
    )  # fmt: skip
    assert found == {0: "r#1"}


def test_certain_pairs_are_those_of_every_largest_pairing() -> None:
    assert certain(np.array([[True, False], [True, True]])) == [(0, 0), (1, 1)]
    assert certain(np.array([[True, True]])) == []
    assert certain(np.array([[False, True], [True, False]])) == []


def test_rows_take_their_ids_in_whatever_chunk_they_lie() -> None:
    words = {"transfer_id": ["a", None, "r/store/1"], "op": ["load", "store", "store"]}
    chunk = pa.table({name: pa.array(values).dictionary_encode() for name, values in words.items()})
    ties = Ties(np.array([3, 12]), pl.Series(["r#3", "r#9"]), np.array([11, 40]), [])
    found = renamed(chunk, 10, ties)
    assert found["transfer_id"].to_pylist() == ["a", None, "r#9"]
    assert found["op"].to_pylist() == ["load", None, "store"]
    assert pa.types.is_dictionary(found.schema.field("op").type)
    assert renamed(chunk, 100, ties) is chunk
