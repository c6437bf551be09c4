"""Where a step of a worker stands still.

start_load_kv of a step with loads inside   100 [======================) 400
    example                                         140 [======) 240
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import layers, offload
from tests.unit.instrument.vllm.worker_side import Connector, bound, forget, kind

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

US = 1_000


def named(row: dict[str, Any]) -> tuple[str, ...] | None:
    return None if row["members"] is None else row["members"][0]


@pytest.fixture(autouse=True)
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def test_a_load_inside_a_step_is_a_wait_that_names_who_it_is_for(told: Told) -> None:
    connector = bound(kind("ExampleConnector", told)(), b=None, c=1, d=None)
    connector.lasts["start_load_kv"] = 50
    told.clock = 100
    connector.start_load_kv("context", request_ids=())
    (row,) = told.rows
    assert (row["op"], row["reason"], row["start_ns"], row["end_ns"]) == ("wait", "load", 100, 150)
    assert named(row) == ("b", "d"), "c loads asynchronously: nobody waits for it here"
    assert (row["component"], row["attribution"], row["observer"]) == ("vllm.example", "operation", "worker")
    assert row["attributes.children"] is None


def test_ordering_asynchronous_loads_is_no_wait(told: Told) -> None:
    connector = bound(kind("FakeConnector", told)(), c=1)
    connector.lasts["start_load_kv"] = 900 * US
    connector.start_load_kv("context")
    assert told.rows == []


def test_of_a_connector_of_several_the_outermost_call_is_the_row_and_its_children_are_named(
    told: Told,
) -> None:
    children = [bound(kind(name, told)(), b=None) for name in ("ExampleConnector", "OtherConnector")]
    parent = bound(kind("MultiConnector", told)(*children), b=None)
    children[0].lasts["start_load_kv"] = 100
    children[1].lasts["start_load_kv"] = 20
    parent.lasts["start_load_kv"] = 3
    told.clock = 100
    parent.start_load_kv("context")
    (row,) = told.rows
    assert (row["component"], row["end_ns"] - row["start_ns"]) == ("vllm.multi", 123)
    assert row["attributes.children"] == "other=20 vllm.example=100"
    assert named(row) == ("b",)


def test_a_flush_that_blocks_names_whose_stores_it_is_about(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "flushed_by", lambda _connector, metadata: metadata)
    connector = kind("OffloadingConnector", told)()
    for lasts, metadata in ((99 * US, {"a"}), (100 * US, {"a", "b"}), (100 * US, set()), (100 * US, None)):
        connector.lasts["handle_preemptions"] = lasts
        connector.handle_preemptions(metadata)
    assert [(row["reason"], named(row)) for row in told.rows] == [("store", ("a", "b")), ("store", None)]
    assert [row["attribution"] for row in told.rows] == ["operation", "aggregate"]


@pytest.mark.parametrize(("first", "second", "rows"), [(True, True, 0), (True, False, 1), (False, True, 1)])
def test_a_parent_has_nothing_to_flush_when_no_child_has(
    told: Told, monkeypatch: pytest.MonkeyPatch, *, first: bool, second: bool, rows: int
) -> None:
    idle = {"first": first, "second": second}
    children = [kind(f"{name.title()}Connector", told)() for name in idle]
    parent = kind("MultiConnector", told)(*children)
    parent.lasts["handle_preemptions"] = 200 * US
    said = dict(zip(map(id, children), idle.values(), strict=True))
    monkeypatch.setattr(offload, "flushed_by", lambda each, _: set() if said.get(id(each)) else None)
    parent.handle_preemptions("metadata")
    assert len(told.rows) == rows


def test_long_calls_of_layers_are_rows_and_short_ones_a_sum_a_step(told: Told) -> None:
    connector = bound(kind("LayerConnector", told)(), b=None)
    told.clock = 0
    for layer, lasts in enumerate((40 * US, 150 * US, 40 * US, 30 * US)):
        connector.lasts["wait_for_layer_load"] = lasts
        connector.lasts["save_kv_layer"] = 24 * US
        connector.wait_for_layer_load(f"layer.{layer}")
        told.clock += 500 * US
        connector.save_kv_layer(f"layer.{layer}")
    connector.clear_connector_metadata()
    connector.clear_connector_metadata()
    long, summed = told.rows
    assert (long["name"], long["reason"], long["end_ns"] - long["start_ns"]) == ("kv_wait", "load", 150 * US)
    assert (long["attributes.call"], named(long)) == ("wait_for_layer_load", ("b",))
    assert (summed["name"], summed["reason"], summed["evidence"]) == ("kv_waits", "load", "derived")
    assert (summed["attributes.calls"], summed["attributes.total_ns"]) == (3, 110 * US)
    ended = told.clock - 24 * US - 500 * US
    assert (summed["start_ns"], summed["end_ns"]) == (ended - 110 * US, ended), "96 us of stores are no row"


def test_layers_that_are_saved_name_those_that_the_step_computes(told: Told) -> None:
    connector = bound(kind("LayerConnector", told)(), b=None)
    connector.lasts["save_kv_layer"] = 150 * US
    connector.save_kv_layer("layer.0")
    connector.lasts["save_kv_layer"] = 70 * US
    connector.save_kv_layer("layer.1")
    connector.save_kv_layer("layer.2")
    connector.clear_connector_metadata()
    assert [(row["reason"], named(row)) for row in told.rows] == [("store", ("a",)), ("store", ("a",))]
    assert {row["attribution"] for row in told.rows} == {"operation"}


def test_of_a_big_step_only_the_sum_of_its_layers_has_names(told: Told) -> None:
    """Names once a layer would cost more than all the rest of the recording."""
    connector = bound(kind("LayerConnector", told)(), requests=[f"r{n}" for n in range(65)])
    connector.lasts["save_kv_layer"] = 150 * US
    connector.save_kv_layer("layer.0")
    connector.lasts["save_kv_layer"] = 70 * US
    connector.save_kv_layer("layer.1")
    connector.save_kv_layer("layer.2")
    connector.clear_connector_metadata()
    single, summed = told.rows
    assert (named(single), single["attribution"]) == (None, "aggregate")
    assert len(named(summed) or ()) == 65


def test_a_sum_begins_anew_with_each_step(told: Told) -> None:
    connector = kind("LayerConnector", told)()
    connector.lasts["save_kv_layer"] = 60 * US
    for _ in range(3):
        connector.save_kv_layer("layer.0")
        connector.clear_connector_metadata()
    assert told.rows == []


def test_layers_of_children_are_counted_once_and_named(told: Told) -> None:
    children = [kind(name, told)() for name in ("ExampleConnector", "OtherConnector")]
    parent = kind("MultiConnector", told)(*children)
    children[0].lasts["save_kv_layer"] = 50 * US
    children[1].lasts["save_kv_layer"] = 10 * US
    for _ in range(2):
        parent.save_kv_layer("layer.0")
    parent.clear_connector_metadata()
    (row,) = told.rows
    assert (row["component"], row["attributes.calls"]) == ("vllm.multi", 2)
    assert row["attributes.total_ns"] == 120 * US
    assert row["attributes.children"] == f"other={20 * US} vllm.example={100 * US}"


def test_a_method_that_does_nothing_is_left_alone(told: Told) -> None:
    made = kind("LayerConnector", told)
    assert vars(made)["wait_for_save"] is vars(Connector)["wait_for_save"]
    assert not layers.does_nothing(Connector, "save_kv_layer")
    assert not layers.does_nothing(Connector, "no_such_method")


def test_blocks_that_did_not_arrive_are_a_row_of_no_operation(told: Told) -> None:
    connector = bound(kind("ExampleConnector", told)(), b=None)
    connector.get_block_ids_with_load_errors()
    assert told.rows == []
    type(connector).errors = frozenset({7, 3})
    assert connector.get_block_ids_with_load_errors() == {3, 7}
    (row,) = told.rows
    assert (row.get("op"), row["name"], row["outcome"]) == (None, "kv_load_errors", "failed")
    assert (row["blocks"], row["attributes.block_ids"], named(row)) == (2, "3 7", ("b",))


def test_an_error_of_the_engine_goes_on_and_leaves_the_next_call_right(told: Told) -> None:
    connector = bound(kind("ExampleConnector", told)(), b=None)
    connector.error = ValueError("theirs")
    for call in (connector.start_load_kv, connector.save_kv_layer, connector.handle_preemptions):
        with pytest.raises(ValueError, match="theirs"):
            call("x")
    connector.error = None
    connector.start_load_kv("context")
    assert len(told.rows) == 1
    assert told.losses == []
