"""Blocks that did not arrive in a step, as the scheduler finds out whose they are.

request            had before the step   computes   loads inside it   is cut back to
a                  64                    36         48                32: 16 of its 48 are usable
b                  48                    52         48                0: nothing is
c                  48                    52         48                stays
d                  100                   1          none              64: it runs on blocks that a loads
"""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm import invalid, products

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

START = 1_000_000_000_000
CARRIED = {
    "step": 7, "requests": ("a", "b", "c", "d"), "loads": ("a", "b", "c", "e"),
    "attempts": (None, None, None, 2), "tokens": (48, 48, 48, 64),
}  # fmt: skip


class FakeConnector:
    pass


class Scheduler:
    """Cuts its requests back to what a test says."""

    def __init__(self, step: Any, cut: dict[str, int]) -> None:
        self._kvtrace_tracks = Some(handled=step, loads={})
        self.requests: dict[str, Any] = {}
        self.connector = FakeConnector()
        had = {"a": 64 + 36, "b": 48 + 52, "c": 48 + 52, "d": 100 + 1, "not in the step": 30}
        self.running = [Some(request_id=name, num_computed_tokens=tokens) for name, tokens in had.items()]
        self._cut = cut

    def _handle_invalid_blocks(self, invalid_block_ids: set[int], num_scheduled_tokens: Any) -> set[str]:
        del invalid_block_ids, num_scheduled_tokens
        for request in self.running:
            request.num_computed_tokens = self._cut.get(request.request_id, request.num_computed_tokens)
        return set(self._cut)


def played(told: Told, cut: dict[str, int], metadata: Any = None) -> list[dict[str, Any]]:
    kind = type("Scheduler", (Scheduler,), dict(vars(Scheduler)))
    wrapping.around(kind, "_handle_invalid_blocks", invalid.reported, invalid.handled)
    step = Some(start_ns=START - 500, output=Some(kv_connector_metadata=metadata or Some(_kvtrace=CARRIED)))
    scheduled = {"a": 36, "b": 52, "c": 52, "d": 1}
    assert kind(step, cut)._handle_invalid_blocks({5, 9}, scheduled) == set(cut)  # type: ignore[attr-defined]
    return told.rows


def test_everybody_who_was_cut_back_is_named_with_the_tokens_that_are_computed_again(told: Told) -> None:
    (row, *_) = played(told, {"a": 32, "b": 0, "d": 64})
    assert (row.get("op"), row["name"], row["outcome"]) == (None, "kv_blocks_invalid", "failed")
    assert row["members"][0] == ("a", "b", "d")
    assert (row["blocks"], row["tokens"]) == (2, 32 + 48 + 36)
    assert (row["start_ns"], row["end_ns"], row["observer"]) == (START, START, "scheduler")


def test_of_every_load_inside_the_step_it_is_told_what_is_usable(told: Told) -> None:
    (_, *loads) = played(told, {"a": 32, "b": 0, "d": 64})
    columns = ("outcome", "attributes.usable_tokens", "attributes.failed_by")
    found = {row["request_id"]: tuple(row[name] for name in columns) for row in loads}
    expected = {"a": ("partial", 16, "blocks"), "b": ("failed", 0, "blocks"), "c": ("ok", 48, None)}
    assert found == expected, "e's load is asynchronous"
    for row in loads:
        assert row["transfer_id"] == f"{row['request_id']}/load/step-7", "as its worker calls it"
        assert (row["op"], row["tokens"], row["tier_to"]) == ("load", 48, "gpu")
        assert (row["submit_ns"], row["start_ns"], row["end_ns"]) == (START - 500, START - 500, START)
        assert row["component"] == products.component(FakeConnector())


def test_blocks_that_nobody_in_the_step_uses_say_nothing_of_its_requests(told: Told) -> None:
    (*loads,) = played(told, {})
    assert {row["outcome"] for row in loads} == {"ok"}
    assert {row["op"] for row in loads} == {"load"}


def test_a_block_shared_with_one_who_was_cut_back_is_computed_only_there(told: Told) -> None:
    """VLLM takes d back to what it had before the step: it waits for a's tokens."""
    (row, *_) = played(told, {"a": 32, "d": 100})
    assert row["members"][0] == ("a", "d")
    assert row["tokens"] == 32


@pytest.mark.parametrize("metadata", [Some(), object()])
def test_without_a_carrier_loads_have_no_names(told: Told, metadata: Any) -> None:
    (row,) = played(told, {"a": 32}, metadata)
    assert row["members"][0] == ("a",)
    assert told.losses == []
