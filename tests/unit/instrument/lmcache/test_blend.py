"""CacheBlend's events, as its source draws them: pairs by request and worker, a no-op is a recompute."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.instrument.lmcache.blend import Blend
from tests.unit.instrument.lmcache.literal import read

pytestmark = pytest.mark.usefixtures("told")


def played(*events: tuple[str, int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Operations of one request, their parts as one."""
    handlers = Blend().handlers()
    found: dict[Any, dict[str, Any]] = {}
    for name, at, said in events:
        for row in read(handlers[name](0, at, "r", said)):
            found.setdefault(row.get("span_id", (name, at)), {}).update(row)
    return list(found.values())


def test_a_lookup_finds_a_prefix_and_more() -> None:
    said = {"requested_tokens": 512, "hit_tokens": 384, "prefix_hit_tokens": 128, "stale_chunks": 1}
    (found,) = played(("cb.lookup.start", 10, {"num_tokens": 600}), ("cb.lookup.end", 30, said))
    assert (found["op"], found["request_id"], found["start_ns"], found["end_ns"]) == ("lookup", "r", 10, 30)
    assert (found["found_tokens"], found["attributes.hit_tokens"], found["outcome"]) == (128, 384, "partial")


def test_retrieves_of_two_workers_stay_apart_and_say_which_failed() -> None:
    good, bad = played(
        ("cb.retrieve.start", 10, {"worker_id": 0, "num_chunks": 2}),
        ("cb.retrieve.start", 11, {"worker_id": 1, "num_chunks": 2}),
        ("cb.retrieve.end", 20, {"worker_id": 0, "success": 1}),
        ("cb.retrieve.end", 21, {"worker_id": 1, "success": 0}),
    )
    assert (good["op"], good["tier_from"], good["tier_to"]) == ("load", "host", "gpu")
    assert [(row["start_ns"], row["end_ns"], row["outcome"]) for row in (good, bad)] == [
        (10, 20, "ok"), (11, 21, "failed"),
    ]  # fmt: skip


def test_parts_are_intervals_without_an_operation() -> None:
    (found,) = played(("cb.prefix_lookup.start", 10, {}), ("cb.prefix_lookup.end", 12, {"prefix_chunks": 3}))
    assert (found["name"], found["end_ns"], found["attributes.prefix_chunks"]) == ("cb.prefix_lookup", 12, 3)
    assert "op" not in found


def test_a_retrieve_that_scattered_nothing_says_why() -> None:
    (found,) = played(("cb.retrieve.noop", 10, {"reason": "no_rope", "dropped_matches": 4}))
    assert (found["outcome"], found["attributes.reason"]) == ("skipped", "no_rope")


@pytest.mark.parametrize("name", ["cb.lookup.end", "cb.scatter.end"])
def test_an_end_whose_start_was_dropped_keeps_its_numbers(name: str) -> None:
    (found,) = played((name, 10, {"hit_tokens": 3, "success": 1}))
    assert (found["name"], found["attributes.hit_tokens"]) == (name, 3)
