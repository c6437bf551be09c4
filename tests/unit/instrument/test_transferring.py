"""One row a call of a connector's own function.

ms    0            5
      │── fetch ───│        start: the call, end: its return
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace import recorder
from kvtrace.instrument import scope
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.instrument.conftest import Told

MS = 1_000_000


@pytest.fixture
def on(told: Told, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(recorder, "enabled", lambda: True)
    return told


def test_a_call_is_a_row_of_its_arguments_and_what_it_returned(on: Told) -> None:
    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host", component="mystore.disk")
    def fetch(keys: list[str], *, request_id: str, tokens: int) -> dict[str, int]:  # noqa: ARG001
        on.clock += 5 * MS
        return {"bytes": 4096, "blocks": 2}

    begun = on.clock
    assert fetch(["k"], request_id="r1", tokens=64) == {"bytes": 4096, "blocks": 2}
    (row,) = on.rows
    name = row["name"]
    assert name.endswith("fetch")
    assert row == {
        "table": "span", "part": "whole", "op": "load", "tier_from": "disk", "tier_to": "host",
        "observer": "client", "component": "mystore.disk", "clock": "host", "evidence": "shim",
        "request_id": "r1", "bytes": 4096, "tokens": 64, "blocks": 2, "transfer_id": f"{name}/1",
        "name": name, "start_ns": begun, "end_ns": begun + 5 * MS, "outcome": "ok", "reason": None,
        "attribution": "request", "device": None,
    }  # fmt: skip


@dataclass
class Result:
    tokens: int
    request_id: str


@pytest.mark.parametrize(
    ("returned", "bytes_", "tokens", "request_id"),
    [
        (123, 123, None, None),
        (True, None, None, None),
        (None, None, None, None),
        (b"1234", None, None, None),
        ("text", None, None, None),
        ([1, 2], None, None, None),
        ({"tokens": 3, "request_id": "r9"}, None, 3, "r9"),
        (Result(tokens=5, request_id="r8"), None, 5, "r8"),
        ({"bytes": "many"}, None, None, None),
    ],
)
def test_what_is_returned_counts_when_it_says_so(
    on: Told, returned: Any, bytes_: int | None, tokens: int | None, request_id: str | None
) -> None:
    fetch = kvtrace.transfer(op="load", tier_from="object", tier_to="host")(lambda: returned)
    assert fetch() is returned
    (row,) = on.rows
    assert (row["bytes"], row["tokens"], row["request_id"]) == (bytes_, tokens, request_id)
    assert row["attribution"] == ("request" if request_id else "operation")


def test_arguments_may_have_other_names_and_places(on: Told) -> None:
    class Store:
        @kvtrace.transfer(
            op="store", tier_from="host", tier_to="disk", names={"bytes": "size", "request_id": "req"}
        )
        def put(self, key: str, size: int, req: str | None = None) -> None:
            pass

    Store().put("k", 77, "r3")
    Store().put("k", size=78, req="r4")
    assert [(row["bytes"], row["request_id"]) for row in on.rows] == [(77, "r3"), (78, "r4")]


def test_the_scope_names_the_request_that_no_argument_names(on: Told) -> None:
    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
    def fetch() -> str | None:
        here = scope.current()
        return None if here is None else here.transfer_id

    with kvtrace.request("r5"):
        inside = fetch()
        assert scope.current() is not None
    assert scope.current() is None
    (row,) = on.rows
    assert row["request_id"] == "r5"
    assert row["transfer_id"] == inside


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (OSError("disk"), "failed", "io"),
        (TimeoutError(), "timeout", "timeout"),
        (ValueError(), "failed", "unknown"),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
def test_what_it_raises_goes_on_and_is_its_outcome(
    on: Told, error: BaseException, outcome: str, reason: str | None
) -> None:
    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
    def fetch(tokens: int) -> None:  # noqa: ARG001
        raise error

    with pytest.raises(type(error)) as raised:
        fetch(9)
    assert raised.value is error
    (row,) = on.rows
    assert (row["outcome"], row["reason"], row["tokens"]) == (outcome, reason, 9)
    assert scope.current() is None


def test_a_coroutine_lasts_until_it_returns_and_tasks_do_not_mix(on: Told) -> None:
    @kvtrace.transfer(op="load", tier_from="object", tier_to="host")
    async def fetch(request_id: str, turns: int) -> int:  # noqa: ARG001
        for _ in range(turns):
            on.clock += MS
            await asyncio.sleep(0)
        return turns

    async def main() -> list[int]:
        return list(await asyncio.gather(fetch("a", 3), fetch("b", 1)))

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(main()) == [3, 1]
    assert {row["request_id"]: row["bytes"] for row in on.rows} == {"a": 3, "b": 1}
    assert all(row["end_ns"] > row["start_ns"] for row in on.rows)


def test_copies_inside_a_call_count_instead_of_it_when_they_are_the_same_hop(tmp_path: Path) -> None:
    """The call says 100 bytes from host to gpu, two copies inside say 50 each; what it read from disk stays.

    call     0 |──── disk to host ────|              call    30 |──── host to gpu ────| 60
    copies                                                        |─ 50 B ─| |─ 50 B ─|
    """
    call = {"op": "load", "request_id": "r1", "observer": "client", "bytes": 100, "transfer_id": "fetch/1"}
    copy = {
        "op": "load", "request_id": "r1", "observer": "worker", "bytes": 50, "transfer_id": "push/2",
        "tier_from": "host", "tier_to": "gpu", "clock": "gpu",
    }  # fmt: skip
    span = [
        call | {"start_ns": 0, "end_ns": 20, "tier_from": "disk", "tier_to": "host"},
        call | {"start_ns": 30, "end_ns": 60, "tier_from": "host", "tier_to": "gpu", "transfer_id": "push/2"},
        copy | {"start_ns": 35, "end_ns": 40},
        copy | {"start_ns": 45, "end_ns": 50},
    ]
    run = write_run(tmp_path / "run", span=span)
    found = run.connection().sql("SELECT observer, start_ns, end_ns, bytes FROM transfer ORDER BY start_ns")
    assert found.fetchall() == [("client", 0, 20, 100), ("worker", 35, 50, 100)]


def test_without_a_recording_the_function_is_called_and_nothing_else(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "enabled", lambda: False)
    fetch = kvtrace.transfer(op="load", tier_from="disk", tier_to="host")(lambda: scope.current())
    assert fetch() is None
    assert told.rows == []


def test_a_recorder_that_fails_is_counted_and_the_result_is_the_functions(
    on: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_row: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(recorder, "record", fail)
    fetch = kvtrace.transfer(op="load", tier_from="disk", tier_to="host")(lambda: 7)
    assert fetch() == 7
    ((cause, detail),) = on.losses
    assert cause == "hook_failure"
    assert detail.endswith("RuntimeError")
