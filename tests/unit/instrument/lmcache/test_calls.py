"""Calls of the storage manager say how many locks, and for whom; every row of them was asked, no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvtrace.instrument.lmcache.calls import PREFIX, Calls, object_bytes
from tests.unit.instrument.lmcache.literal import AT, key, read

CALLS = Calls("dram", read_ttl_ns=300, write_ttl_ns=600)
HALF = SimpleNamespace(itemsize=2)


def decoded(name: str, **args: Any) -> list[dict[str, Any]]:
    found = read(CALLS.decode(7, AT, "", {"qualname": PREFIX + name, "args": args, "t_mono": 1.0}))
    assert all(row["reason"] == "asked" and row["component"] == "lmcache.l1" for row in found)
    return found


def test_a_lookup_asks_for_as_many_locks_as_there_are_readers() -> None:
    spec = SimpleNamespace(keys=[key(1), key(1, 1)], num_kv_readers=4, mode=SimpleNamespace(name="LOOKUP"))
    found = decoded("submit_prefetch_task", spec=spec, external_request_id="r1", skip_l2=False)
    assert [(row["event"], row["count"], row["request_id"], row["rank"], row["ttl_ns"]) for row in found] == [
        ("locked", 4, "r1", 0, 300), ("locked", 4, "r1", 1, 300),
    ]  # fmt: skip


def test_a_warm_up_locks_nothing() -> None:
    spec = SimpleNamespace(keys=[key(1)], num_kv_readers=1, mode=SimpleNamespace(name="WARM"))
    assert decoded("submit_prefetch_task", spec=spec, external_request_id="w") == []


def test_a_release_says_how_many() -> None:
    assert [row["count"] for row in decoded("finish_read_prefetched", keys=[key(1)], read_locks=3)] == [3]
    assert [row["count"] for row in decoded("finish_read_prefetched", keys=[key(1)])] == [1]


def test_a_reservation_says_how_large() -> None:
    layout = SimpleNamespace(shapes=[(2, 3), (4,)], dtypes=[HALF, SimpleNamespace(itemsize=1)])
    (found,) = decoded("reserve_write", keys=[key(1)], layout_desc=layout, mode="new")
    assert (found["event"], found["bytes"], found["ttl_ns"]) == ("reserved", 2 * 3 * 2 + 4, 600)


def test_bytes_are_null_where_one_width_is_not_known() -> None:
    assert object_bytes(SimpleNamespace(shapes=[(2,), (2,)], dtypes=[HALF, object()])) is None
    assert object_bytes(SimpleNamespace(shapes=[(2,)], dtypes=[])) is None
    assert object_bytes(None) is None


def test_a_write_and_a_read_are_rows_and_the_end_of_a_read_is_none() -> None:
    assert [row["event"] for row in decoded("finish_write", keys=[key(1)])] == ["written"]
    assert [row["event"] for row in decoded("read_prefetched_results.__enter__", keys=[key(1)])] == [
        "accessed"
    ]
    assert decoded("read_prefetched_results.__exit__", keys=[key(1)]) == []


def test_a_call_that_nobody_knows_is_one_row_without_a_key() -> None:
    (found,) = decoded("defragment", keys=[key(1)])
    assert "event" not in found
    assert "key" not in found
