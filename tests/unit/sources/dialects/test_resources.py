"""Who recorded a span: its resource, unless the span says it itself."""

from __future__ import annotations

import pytest
from kvtrace.schema.vocabulary import OBSERVERS
from tests.unit.importer.drawn import op, span, word, words


@pytest.mark.parametrize(
    ("resource", "process"),
    [
        ({"service.instance.id": "vllm-1", "host.name": "a", "process.pid": 7}, "vllm-1"),
        ({"host.name": "a", "process.pid": 7, "service.name": "vllm"}, "a/7"),
        ({"host.name": "a", "vllm.process_id": "9"}, "a/9"),
        ({"host.name": "a", "service.name": "vllm"}, "vllm"),
        ({"service.name": "unknown_service"}, None),
        ({}, None),
    ],
)
def test_a_process_is_its_instance_else_host_and_pid_else_its_service(
    resource: dict[str, object], process: str | None
) -> None:
    row = word(span("x", 1, 2, resource=resource))
    assert row.get("process") == process
    assert row.get("engine") == process


@pytest.mark.parametrize(
    ("attribute", "column", "value"),
    [
        ("kvtrace.engine", "engine", "e7"),
        ("kvtrace.process", "process", "host-a/4711"),
        ("kvtrace.observer", "observer", "scheduler"),
        ("kvtrace.rank", "rank", 3),
        ("kvtrace.device", "device", "cuda:1"),
    ],
)
def test_a_resource_speaks_for_all_of_its_spans_and_a_span_for_itself(
    attribute: str, column: str, value: object
) -> None:
    resource = {"service.instance.id": "p0", attribute: value}
    own = {"observer": "worker", "rank": 5}.get(column, "own")
    rows, _ = words(
        op("load", 1, 2, resource=resource),
        op("load", 2, 3, resource=resource, more={attribute: own}),
        op("load", 3, 4, resource={"service.instance.id": "p1"}),
    )
    other = "p1" if column in ("engine", "process") else None
    assert [row.get(column) for row in rows] == [value, own, other]


def test_a_foreign_span_has_what_its_resource_says() -> None:
    row = word(span("anything", 1, 2, resource={"kvtrace.engine": "e7", "kvtrace.observer": "router"}))
    assert (row["engine"], row["observer"]) == ("e7", "router")


def test_an_observer_that_is_none_of_ours_is_not_observed() -> None:
    assert "martian" not in OBSERVERS
    assert "observer" not in word(span("x", 1, 2, resource={"kvtrace.observer": "martian"}))
