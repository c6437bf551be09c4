"""A round out of a recording: a request's rows go with it, all else by its own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.experiment.cutting import cut
from kvtrace.run import open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def span(op: str, request: str | None, start: int, end: int | None = None) -> dict[str, Any]:
    return {"op": op, "request_id": request, "start_ns": start, "end_ns": end, "engine": "e", "process": "p"}


#  100 |-- a --|  200 |------ b ------|  300 |-- c --|
#         a's store |------------| 250
#  steps  |110|       |210|     |280|      |310|
@pytest.fixture
def whole(tmp_path: Path) -> Run:
    return write_run(
        tmp_path / "whole",
        {"group": "tiered", "engines": {"e": {"product": "vllm"}}},
        span=[
            span("request", "a", 100, 150), span("store", "a", 205, 250), span("request", "b", 200, 290),
            span("lookup", "b", 190, 195), span("store", "b", 320, 330), span("request", "c", 300, 350),
            span("step", None, 110, 120), span("step", None, 210, 220), span("step", None, 280, 310),
            span("step", None, 310, 320), span("lookup", "early", 150, 151),
        ],
        block=[
            {"time_ns": time, "event": "stored", "request_id": request, "key": f"{time}"}
            for time, request in (
                (140, "a"), (240, None), (260, "a"), (340, "b"), (350, None), (220, "unseen"),
            )
        ],
        alias=[{"alias": "kvx-0", "kind": "client", "request_id": name} for name in "abc"],
        request_key=[{"request_id": name, "key": name, "position": 0} for name in "abc"],
        metric=[{"time_ns": time, "name": "m", "value": 1.0} for time in (150, 250, 350)],
        identity=[{"identity_id": "i", "field": "model", "value": "tiny"}],
        process=[{"process": "p", "engine": "e", "first_ns": 90, "last_ns": 400}],
        loss=[
            {"source": "s", "cause": "dropped", "count": 1, "from_ns": begin, "to_ns": end}
            for begin, end in ((100, 150), (180, 220), (None, None), (250, 260), (301, 302))
        ],
    )  # fmt: skip


def rows(run: Run, query: str) -> list[Any]:
    return [row[0] if len(row) == 1 else row for row in run.connection().sql(query).fetchall()]


def test_a_round_has_its_requests_with_all_their_rows_and_its_own_time(whole: Run, tmp_path: Path) -> None:
    cut(whole.path, tmp_path / "cut", from_ns=200, until_ns=300)
    run = open_run(tmp_path / "cut")
    assert run.meta == whole.meta
    assert rows(run, "SELECT op, start_ns FROM span WHERE request_id IS NOT NULL ORDER BY ALL") == [
        ("lookup", 190), ("request", 200), ("store", 320),
    ]  # fmt: skip
    assert rows(run, "SELECT start_ns FROM span WHERE op = 'step' ORDER BY 1") == [210, 280]
    assert rows(run, "SELECT key FROM block ORDER BY 1") == ["220", "240", "340"]
    assert rows(run, "SELECT request_id FROM alias") == ["b"]
    assert rows(run, "SELECT request_id FROM request_key") == ["b"]
    assert rows(run, "SELECT time_ns FROM metric") == [250]
    assert rows(run, "SELECT value FROM identity") == ["tiny"]
    assert rows(run, "SELECT first_ns, last_ns FROM process") == [(200, 300)]
    assert rows(run, "SELECT from_ns FROM loss ORDER BY 1 NULLS FIRST") == [None, 180, 250]


def test_rounds_share_no_row_of_a_request_and_lose_none(whole: Run, tmp_path: Path) -> None:
    found: list[Any] = []
    for number, (begin, end) in enumerate(((0, 200), (200, 300), (300, None))):
        cut(whole.path, tmp_path / f"{number}", from_ns=begin, until_ns=end)
        found += rows(open_run(tmp_path / f"{number}"), "SELECT op, request_id, start_ns FROM span")
    assert sorted(found, key=str) == sorted(rows(whole, "SELECT op, request_id, start_ns FROM span"), key=str)


#  100 |-- kvx-0 --|      200 |-- kvx-0 --|       the client's id, in both rounds
#    store |----------------------| 195, 250
def test_an_id_that_begins_in_two_rounds_is_a_request_of_each(tmp_path: Path) -> None:
    whole = write_run(
        tmp_path / "whole",
        span=[
            span("lookup", "kvx-0", 95, 96), span("request", "kvx-0", 100, 150),
            span("store", "kvx-0", 195, 250), span("request", "kvx-0", 200, 290),
            span("store", "kvx-0", 320, 330),
        ],
        block=[{"time_ns": time, "event": "stored", "request_id": "kvx-0", "key": f"{time}"}
               for time in (140, 240)],
        alias=[{"alias": "kvx-0", "kind": "client", "request_id": "kvx-0"}],
    )  # fmt: skip
    found = []
    for number, (begin, end) in enumerate(((90, 180), (190, None))):
        cut(whole.path, tmp_path / f"{number}", from_ns=begin, until_ns=end)
        run = open_run(tmp_path / f"{number}")
        assert rows(run, "SELECT request_id FROM alias") == ["kvx-0"]
        found.append(
            (rows(run, "SELECT start_ns FROM span ORDER BY ALL"), rows(run, "SELECT key FROM block"))
        )
    assert found == [([95, 100, 195], ["140"]), ([200, 320], ["240"])]


def test_a_round_without_a_request_has_no_table_of_them(whole: Run, tmp_path: Path) -> None:
    cut(whole.path, tmp_path / "cut", from_ns=1000, until_ns=None)
    assert not (tmp_path / "cut" / "span").exists()
    assert rows(open_run(tmp_path / "cut"), "SELECT count(*) FROM request") == [0]
