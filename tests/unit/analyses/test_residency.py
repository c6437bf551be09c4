"""What lies in which tier, from literal events of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.residency import COLUMNS, residency
from kvtrace.errors import UsageError
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]


def event(time_ns: int | None, word: str, key: str | None = "a", **more: Any) -> Row:
    """An event of one key of e0's GPU."""
    row = {"time_ns": time_ns, "event": word, "key": key, "key_space": "vllm:sha256:m", "engine": "e0"}
    row |= {"tier": "gpu", "component": "vllm.gpu", "evidence": "native"}
    return row | ({"tokens": 16, "bytes": 100} if word in ("stored", "written", "published") else {}) | more


def drawn(tmp_path: Path, *rows: Row, **tables: list[Row]) -> Run:
    return write_run(tmp_path / "run", None, block=list(rows), **tables)


def told(run: Run, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    return residency(run, **options).select(columns or ("time_ns", "keys")).rows()


def test_a_key_counts_from_the_event_that_brings_it_to_the_one_that_takes_it(tmp_path: Path) -> None:
    """0 keys |--a 10---------30|, |b 20--- : 1, 2, 1."""
    run = drawn(tmp_path, event(10, "stored"), event(20, "stored", "b", tokens=8), event(30, "removed"))
    assert residency(run).rows() == [
        ("gpu", "vllm.gpu", 10, 1, 100, 16, "native"),
        ("gpu", "vllm.gpu", 20, 2, 200, 24, "native"),
        ("gpu", "vllm.gpu", 30, 1, 100, 8, "native"),
    ]


def test_stored_twice_is_there_once_and_one_removal_takes_it(tmp_path: Path) -> None:
    run = drawn(tmp_path, event(10, "stored"), event(20, "stored"), event(30, "removed"))
    assert told(run) == [(10, 1), (30, 0)]


def test_what_was_never_seen_to_come_does_not_go(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, event(5, "removed"), event(10, "stored"), event(20, "expired"), event(25, "removed")
    )
    assert told(run) == [(10, 1), (20, 0)]


def test_events_that_move_nothing_do_not_count(tmp_path: Path) -> None:
    words = ("accessed", "reserved", "failed", "locked", "unlocked")
    rows = [event(20 + place, word, "b") for place, word in enumerate(words)]
    assert told(drawn(tmp_path, event(10, "stored"), *rows)) == [(10, 1)]


def test_a_forecast_brings_nothing(tmp_path: Path) -> None:
    assert told(drawn(tmp_path, event(10, "stored", evidence="predicted"))) == []


def test_an_event_without_a_time_brings_nothing(tmp_path: Path) -> None:
    assert told(drawn(tmp_path, event(None, "stored"))) == []


def test_keys_are_the_same_in_one_key_space_only_and_a_copy_on_each_engine_counts(tmp_path: Path) -> None:
    rows = [event(10, "stored"), event(20, "stored", key_space="other:x:m"), event(30, "stored", engine="e1")]
    run = drawn(tmp_path, *rows, event(40, "removed"))
    assert told(run) == [(10, 1), (20, 2), (30, 3), (40, 2)]
    assert told(run, engine="e0") == [(10, 1), (20, 2), (40, 1)]
    assert told(run, engine="e1") == [(30, 1)]


def test_what_is_local_and_what_is_remote_are_two_copies(tmp_path: Path) -> None:
    rows = [event(10, "stored", locality="local"), event(20, "stored", locality="remote")]
    assert told(drawn(tmp_path, *rows, event(30, "removed", locality="local"))) == [(10, 1), (20, 2), (30, 1)]


def test_a_key_of_two_object_groups_is_one_key_with_the_bytes_of_both(tmp_path: Path) -> None:
    """Group 0 |10-------30|, group 1 |20-------40|."""
    rows = [event(10, "stored", object_group="0"), event(20, "stored", object_group="1", bytes=7)]
    rows += [event(30, "removed", object_group="0"), event(40, "removed", object_group="1")]
    found = told(drawn(tmp_path, *rows), "time_ns", "keys", "tokens", "bytes")
    assert found == [(10, 1, 16, 100), (20, 1, 16, 107), (30, 1, 16, 7), (40, 0, 0, 0)]


def test_clearing_takes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """E0's GPU is cleared at 20: its host tier and e1 keep theirs."""
    rows = [event(10, "stored"), event(10, "stored", engine="e1"), event(10, "stored", "b", tier="host")]
    run = drawn(tmp_path, *rows, event(20, "cleared", None, key_space=None, component=None))
    assert told(run, "tier", "time_ns", "keys") == [("gpu", 10, 2), ("gpu", 20, 1), ("host", 10, 1)]


@pytest.mark.parametrize("name", ["tier", "component", "engine", "key_space", "locality"])
def test_clearing_something_else_takes_nothing(tmp_path: Path, name: str) -> None:
    kept = event(10, "stored", locality="local")
    run = drawn(tmp_path, kept, event(20, "cleared", None, **{"locality": "local", name: "another"}))
    assert told(run) == [(10, 1)]


def test_after_clearing_a_key_can_come_back(tmp_path: Path) -> None:
    rows = [event(10, "stored"), event(20, "cleared", None), event(30, "stored"), event(40, "removed")]
    assert told(drawn(tmp_path, *rows)) == [(10, 1), (20, 0), (30, 1), (40, 0)]


def test_in_one_message_what_is_taken_goes_first_and_messages_come_in_their_order(tmp_path: Path) -> None:
    """All at 20 ns: a is removed and stored by one message, b stored by 1 and removed by 2."""
    rows = [event(10, "stored"), event(20, "stored", seq=1), event(20, "removed", seq=1)]
    rows += [event(20, "stored", "b", seq=1), event(20, "removed", "b", seq=2)]
    assert told(drawn(tmp_path, *rows)) == [(10, 1)]


def test_unknown_bytes_and_tokens_are_not_0(tmp_path: Path) -> None:
    rows = [event(10, "stored"), event(20, "stored", "b", bytes=None, tokens=None), event(30, "removed", "b")]
    found = told(drawn(tmp_path, *rows), "keys", "bytes", "tokens")
    assert found == [(1, 100, 16), (2, None, None), (1, 100, 16)]


def test_what_only_says_what_was_written_is_no_residency(tmp_path: Path) -> None:
    """LMCache's storage trace: reserved, written, and never a word when a key goes."""
    trace = {"tier": "host", "component": "lmcache.l1", "key_space": "lmcache:blake3:m"}
    run = drawn(tmp_path, event(10, "reserved", **trace), event(20, "written", **trace))
    assert told(run) == []
    assert run.sql("SELECT start_ns, end_ns, ends_seen, evidence FROM residency").rows() == [
        (20, None, False, "derived")
    ]


@pytest.mark.parametrize("word", ["removed", "expired", "cleared", "stored", "published"])
def test_written_counts_where_another_word_shows_that_removals_are_told(tmp_path: Path, word: str) -> None:
    run = drawn(tmp_path, event(10, "written"), event(20, word))
    assert told(run)[0] == (10, 1)
    assert told(run)[1:] == ([] if word in ("stored", "published") else [(20, 0)])


def test_the_evidence_is_the_weakest(tmp_path: Path) -> None:
    rows = [event(10, "stored"), event(20, "stored", "b", evidence="derived")]
    assert told(drawn(tmp_path, *rows), "evidence") == [("derived",), ("derived",)]
    assert told(drawn(tmp_path / "x", event(10, "stored", evidence=None)), "evidence") == [(None,)]


def page(name: str, value: float, **more: Any) -> Row:
    return {"name": f"lmcache_status.{name}", "kind": "gauge", "value": value, "process": "p"} | more


def test_a_status_page_counts_objects_without_a_time(tmp_path: Path) -> None:
    """As the page of the shipped recording l1-reuse says it."""
    manager = "storage_manager.l1_manager."
    rows = [page(f"{manager}total_object_count", 35.0), page(f"{manager}memory_used_bytes", 18350080.0)]
    rows.append(page(f"{manager}read_locked_count", 3.0))
    run = drawn(tmp_path, metric=rows)
    assert residency(run).rows() == [("host", "lmcache.l1", None, 35, 18350080, None, "native")]
    assert residency(run, engine="e0").height == 0


def test_of_many_changes_the_highest_of_each_stretch_stay(tmp_path: Path) -> None:
    """Keys come and go 100 times; seven more are there at 1000."""
    rows = [event(10 * n, "stored", "a") for n in range(200)]
    rows += [event(10 * n + 5, "removed", "a") for n in range(200)]
    rows += [event(1001, "stored", f"k{n}") for n in range(7)] + [event(1003, "cleared", None)]
    run = drawn(tmp_path, *rows)
    found = told(run, most=20)
    assert len(found) <= 20
    assert max(keys for _, keys in found) == 8
    assert found[-1] == told(run)[-1]
    assert told(run, most=10_000) == told(run)


def test_fewer_than_two_rows_cannot_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="most must be at least 2, not 1"):
        residency(drawn(tmp_path), most=1)


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    assert residency(drawn(tmp_path)).schema == COLUMNS
