"""What a worker reports of its transfers.

scheduler   update_state_after_alloc(b, 48) . build_connector_meta
worker        bind . start_load_kv ........................ get_transfer_results {b}
                     row [--------------------------------------------------------)
"""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import carrier, results

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


class Connector:
    """One side of a connector; `reports` is what it will say next."""

    reports: Any = None
    error: Exception | None = None

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        assert scheduler_output
        return type("Metadata", (), {})()

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        pass

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        assert isinstance(finished_req_ids, set)
        if self.error is not None:
            raise self.error
        return self.reports


@pytest.fixture
def kind(told: Told, monkeypatch: pytest.MonkeyPatch) -> type:
    """A fresh class, wrapped."""
    assert told.rows == []
    monkeypatch.setattr(results, "_begun", {})
    monkeypatch.setattr(results, "_inside", [])
    made = type("MadeConnector", (Connector,), dict(vars(Connector)))
    carrier.instrument(made)
    results.instrument(made)
    return made


def begun(kind: type, told: Told, *request_ids: str, at: int) -> Any:
    """A worker that has begun the loads of some requests."""
    scheduler, worker = kind(), kind()
    for request_id in request_ids:
        scheduler.update_state_after_alloc(Some(request_id=request_id), None, 48)
    worker.bind_connector_metadata(scheduler.build_connector_meta(Some(num_scheduled_tokens={})))
    told.clock = at
    worker.start_load_kv("context", request_ids=request_ids)
    return worker


def reported(received: str = "", sent: str = "", failed: str = "") -> Any:
    """What a worker's connector says, a letter a request."""
    return Some(finished_recving=set(received), finished_sending=set(sent), failed_recving=set(failed))


def test_a_load_is_a_row_from_its_begin_in_the_worker_to_its_report(kind: type, told: Told) -> None:
    worker = begun(kind, told, "b", "c", at=100)
    told.clock = 150
    worker.reports = reported()
    worker.get_transfer_results(set())
    assert told.rows == []
    told.clock = 200
    worker.reports = reported("bc", failed="c")
    worker.get_transfer_results(set())
    rows = sorted(told.rows, key=lambda row: str(row["request_id"]))
    assert [(r["request_id"], r["transfer_id"], r["start_ns"], r["end_ns"], r["outcome"]) for r in rows] == [
        ("b", "b/load/1", 100, 200, "ok"),
        ("c", "c/load/1", 100, 200, "failed"),
    ]
    assert {row.get("op") for row in rows} == {None}, "a report is no copy and in no sum"
    assert {row["component"] for row in rows} == {"made"}
    assert results._begun == {}


def test_a_send_is_a_point_for_nobody_tells_a_worker_when_it_was_asked_for(kind: type, told: Told) -> None:
    worker = begun(kind, told, at=100)
    worker.reports = reported(sent="a")
    worker.get_transfer_results({"a"})
    assert [(r["start_ns"], r["end_ns"], r["attributes.direction"]) for r in told.rows] == [
        (100, 100, "send")
    ]


def test_of_a_connector_of_several_the_parents_word_counts(kind: type, told: Told) -> None:
    class Parent(kind):  # type: ignore[misc]
        child: Any = None

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            return self.child.get_transfer_results(finished_req_ids)

    carrier.instrument(Parent)
    results.instrument(Parent)
    parent = begun(Parent, told, "b", at=100)
    parent.child = kind()
    parent.child.reports = reported("b")
    parent.get_transfer_results(set())
    assert [row["component"] for row in told.rows] == ["parent"]


def test_an_error_of_the_engine_goes_on_and_leaves_the_next_report_right(kind: type, told: Told) -> None:
    worker = begun(kind, told, "b", at=100)
    worker.error = ValueError("theirs")
    with pytest.raises(ValueError, match="theirs"):
        worker.get_transfer_results(set())
    worker.error = None
    worker.reports = reported("b")
    worker.get_transfer_results(set())
    assert len(told.rows) == 1
    assert told.losses == []


def test_a_load_inside_a_step_waits_for_no_report(
    kind: type, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    track = Some(attempt=1, inquiry=Some(asynchronous=False))
    monkeypatch.setattr(carrier, "of", lambda _: Some(all={"b": track}))
    begun(kind, told, "b", at=100)
    assert results._begun == {}
