"""What happens to keys is rows of keys; what LMCache does not say is null."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.instrument.lmcache.blocks import FirstLevel, second_level
from kvtrace.instrument.lmcache.points import storage
from tests.unit.instrument.lmcache.literal import AT, SPACE, Backend, Meta, key, read

FIRST = FirstLevel("dram", read_ttl_ns=300, write_ttl_ns=600)
L1 = {"component": "lmcache.l1", "evidence": "native", "tier": "host", "medium_raw": "dram"}
SEEN = {"time_ns": AT, "seq": 7, "key_space": SPACE, "object_group": "0"}
ONE = {"key": "01010101", "rank": 0}
TWO = {"key": "02020202", "rank": 1}


def decoded(name: str, **metadata: Any) -> list[dict[str, Any]]:
    return read(FIRST.handlers()[name](7, AT, "", metadata))


def test_a_read_lock_has_no_count_and_its_time_to_live() -> None:
    found = decoded("l1.read.reserved", keys=[key(1), key(2, 1)])
    assert found == [
        {**L1, **SEEN, **who, "event": "locked", "mode": "read", "ttl_ns": 300} for who in (ONE, TWO)
    ]


def test_a_reservation_lives_as_long_as_a_write_lock() -> None:
    (found,) = decoded("l1.write.reserved", keys=[key(1)])
    assert (found["event"], found["mode"], found["ttl_ns"]) == ("reserved", "reserve", 600)


@pytest.mark.parametrize(
    ("name", "event"), [("l1.read.finished", "unlocked"), ("l1.keys.accessed", "accessed")]
)
def test_a_release_and_an_access_are_of_reading(name: str, event: str) -> None:
    assert decoded(name, keys=[key(1)]) == [{**L1, **SEEN, **ONE, "event": event, "mode": "read"}]


def test_no_keys_are_no_rows() -> None:
    for name in FIRST.handlers():
        assert decoded(name, keys=[], meta=[]) == []
        assert decoded(name) == []


def test_what_was_written_has_its_bytes_and_its_own_medium() -> None:
    sizes = [Meta(64), Meta(32, Backend.DEVDAX)]
    found = decoded("l1.write.finished", keys=[key(1), key(2, 1)], meta=sizes)
    assert [(row["event"], row["bytes"], row["medium_raw"], row["tier"]) for row in found] == [
        ("written", 64, "dram", "host"), ("written", 32, "devdax", "host"),
    ]  # fmt: skip
    assert "reason" not in found[0]
    assert found[0]["mode"] == "write"


def test_what_landed_from_l2_is_written_and_locked_in_one_moment() -> None:
    found = decoded("l1.write_finished_and_read_reserved", keys=[key(1)], meta=[Meta(64)])
    assert [(row["event"], row["reason"], row["time_ns"], row["seq"]) for row in found] == [
        ("written", "landed", AT, 7), ("locked", "landed", AT, 7),
    ]  # fmt: skip


def test_an_eviction_has_no_reason_of_ours() -> None:
    (found,) = decoded("l1.keys.evicted", keys=[key(1)], meta=[Meta(64)])
    assert (found["event"], found["bytes"], found.get("reason")) == ("removed", 64, None)


def test_bytes_that_are_not_said_are_null() -> None:
    found = decoded("l1.keys.evicted", keys=[key(1), key(2)], meta=[Meta(64)])
    assert [row.get("bytes") for row in found] == [64, None]


def test_a_failed_read_says_of_what_and_why() -> None:
    (found,) = decoded("l1.read.failed", keys=[key(1)], during="l1_retrieve", reason="write_locked")
    assert (found["event"], found["mode"], found["reason"]) == ("failed", "read", "l1_retrieve:write_locked")
    (found,) = decoded("l1.allocation.failed", keys=[key(1)], during="l2_prefetch")
    assert (found["event"], found["mode"], found["reason"]) == ("failed", "reserve", "l2_prefetch")


def test_what_l2_could_not_bring_is_of_l2_without_an_adapter() -> None:
    (found,) = decoded("l2.prefetch.failed", keys=[key(1)], reason="l1_oom")
    assert (found["component"], found["event"], found["reason"]) == ("lmcache.l2", "failed", "l1_oom")
    assert "tier" not in found


@pytest.mark.parametrize(
    ("name", "event"),
    [("l2.keys.stored", "stored"), ("l2.keys.accessed", "accessed"), ("l2.keys.deleted", "removed")],
)
def test_an_adapter_names_its_medium(name: str, event: str) -> None:
    said = {"keys": [key(1), key(2, 1)], "sizes": [64, 32], "backend": "fs", "shared": False}
    found = read(second_level({})[name](7, AT, "", said))
    columns = ("event", "component", "tier", "bytes", "locality")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (event, "lmcache.l2.fs", "disk", 64, "local"), (event, "lmcache.l2.fs", "disk", 32, "local"),
    ]  # fmt: skip


def test_an_adapter_around_another_has_the_medium_of_the_inner_one() -> None:
    said = {"keys": [key(1)], "backend": "fault_inject", "shared": True}
    handler = second_level({"fault_inject": "disk"})["l2.keys.accessed"]
    (found,) = read(handler(7, AT, "", said))
    assert (found["component"], found["tier"], found["locality"]) == (
        "lmcache.l2.fault_inject",
        "disk",
        "remote",
    )
    (found,) = read(second_level({})["l2.keys.accessed"](7, AT, "", said | {"backend": "mock"}))
    assert found["tier"] == "unknown"


def test_what_is_not_configured_yet_has_no_medium_and_no_time_to_live() -> None:
    (found,) = read(FirstLevel().handlers()["l1.read.reserved"](7, AT, "", {"keys": [key(1)]}))
    assert (found["tier"], found.get("medium_raw"), found.get("ttl_ns")) == ("unknown", None, None)


def test_keys_of_one_tenant_are_told_apart_without_its_salt(told: Any) -> None:
    handler = FIRST.handlers()["l1.read.reserved"]
    salts = ("bob of blocks", "bob of blocks", "eve of blocks")  # a process tells each tenant once
    keys = [key(1), *(key(1, cache_salt=salt) for salt in salts)]
    nobody, bob, again, eve = (row.get("identity_id") for row in read(handler(7, AT, "", {"keys": keys})))
    assert nobody is None
    assert bob == again != eve
    assert "bob" not in str(bob)
    assert [identity[:2] for identity in told.identities] == [(bob, "writer"), (eve, "writer")]


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [("sm.read.prefetched_finished", "read", "unreleased"), ("sm.write.finished", "write", "unfinished")],
)
def test_a_release_or_a_write_that_was_refused_names_its_keys(name: str, mode: str, reason: str) -> None:
    said = {"succeeded_keys": [key(1)], "failed_keys": [key(2, 1)]}
    counts, failed = read(storage(FIRST)[name](7, AT, "", said))
    assert (counts["attributes.succeeded"], counts["attributes.failed"]) == (1, 1)
    assert failed == {**L1, **SEEN, **TWO, "event": "failed", "mode": mode, "reason": reason}


def test_what_a_lookup_misses_and_a_store_finds_there_is_counted_and_no_failure() -> None:
    for name in ("sm.read.prefetched", "sm.write.reserved"):
        (counts,) = read(storage(FIRST)[name](7, AT, "", {"succeeded_keys": [], "failed_keys": [key(1)]}))
        assert counts["attributes.failed"] == 1
