from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.coverage import coverage
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path


def counted(path: Path, **tables: Any) -> dict[str, tuple[int, int | None]]:
    frame = coverage(write_run(path / "run", **tables))
    return {row["fact"]: (row["rows"], row["of_rows"]) for row in frame.to_dicts()}


def test_an_empty_run_names_every_fact_as_not_observed(tmp_path: Path) -> None:
    frame = coverage(write_run(tmp_path / "run"))
    assert frame.height > 20
    assert not frame["observed"].any()
    assert frame["rows"].to_list() == [0] * frame.height
    assert frame["fact"].n_unique() == frame.height
    assert (frame["instrument"] != "").all()
    assert (frame["consequence"] != "").all()


def test_every_fact_has_an_instrument_that_is_there(tmp_path: Path) -> None:
    frame = coverage(write_run(tmp_path / "run"))
    assert not frame.filter(frame["instrument"].str.contains("planned")).height


def test_requests_that_lack_a_fact_are_counted_beside_those_that_have_it(tmp_path: Path) -> None:
    spans = [
        {"op": "request", "request_id": "a", "start_ns": 0, "end_ns": 9, "first_token_ns": 5, "status": "ok"},
        {"op": "request", "request_id": "b", "start_ns": 0, "gpu_hit_tokens": 0, "selected_tokens": 0},
        {"op": "request", "request_id": "c", "start_ns": 0, "reported_cached_tokens": 0},
        {"op": "queue", "request_id": "a", "start_ns": 0, "end_ns": 1, "reason": "unknown"},
        {"op": "queue", "request_id": "a", "start_ns": 1, "end_ns": 2, "reason": "unknown"},
        {
            "op": "step", "span_id": 1, "start_ns": 2, "end_ns": 3,
            "members": [{"request_id": "b", "scheduled_tokens": 1}],
        },
        {"op": "step", "span_id": 2, "start_ns": 3, "end_ns": 4},
    ]  # fmt: skip
    keys = [{"request_id": "a", "key": "k", "position": 0}, {"request_id": "a", "key": "l", "position": 1}]
    facts = counted(tmp_path, span=spans, request_key=keys)
    assert facts["request_arrival"] == (3, 3)
    for fact in (
        "request_finish", "first_token", "request_status", "gpu_hit_tokens", "selected_tokens",
        "reported_cached_tokens", "queue_time", "request_in_steps", "request_keys",
    ):  # fmt: skip
        assert facts[fact] == (1, 3), fact
    assert facts["step_members"] == (1, 2)
    assert facts["queue_reason_and_blocks"] == (0, 2)


def test_capacity_without_its_blocks_is_no_true_reason(tmp_path: Path) -> None:
    reasons: list[tuple[str | None, int | None]] = [
        ("capacity", 7), ("capacity", None), ("remote_kv", None), ("unknown", None), (None, None),
    ]  # fmt: skip
    spans = [
        {"op": "queue", "request_id": "a", "reason": reason, "blocks": blocks} for reason, blocks in reasons
    ]
    assert counted(tmp_path, span=spans)["queue_reason_and_blocks"] == (2, 5)


def test_lookups_say_what_was_asked_found_and_where(tmp_path: Path) -> None:
    spans = [
        {"op": "lookup", "requested_tokens": 9, "found_tokens": 0, "found_by_tier": [("host", 0)]},
        {"op": "lookup", "requested_tokens": 9, "found_tokens": 4, "found_by_tier": []},
        {"op": "lookup", "requested_tokens": 9},
        {"op": "lookup"},
    ]
    facts = counted(tmp_path, span=spans)
    assert facts["lookup_asked_tokens"] == (3, 4)
    assert facts["lookup_found_tokens"] == (2, 4)
    assert facts["found_by_tier"] == (1, 4)


def test_a_transfer_that_several_observers_saw_counts_once(tmp_path: Path) -> None:
    seen = {
        "op": "load",
        "request_id": "a",
        "transfer_id": "t",
        "tier_from": "host",
        "tier_to": "gpu",
        "bytes": 8,
    }
    times = {"submit_ns": 0, "usable_ns": 9}
    spans = [
        {**seen, "observer": "worker", "start_ns": 0}, {**seen, "observer": "server", "start_ns": 0},
        {"op": "load", "request_id": "a", "tier_from": "disk", "tier_to": "host", **times},
        {"op": "load", "request_id": "a"},
        {"op": "store", "request_id": "a", "tier_from": "gpu", "tier_to": "host", "bytes": 8},
    ]  # fmt: skip
    facts = counted(tmp_path, span=spans)
    assert facts["loads_to_gpu"] == (1, None)
    assert facts["loads_between_tiers"] == (1, None)
    assert facts["load_submit_and_usable"] == (1, 3)
    assert facts["transfer_bytes"] == (2, 4)
    assert facts["stores"] == (1, None)


@pytest.mark.parametrize(
    ("fact", "row", "expected"),
    [
        ("engine_waits", {"op": "wait"}, (1, None)),
        ("drop_reason", {"op": "drop", "reason": "unknown"}, (0, 1)),
        ("drop_reason", {"op": "drop", "reason": "no_room"}, (1, 1)),
        ("gpu_blocks_held", {"op": "hold"}, (0, 1)),
        ("gpu_blocks_held", {"op": "hold", "blocks": 0}, (1, 1)),
        ("locks", {"op": "lock_hold"}, (1, None)),
        ("cache_health", {"op": "health", "reason": "down"}, (1, None)),
    ],
)
def test_a_span_fills_its_fact(
    fact: str, row: dict[str, Any], expected: tuple[int, int | None], tmp_path: Path
) -> None:
    assert counted(tmp_path, span=[row])[fact] == expected


def test_a_lock_may_be_a_span_or_a_key_event(tmp_path: Path) -> None:
    events = [
        {"event": "locked", "key": "k"},
        {"event": "unlocked", "key": "k"},
        {"event": "stored", "key": "k"},
    ]
    facts = counted(tmp_path, block=events)
    assert facts["locks"] == (2, None)
    assert facts["key_events"] == (3, None)


def test_what_a_load_restored_by_group_of_layers_is_counted_apart_from_loads(tmp_path: Path) -> None:
    facts = counted(tmp_path, span=[{"name": "restored_state"}, {"name": "restored_state", "op": "load"}])
    assert facts["restored_by_group"] == (1, None)


def test_metrics_are_counted(tmp_path: Path) -> None:
    assert counted(tmp_path, metric=[{"name": "m", "value": 1.0}])["metrics"] == (1, None)
