"""What of NIXL's wrappers needs no agent: sizes, media, notifications, handles whose numbers come again.

The rows of real transfers are in tests/engines/nixl.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kvtrace.instrument.nixl import agent as hooks
from kvtrace.instrument.nixl import sizes, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.instrument.conftest import Told


class Descriptors(list[tuple[int, int, int]]):
    kind = "DRAM_SEG"

    def descCount(self) -> int:  # noqa: N802 - the name that NIXL gives it
        return len(self)

    def getType(self) -> Any:  # noqa: N802 - the name that NIXL gives it
        return SimpleNamespace(name=self.kind)


def _agent() -> Any:
    class Agent:
        name = "near"
        state = "PROC"

        def __init__(self, agent_name: str = "near", nixl_conf: Any = None) -> None:
            del agent_name, nixl_conf

        def initialize_xfer(
            self, operation: str, local: Any, remote: Any, remote_agent: str, notif_msg: bytes = b""
        ) -> Any:
            del operation, local, remote, remote_agent, notif_msg
            return SimpleNamespace(_handle=7)

        def transfer(self, handle: Any, notif_msg: bytes = b"") -> str:
            del handle, notif_msg
            return self.state

        def check_xfer_state(self, handle: Any) -> str:
            del handle
            return self.state

        def query_xfer_backend(self, handle: Any) -> str:
            del handle
            return "UCX"

        def get_xfer_telemetry(self, handle: Any) -> Any:
            raise AssertionError(handle)

        def release_xfer_handle(self, handle: Any) -> None:
            del handle

    hooks.instrument(Agent)
    return Agent()


@pytest.fixture
def agent(told: Told) -> Iterator[Any]:
    del told
    waiting._transfers.clear()
    yield _agent()
    waiting._transfers.clear()


def _begin(agent: Any, operation: str = "READ") -> Any:
    descriptors = Descriptors([(0, 64, 0), (64, 32, 0)])
    handle = agent.initialize_xfer(operation, descriptors, descriptors, "far", b"cmpl-1:2")
    agent.transfer(handle)
    return handle


def test_descriptors_are_counted_in_every_form_that_nixl_takes() -> None:
    pairs = [(0, 64, 0), (64, 32, 0)]
    for form in (pairs, Descriptors(pairs), np.array(pairs)):
        assert sizes.sizes(form, 8) == [64, 32]
        assert sizes.count(form) == 2
        assert sizes.sizes(form, 1) is None
    assert sizes.sizes(np.zeros((2, 5)), 8) is None
    assert sizes.sizes(object(), 8) is None


@pytest.mark.parametrize(
    ("kind", "agent", "tier"),
    [
        ("DRAM_SEG", "near", "host"), ("DRAM_SEG", "far", "peer"), ("VRAM_SEG", "near", "gpu"),
        ("VRAM_SEG", "far", "peer"), ("FILE_SEG", "near", "disk"), ("OBJ_SEG", "near", "object"),
        ("NEW_SEG", "near", "unknown"),
    ],
)  # fmt: skip
def test_a_medium_is_a_tier_and_another_agents_memory_is_a_peers(kind: str, agent: str, tier: str) -> None:
    descriptors = Descriptors()
    descriptors.kind = kind
    assert sizes.tier(descriptors, None, agent, "near") == tier


def test_what_is_printable_of_a_notification_is_shown_and_the_rest_counted() -> None:
    assert waiting.shown(b"cmpl-1:2") == "cmpl-1:2"
    assert waiting.shown(b"\xff\x00") == "2 bytes"
    assert waiting.shown(b"a" * 300) == "300 bytes"
    assert waiting.shown(b"") is None


def test_a_notification_is_the_peers_and_gives_no_request_unless_somebody_says_how(
    told: Told, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(agent)
    monkeypatch.setattr(waiting, "request_of", lambda message: message.decode().partition(":")[0])
    _begin(agent)
    asked = [(row["request_id"], row["attribution"], row["attributes.notif"]) for row in told.parts("open")]
    assert asked == [(None, "operation", "cmpl-1:2"), ("cmpl-1", "request", "cmpl-1:2")]


def test_a_transfer_ends_when_its_caller_is_told(told: Told, agent: Any) -> None:
    handle = _begin(agent)
    begun, told.clock = told.clock, told.clock + 5
    agent.check_xfer_state(handle)
    assert told.parts("close") == []
    agent.state = "DONE"
    agent.check_xfer_state(handle)
    agent.check_xfer_state(handle)
    (closed,) = told.parts("close")
    assert (closed["start_ns"], closed["end_ns"], closed["bytes"]) == (begun, begun + 5, 96)
    assert (closed["outcome"], closed["component"]) == ("ok", "nixl.ucx")
    assert closed["attributes.times"] == "observed"
    assert told.losses == []


def test_a_state_of_err_is_a_failed_transfer(told: Told, agent: Any) -> None:
    agent.state = "ERR"
    _begin(agent)
    (closed,) = told.parts("close")
    assert (closed["outcome"], closed["reason"]) == ("failed", "io")


def test_a_number_that_comes_again_ends_what_it_stood_for(told: Told, agent: Any) -> None:
    _begin(agent)
    _begin(agent)
    opened, (closed,) = told.parts("open"), told.parts("close")
    assert (closed["span_id"], closed["outcome"]) == (opened[0]["span_id"], "unknown")


def test_what_is_released_under_way_is_cancelled(told: Told, agent: Any) -> None:
    agent.release_xfer_handle(_begin(agent, "WRITE"))
    (closed,) = told.parts("close")
    assert closed["outcome"] == "cancelled"
    assert waiting._transfers == {}


def test_what_is_remembered_is_bounded(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del agent
    monkeypatch.setattr(waiting, "LIMIT", 3)
    transfer = waiting.Transfer(
        load=True, near="host", far="peer", peer="far", notif=b"", size=1, descriptors=1
    )
    for number in range(10):
        waiting.prepared(SimpleNamespace(_handle=number), transfer)
    assert sorted(waiting._transfers) == [7, 8, 9]
