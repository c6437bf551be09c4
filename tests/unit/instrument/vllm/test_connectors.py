"""Every class that the factory hands out is wrapped once, in place."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm import connectors

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

pytestmark = pytest.mark.usefixtures("told")


def factory() -> Any:
    """VLLM's factory with one registered class."""

    class Connector:
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            assert request
            return num_computed_tokens, False

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            return scheduler_output

    class KVConnectorFactory:
        @classmethod
        def get_connector_class(cls, config: Any) -> type:
            assert config
            return Connector

    connectors.install(Some(KVConnectorFactory=KVConnectorFactory))  # type: ignore[arg-type]
    return KVConnectorFactory


def test_the_engine_gets_the_very_class_it_would_have_got() -> None:
    connector = factory().get_connector_class("config")
    assert connector.__name__ == "Connector"
    assert connector().get_num_new_matched_tokens("request", 5) == (5, False)
    assert wrapping.status()[f"{connector.__qualname__}.get_num_new_matched_tokens"] == "active"


def test_a_class_is_wrapped_once_however_often_it_is_asked_for() -> None:
    made = factory()
    first = vars(made.get_connector_class("config"))["build_connector_meta"]
    assert vars(made.get_connector_class("config"))["build_connector_meta"] is first


def test_a_method_that_a_connector_lacks_is_not_invented(told: Told) -> None:
    connector = factory().get_connector_class("config")
    assert not hasattr(connector, "update_state_after_alloc")
    assert wrapping.status()[f"{connector.__qualname__}.update_state_after_alloc"].startswith("not wrapped")
    assert told.losses == []


def test_a_class_derived_from_a_wrapped_one_is_wrapped_itself() -> None:
    connector = factory().get_connector_class("config")
    derived = type("Derived", (connector,), {})
    connectors._handed_out(derived)
    assert "_kvtrace_wrapped" in vars(derived)
