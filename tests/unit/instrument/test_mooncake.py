"""What of Mooncake's wrappers needs no store: codes, sizes, and that a hook which fails is not felt.

The rows of real calls are in tests/engines/mooncake.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace import recorder
from kvtrace.instrument import mooncake, wrapping
from kvtrace.instrument.mooncake import calls, codes, places, store
from kvtrace.schema.vocabulary import REASONS

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


def _store() -> Any:
    class Store:
        def put(self, key: str, value: bytes, config: Any = None) -> int:  # noqa: ARG002
            return -705 if key == "there" else 0

        def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:  # noqa: ARG002
            return [-707 if key == "late" else size for key, size in zip(keys, sizes, strict=True)]

    return Store


@pytest.mark.parametrize("op", ["load", "store", "lookup", "evict"])
def test_a_reason_is_one_of_its_operations_words(op: str) -> None:
    assert {codes.reason(op, code) for code in [*codes.NAMES, -9999, None]} <= set(REASONS[op])


@pytest.mark.parametrize(
    ("op", "code", "reason"),
    [
        ("store", -200, "no_room"), ("load", -704, "not_found"), ("store", -704, "unknown"),
        ("load", -707, "expired"), ("load", -900, "unhealthy"), ("lookup", -901, "timeout"),
        ("load", -801, "io"), ("load", None, "unknown"), ("store", -9999, "unknown"),
    ],
)  # fmt: skip
def test_a_code_means_one_reason(op: str, code: int | None, reason: str) -> None:
    assert codes.reason(op, code) == reason


def test_codes_are_counted_by_name() -> None:
    assert codes.said([-704, -704, None, -9999]) == "-704 OBJECT_NOT_FOUND=2 no code=1 -9999=1"
    assert codes.said([]) is None


def test_arrays_are_as_large_as_their_bytes() -> None:
    (put,) = (call for call in calls.STORES if call.name == "put")
    assert put.sizes is not None
    assert put.sizes(("key", memoryview(bytearray(16)).cast("d")), {}) == [16]
    assert put.sizes((), {"key": "key", "value": b"abc"}) == [3]


def test_a_store_of_keys_that_were_there_is_a_drop(told: Told) -> None:
    made = _store()
    store.instrument(made)
    assert made().put("there", b"abc") == -705
    (row,) = told.table("span")
    assert (row["op"], row["outcome"], row["reason"]) == ("drop", "skipped", "duplicate")


def test_wrapping_twice_gives_one_row_and_a_request_in_scope_is_named(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "enabled", lambda: True)
    made = mooncake.wrap(mooncake.wrap(_store()()))
    with kvtrace.request("r1", transfer_id="t1"):
        assert made.batch_get_into(["late", "there"], [0, 0], [8, 16]) == [-707, 16]
    (row,) = told.table("span")
    assert (row["request_id"], row["transfer_id"], row["attribution"]) == ("r1", "t1", "request")
    assert (row["outcome"], row["reason"], row["bytes"]) == ("partial", "expired", 16)
    assert [block["event"] for block in told.table("block")] == ["failed", "accessed"]


def test_a_pointer_is_the_hosts_until_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert store.near("put_from") == "host"
    for used, tier in ((False, "host"), (True, "unknown")):
        cuda = SimpleNamespace(is_initialized=lambda used=used: used)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
        assert store.near("put_from") == tier
        assert store.near("put") == "host"


def test_a_key_lies_where_it_was_said_to_until_it_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_known", {})
    monkeypatch.setattr(places, "LIMIT", 2)
    places.learn("a", ["disk", "host"])
    assert places.of(["a"]) == "host"
    assert places.of(["a", "b"]) == "peer"
    places.forget(["a"])
    assert places.of(["a"]) == "peer"
    for key in ("c", "d", "e"):
        places.learn(key, ["disk"])
    assert [places.of([key]) for key in ("c", "d", "e")] == ["peer", "disk", "disk"]


def test_hooks_that_fail_are_not_felt_and_are_counted(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_FAULT", "hooks")
    made = _store()
    store.instrument(made)
    assert made().put("key", b"abc") == 0
    assert [cause for cause, _ in told.losses] == ["hook_failure"]
    assert told.rows == []


def test_what_a_version_lacks_is_said(told: Told) -> None:
    del told
    made = _store()
    store.instrument(made)
    said = wrapping.status()
    assert said[f"{made.__qualname__}.put"] == "active"
    assert said[f"{made.__qualname__}.get_batch"] == "not wrapped: no such method in this version"
