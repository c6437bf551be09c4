"""A run of LMCache's client and server together, recorded once and never imported: each transfer once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.inventory import inventory
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
START = 1_800_000_000_000_000_000


def _row(
    op: str, observer: str, start: int, end: int | None, transfer_id: str, **more: Any
) -> dict[str, Any]:
    """A row of worker 7; times in ms."""
    tiers = ("host", "gpu") if op == "load" else ("gpu", "host")
    row = {
        "op": op, "observer": observer, "request_id": "r", "transfer_id": transfer_id,
        "start_ns": START + start * MS, "end_ns": None if end is None else START + end * MS,
        "tier_from": tiers[0], "tier_to": tiers[1], "tokens": 256, "process": observer,
        "attributes": {"engine_id": more.pop("worker", "7")},
    }  # fmt: skip
    if observer == "client":
        row["submit_ns"] = row["start_ns"]
    return row | more


def _seen(tmp_path: Path, *rows: dict[str, Any], noun: str = "transfer") -> list[dict[str, Any]]:
    run = write_run(tmp_path / "run", span=[row | {"span_id": n} for n, row in enumerate(rows, 1)])
    return run.connection().sql(f"FROM {noun} ORDER BY start_ns, transfer_id").pl().to_dicts()


def _told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["transfer_id"], row["observer"], row["tokens"], row["bytes"], row["ranks"]) for row in rows]


def test_client_and_server_of_one_recording_are_one_transfer(tmp_path: Path) -> None:
    rows = _seen(
        tmp_path,
        _row("store", "client", 0, 30, "r/store/1"), _row("store", "client", 20, 60, "r/store/2"),
        _row("load", "client", 100, 120, "r/load/1"),
        _row("store", "server", 28, 50, "r#2", bytes=9), _row("store", "server", 5, 25, "r#1", bytes=9),
        _row("load", "server", 104, 115, "r#3", bytes=9),
    )  # fmt: skip
    assert _told(rows) == [(f"r#{number}", "server", 256, 9, 1) for number in (1, 2, 3)]
    assert [row["submit_ns"] - START for row in rows] == [0, 20 * MS, 100 * MS]


def test_ranks_that_the_server_numbers_apart_are_one_transfer(tmp_path: Path) -> None:
    """Tokens are the most that any of them moved, bytes all of theirs."""
    servers = (
        _row("load", "server", 5, 25, "r#1", bytes=9),
        _row("load", "server", 6, 27, "r#2", bytes=9, worker="8"),
    )
    assert _told(_seen(tmp_path / "server", *servers)) == [("r#1", "server", 256, 18, 2)]
    clients = (
        _row("load", "client", 0, 30, "r/load/1"),
        _row("load", "client", 0, 31, "r/load/1", worker="8", process="other"),
    )
    assert _told(_seen(tmp_path / "both", *clients, *servers)) == [("r#1", "server", 256, 18, 2)]
    imported = tuple(row | {"transfer_id": f"r#{n}"} for n, row in enumerate(clients, 1))
    assert _told(_seen(tmp_path / "imported", *imported, *servers)) == [("r#1", "server", 256, 18, 2)]


def test_a_second_load_long_after_is_no_rank_of_the_first(tmp_path: Path) -> None:
    rows = _seen(
        tmp_path,
        _row("load", "server", 0, 9, "r#1", bytes=9),
        _row("load", "server", 5000, 5009, "r#2", bytes=9, worker="8"),
    )
    assert [row[0] for row in _told(rows)] == ["r#1", "r#2"]


def test_what_the_server_never_began_leaves_the_rest_tied(tmp_path: Path) -> None:
    """The server was killed: the client's later store stays the client's."""
    rows = _seen(
        tmp_path,
        _row("store", "client", 0, 30, "r/store/1"), _row("store", "server", 5, 25, "r#1", bytes=9),
        _row("store", "client", 500, None, "r/store/2"),
    )  # fmt: skip
    assert _told(rows) == [("r#1", "server", 256, 9, 1), ("r/store/2", "client", 256, None, 1)]


def test_what_may_be_either_stays_apart(tmp_path: Path) -> None:
    rows = _seen(
        tmp_path,
        _row("store", "client", 0, 30, "r/store/1"), _row("store", "client", 10, 60, "r/store/2"),
        _row("store", "server", 20, 25, "r#9", bytes=9),
    )  # fmt: skip
    assert sorted(row[0] for row in _told(rows)) == ["r#9", "r/store/1", "r/store/2"]


def test_a_store_that_the_server_dropped_is_a_drop_alone(tmp_path: Path) -> None:
    rows = _seen(
        tmp_path,
        _row("store", "client", 0, 30, "r/store/1"), _row("drop", "server", 5, 25, "r#1"),
        noun="store",
    )  # fmt: skip
    assert [(row["op"], row["transfer_id"]) for row in rows] == [("drop", "r#1")]


def test_two_requests_and_two_directions_are_never_mixed(tmp_path: Path) -> None:
    rows = _seen(
        tmp_path,
        _row("store", "client", 0, 30, "r/store/1"), _row("load", "server", 5, 25, "r#1", bytes=9),
        _row("store", "server", 5, 25, "q#1", bytes=9, request_id="q"),
    )  # fmt: skip
    assert len(rows) == 3


def test_what_may_be_either_is_counted_once(tmp_path: Path) -> None:
    """In a run that was recorded and never imported; an import that counted it is not repeated."""
    unclear = (
        _row("store", "client", 0, 30, "r/store/1"), _row("store", "client", 10, 60, "r/store/2"),
        _row("store", "server", 20, 25, "r#9"), _row("load", "client", 0, 9, "r/load/1"),
        _row("load", "server", 2, 5, "r#1"),
    )  # fmt: skip
    span = [row | {"span_id": n} for n, row in enumerate(unclear, 1)]
    loss = {"source": "import", "cause": "ambiguous_join", "op": "store", "count": 2}
    for losses in ([], [loss]):
        run = write_run(tmp_path / str(len(losses)), span=span, loss=losses)
        lost = inventory(run).filter(what="losses")
        assert lost.select("name", "value").rows() == [("ambiguous_join", 2)]
    clear = write_run(tmp_path / "clear", span=span[3:])
    assert inventory(clear).filter(what="losses").is_empty()


def test_a_drop_of_several_ranks_is_one_drop(tmp_path: Path) -> None:
    """Whether the server numbers each by itself or all have one name; tokens are the most of any rank."""
    rows = _seen(
        tmp_path / "apart",
        _row("drop", "server", 5, 25, "r#1", reason="no_room"),
        _row("drop", "server", 6, 27, "r#2", worker="8", reason="no_room", tokens=512),
        noun="store",
    )
    assert [(row["op"], row["transfer_id"], row["tokens"], row["reason"]) for row in rows] == [
        ("drop", "r#1", 512, "no_room")
    ]
    assert (rows[0]["start_ns"] - START, rows[0]["end_ns"] - START) == (5 * MS, 27 * MS)
    named = (
        _row("drop", "worker", 0, 9, "t", reason="stale"),
        _row("drop", "worker", 1, 8, "t", reason="no_room"),
        _row("drop", "client", 0, 99, "t", reason="unknown", tokens=9_999),
    )
    (row,) = _seen(tmp_path / "named", *named, noun="store")
    assert (row["observer"], row["tokens"], row["reason"]) == ("worker", 256, "unknown")


def test_drops_without_an_id_stay_apart(tmp_path: Path) -> None:
    rows = [_row("drop", "server", start, start + 1, "x") | {"transfer_id": None} for start in (0, 5)]
    assert len(_seen(tmp_path, *rows, noun="store")) == 2
