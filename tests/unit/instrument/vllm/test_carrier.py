"""Request ids on their way from the scheduler's connector to a worker's."""

from __future__ import annotations

import pickle
from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.vllm import carrier

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


class Metadata:
    pass


class Slotted:
    __slots__ = ()


def connectors(told: Told, metadata: type) -> tuple[Any, Any]:
    """The scheduler's and the worker's side of one connector class."""
    assert told.losses == []

    class Connector:
        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            assert request
            assert blocks is None
            assert num_external_tokens >= 0

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            assert scheduler_output
            return metadata()

        def bind_connector_metadata(self, connector_metadata: Any) -> None:
            self.bound = connector_metadata

    carrier.instrument(Connector)
    return Connector(), Connector()


def test_a_worker_knows_the_requests_of_its_step_and_of_its_loads(told: Told) -> None:
    scheduler, worker = connectors(told, Metadata)
    scheduler.update_state_after_alloc(Some(request_id="b"), None, 48)
    scheduler.update_state_after_alloc(Some(request_id="c"), None, 0)
    seen = []
    for _ in range(2):
        metadata = scheduler.build_connector_meta(Some(num_scheduled_tokens={"a": 1}))
        worker.bind_connector_metadata(pickle.loads(pickle.dumps(metadata)))
        seen.append(carrier.step_of(worker))
    assert seen == [
        {"step": 1, "requests": ("a",), "loads": ("b",), "attempts": (1,), "tokens": (48,)},
        {"step": 2, "requests": ("a",), "loads": (), "attempts": (), "tokens": ()},
    ]
    assert carrier.step_of(scheduler) is None


def test_metadata_that_refuses_goes_as_it_is_and_is_counted(told: Told) -> None:
    scheduler, worker = connectors(told, Slotted)
    for _ in range(5):
        worker.bind_connector_metadata(scheduler.build_connector_meta(Some(num_scheduled_tokens={"a": 1})))
    assert carrier.step_of(worker) is None
    assert isinstance(worker.bound, Slotted)
    assert told.losses == []
    assert [facts["attributes"] for facts in told.described] == [
        {"refused_carrier.Slotted": count} for count in (1, 2, 4)
    ]
