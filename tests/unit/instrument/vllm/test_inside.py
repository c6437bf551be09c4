"""Loads inside a step.

start_load_kv 100 [=====) 150        wait_for_layer_load  [====== long ======) 900       clear
load              [=====)            or                   .................. 900
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.instrument.vllm.worker_side import bound, forget, kind

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

US = 1_000


@pytest.fixture(autouse=True)
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def loads(told: Told) -> list[dict[str, Any]]:
    return [row for row in told.rows if row.get("op") == "load"]


def started(told: Told, connector: Any, lasts: int = 50) -> Any:
    connector.lasts["start_load_kv"] = lasts
    told.clock = 100
    connector.start_load_kv("context")
    return connector


def test_each_load_inside_a_step_is_a_row_once_the_step_is_over(told: Told) -> None:
    connector = started(told, bound(kind("ExampleConnector", told)(), b=None, c=1, d=None))
    assert loads(told) == []
    connector.clear_connector_metadata()
    connector.clear_connector_metadata()
    rows = loads(told)
    assert [row["request_id"] for row in rows] == ["b", "d"], "c loads asynchronously"
    for row in rows:
        times = [row[name] for name in ("submit_ns", "start_ns", "end_ns", "usable_ns")]
        assert times == [100, 100, 150, 150]
        assert (row["tier_from"], row["tier_to"], row["component"]) == ("disk", "gpu", "vllm.example")
        assert (row["tokens"], row["outcome"], row["attributes.shared_by"]) == (48, "ok", 2)
    assert rows[0]["transfer_id"] == "b/load/step-1", "the same on every rank"


def test_a_load_ends_with_the_last_layer_that_a_step_waited_long_for(told: Told) -> None:
    connector = started(told, bound(kind("LayerConnector", told)(), b=None))
    for lasts in (200 * US, 10 * US):
        connector.lasts["wait_for_layer_load"] = lasts
        connector.wait_for_layer_load("layer")
    connector.clear_connector_metadata()
    (row,) = loads(told)
    assert row["end_ns"] == row["usable_ns"] == 150 + 200 * US
    started(told, bound(connector, b=None)).clear_connector_metadata()
    assert loads(told)[-1]["end_ns"] == 150, "another step"


def test_of_nested_connectors_the_one_that_loads_has_the_row(told: Told) -> None:
    children = [bound(kind("ExampleConnector", told)(), b=None), bound(kind("OtherConnector", told)(), c=1)]
    parent = bound(kind("MultiConnector", told)(*children), b=None)
    started(told, parent)
    parent.clear_connector_metadata()
    assert [(row["request_id"], row["component"]) for row in loads(told)] == [("b", "vllm.example")]


@pytest.mark.parametrize(("names", "outcome"), [("b", "failed"), ("bd", "unknown")])
def test_blocks_that_did_not_arrive_fail_a_load_that_is_alone(told: Told, names: str, outcome: str) -> None:
    connector = bound(kind("ExampleConnector", told)(), **dict.fromkeys(names))
    type(connector).errors = frozenset({3})
    started(told, connector).get_block_ids_with_load_errors()
    connector.clear_connector_metadata()
    assert {(row["outcome"], row["reason"], row["usable_ns"]) for row in loads(told)} == {
        (outcome, "unknown", None)
    }
    type(connector).errors = frozenset()
    started(told, connector).clear_connector_metadata()
    assert loads(told)[-1]["outcome"] == "ok", "the next step lost nothing"
