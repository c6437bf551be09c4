"""visibility against plain loops over events, routes and counters; and what changes nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.visibility import visibility
from tests.property.oracle_visibility import Row, counted, places
from tests.property.test_exposure import cases
from tests.rows import write_run

Tables = dict[str, list[Row]]
APPLIED = "dynamo_component_kv_cache_events_applied"
NAMES = (APPLIED, "dynamo_component_kv_cache_event_warnings",
         "dynamo_component_kv_publisher_engines_dropped_events", "dynamo_component_requests")  # fmt: skip
BLOCKS = ("device_blocks", "host_pinned_blocks", "disk_blocks")
TIERS = ("gpu", "host", "disk")
EVIDENCE = st.sampled_from((None, "native", "native", "predicted"))


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value, or null."""
    return st.one_of(values, values, st.none())


event = st.fixed_dictionaries(
    {
        "event": st.sampled_from(("stored", "stored", "written", "published", "removed", "locked")),
        "tier": st.sampled_from(("host", "host", "host", *TIERS, None)),
        "component": st.sampled_from((None, "vllm.gpu", "vllm.gpu", "vllm.gpu", "dynamo.host_pinned")),
        "key_space": st.sampled_from(("vllm:s:m", "vllm:t:m", "dynamo:e:m")),
        "key": st.sampled_from(("a", "a", "b", None)),
        "evidence": EVIDENCE,
        "time_ns": st.integers(0, 9),
    }
)
numbers = st.sampled_from(("0", "0", "3", "7", "many", "default weights"))
route = st.fixed_dictionaries(
    {
        "op": st.sampled_from(("route", "route", "route", "lookup")),
        "start_ns": st.integers(0, 9),
        "evidence": EVIDENCE,
        "found_by_tier": maybe(
            st.lists(
                st.tuples(st.sampled_from(TIERS), st.integers(0, 2)), max_size=2, unique_by=lambda e: e[0]
            )
        ),
        "attributes": st.lists(
            st.tuples(st.sampled_from((*BLOCKS, "worker_id")), numbers), max_size=4, unique_by=lambda e: e[0]
        ),
    }
)
labels = st.fixed_dictionaries(
    {"status": st.sampled_from(("ok", "ok", "parent_block_not_found")), "kvtrace.page": st.sampled_from("01")}
)
sample = st.fixed_dictionaries(
    {
        "name": st.builds(str.__add__, st.sampled_from((APPLIED, *NAMES)), st.sampled_from(("", "_total"))),
        "process": st.sampled_from(("f", "g")),
        "labels": labels.map(lambda of: sorted(of.items())),
        "value": maybe(st.sampled_from((0.0, 1.0, 5.0, 48.0))),
        "kind": st.just("counter"),
        "time_ns": st.integers(0, 9),
    }
)


def some(rows: st.SearchStrategy[Row], least: int, most: int) -> st.SearchStrategy[list[Row]]:
    """Mostly so many that they meet; sometimes none."""
    several = st.lists(rows, min_size=least, max_size=most)
    return st.one_of(several, several, several, st.just([]))


def runs() -> st.SearchStrategy[Tables]:
    """Events of keys, choices of routers, samples of their pages."""
    return st.fixed_dictionaries(
        {"block": some(event, 12, 24), "span": some(route, 1, 4), "metric": some(sample, 8, 16)}
    )


def answer(tables: Tables) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return visibility(write_run(Path(folder) / "run", None, **tables)).to_dicts()


@given(runs())
@cases(48)
def test_the_matrix_is_what_plain_loops_count(run: Tables) -> None:
    rows = answer(run)
    want = places(run) | counted(run)
    assert {(row["backend"], row["tier"]) for row in rows} == set(want)
    for row in rows:
        assert row == want[row["backend"], row["tier"]]
    for row in rows:
        assert (row["visible"] == "unknown") == (row["evidence"] is None)
        assert (row["published_keys"] or 0) <= (row["keys"] or 0)
        assert (row["routes_counting"] or 0) <= (row["routes"] or 0)


@given(runs(), st.randoms(use_true_random=False))
@cases(16)
def test_order_repetition_and_forecasts_show_no_more_to_a_router(run: Tables, order: Any) -> None:
    """All is recorded in another order, keys are stored once more, pages fetched once more."""
    again = [row for row in run["block"] if row["event"] != "published"]
    guess = {"op": "route", "evidence": "predicted", "found_by_tier": [("disk", 9)], "start_ns": 1}
    more = {
        "block": run["block"] + again + [row | {"evidence": "predicted"} for row in run["block"]],
        "span": [*run["span"], guess],
        "metric": run["metric"] * 2,
    }
    for rows in more.values():
        order.shuffle(rows)
    assert answer(more) == answer(run)


@given(runs())
@cases(16)
def test_one_more_published_key_makes_its_tier_visible_and_no_other(run: Tables) -> None:
    told = {
        "event": "published",
        "tier": "host",
        "component": "engine.host",
        "key_space": "vllm:s:m",
        "key": "z",
    }
    before = {(row["backend"], row["tier"]): row for row in answer(run)}
    after = {(row["backend"], row["tier"]): row for row in answer(run | {"block": [*run["block"], told]})}
    assert after.pop(("engine.host", "host"))["visible"] == "yes"
    before.pop(("router", "host"), None)  # it has keys of that tier now, and names them
    assert {name: row for name, row in after.items() if name != ("router", "host")} == before
