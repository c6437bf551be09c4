"""Dynamo's event plane, as a tap writes it down (others.md 1.2 b).

device stored [1 2] -> host_pinned stored [1 2] -> device removed [1 2] -> device stored [1 2]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources.dynamo import event_plane, request_trace
from tests.samples import SAMPLES
from tests.unit.sources.given import decoded, given, recorded

MS = 1_000_000
W = 2**63 + 9


def message(
    topic: str, payload: Any, seq: int | None = 0, ms: int = 100, publisher: str = "p"
) -> dict[str, Any]:
    envelope = {"publisher_id": 1, "sequence": seq, "published_at": ms, "topic": topic, "payload": payload}
    return {"t": 0.2, "ep": "tcp://127.0.0.1:1", "topic": topic, "publisher": publisher, "seq": seq,
            "envelope": envelope}  # fmt: skip


def event(data: Any, tier: str = "device", **changed: Any) -> dict[str, Any]:
    return {"worker_id": W, "storage_tier": tier, "residency_domain": "worker",
            "event": {"event_id": 1, "data": data, "dp_rank": 0}, **changed}  # fmt: skip


def stored(*hashes: Any, parent: int | None = None) -> dict[str, Any]:
    blocks = [{"block_hash": each, "tokens_hash": 5, "mm_extra_info": None} for each in hashes]
    return {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}}


def blocks(*events: Any) -> list[dict[str, Any]]:
    found = given(event_plane, message("kv-events", list(events)))
    assert found.losses == []
    return found.rows["block"]


def test_a_stored_event_is_a_chain_of_blocks() -> None:
    rows = blocks(event(stored(1, 2**64 - 1, parent=7)))
    assert [(row["event"], row["key"], row["parent_key"]) for row in rows] == [
        ("stored", f"{1:016x}", f"{7:016x}"), ("stored", "f" * 16, f"{1:016x}"),
    ]  # fmt: skip
    assert {
        (row["time_ns"], row["key_space"], row["engine"], row["seq"], row["locality"]) for row in rows
    } == {(100 * MS, "dynamo:engine:unknown", str(W), 0, "local")}
    assert "tokens" not in rows[0]  # no event says how large a block is


@pytest.mark.parametrize(
    ("medium", "tier", "component"),
    [
        ("device", "gpu", "dynamo.device"),
        ("host_pinned", "host", "dynamo.host_pinned"),
        ("disk", "disk", "dynamo.disk"),
        ("external", "unknown", "dynamo.external"),
        ("hologram", "unknown", None),
        (None, "unknown", None),
    ],
)
def test_a_tier_is_the_medium_and_its_own_name_stays(medium: Any, tier: str, component: str | None) -> None:
    (row,) = blocks(event(stored(1), medium))
    assert (row["tier"], row.get("medium_raw"), row.get("component")) == (tier, medium, component)


def test_removed_and_cleared_events_are_rows_too() -> None:
    rows = blocks(
        event({"removed": {"block_hashes": [1, 2]}}, "host_pinned"),
        event("cleared"),
        event({"cleared": None}),
    )
    assert [(row["event"], row.get("key")) for row in rows] == [
        ("removed", f"{1:016x}"), ("removed", f"{2:016x}"), ("cleared", None), ("cleared", None),
    ]  # fmt: skip


def test_an_event_that_nobody_knows_is_kept_without_its_kind() -> None:
    found = given(event_plane, message("kv-events", [event({"moved": {}}), event("frozen")]))
    assert [("event" in row, row["reason"]) for row in found.rows["block"]] == [
        (False, "moved"),
        (False, "frozen"),
    ]
    assert found.notes == ["events that this version does not know, kept without their kind: 2"]


def test_a_data_parallel_rank_is_an_engine_of_its_own() -> None:
    changed = {"event": {"data": stored(1), "dp_rank": 3}}
    assert blocks(event(None, **changed))[0]["engine"] == f"{W}/3"


def test_hashes_of_tokens_are_counted_and_dropped() -> None:
    assert given(event_plane, message("kv-events", [event(stored(1, 2))])).content == {"tokens_hash": 2}


def test_an_unreadable_key_breaks_the_chain_and_is_counted() -> None:
    found = given(event_plane, message("kv-events", [event(stored(1, "two", 3))]))
    assert [(row["key"], row.get("parent_key")) for row in found.rows["block"]] == [
        (f"{1:016x}", None), (f"{3:016x}", None),
    ]  # fmt: skip
    assert found.lost() == {"undecodable": 1}


def metric(seq: int, publisher: str = "p", ms: int | None = None) -> dict[str, Any]:
    load = {"worker_id": W, "dp_rank": 0, "kv_used_blocks": seq, "active_decode_blocks": None}
    return message("kv_metrics", load, seq, ms or 100 + seq, publisher)


def test_numbers_of_messages_that_are_missing_are_a_loss_with_its_times() -> None:
    found = given(event_plane, metric(0), metric(1), metric(4), metric(0, "q"))
    (loss,) = found.losses
    assert (loss.cause, loss.count, loss.from_ns, loss.to_ns) == ("sequence_gap", 2, 101 * MS, 104 * MS)


def test_a_tap_that_comes_late_could_not_have_had_what_came_before() -> None:
    found = given(event_plane, metric(5))
    assert found.losses == []
    assert any("begins after the publisher's first message" in note for note in found.notes)


def test_a_message_that_came_before_counts_once() -> None:
    found = given(event_plane, metric(0), metric(0), metric(1), metric(2), metric(1))
    assert ([row["value"] for row in found.rows["metric"]], found.lost()) == (
        [0.0, 1.0, 2.0],
        {"duplicate": 2},
    )


def test_a_publisher_that_begins_anew_has_lost_nothing() -> None:
    again = [
        message("kv_metrics", {"worker_id": W, "kv_used_blocks": n}, seq=n, ms=500 + n) for n in range(2)
    ]
    found = given(event_plane, metric(0), metric(1), *again)
    assert (len(found.rows["metric"]), found.losses) == (4, [])


def test_metrics_are_gauges_of_a_worker_and_null_is_no_sample() -> None:
    assert given(event_plane, metric(0)).rows["metric"] == [
        {"time_ns": 100 * MS, "name": "dynamo.kv_metrics.kv_used_blocks", "kind": "gauge",
         "labels": {"worker_id": str(W), "dp_rank": "0"}, "value": 0.0}
    ]  # fmt: skip


def test_a_forward_pass_is_its_numbers_by_dotted_names() -> None:
    """Drawn from others.md 1.2 b: the recorded runs have none."""
    passed = {
        "worker_id": W,
        "scheduled_requests": {"num_prefill_requests": 2, "hashes": [1]},
        "wall_time": 0.5,
    }
    rows = given(event_plane, message("forward-pass-metrics", passed)).rows["metric"]
    assert [(row["name"], row["value"]) for row in rows] == [
        ("dynamo.forward_pass.scheduled_requests.num_prefill_requests", 2.0),
        ("dynamo.forward_pass.wall_time", 0.5),
    ]


def test_series_beyond_belief_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_plane, "MAX_SERIES", 1)
    many = {f"n{number}": number for number in range(200)}
    found = given(event_plane, metric(0), metric(1), message("kv_metrics", many, 2))
    assert (len(found.rows["metric"]), found.lost()) == (2, {"undecodable": 200})


def test_what_befalls_a_request_is_a_point_without_an_operation() -> None:
    done = {"request_id": "r", "worker": {"worker_id": W, "dp_rank": 0}, "data": "MarkPrefillCompleted",
            "router_id": 4, "lora_name": None}  # fmt: skip
    (row,) = given(event_plane, message("active_sequences_events", {"events": [done]})).rows["span"]
    assert (row["name"], "op" in row, row["request_id"], row["id_kind"]) == (
        "MarkPrefillCompleted", False, "r", "internal",
    )  # fmt: skip
    assert (row["start_ns"], row["end_ns"], row["engine"]) == (100 * MS, 100 * MS, str(W))


def test_a_topic_that_nobody_knows_is_kept_without_an_operation() -> None:
    found = given(event_plane, message("weather", {"rain": 1, "said": "text"}))
    assert [(row["name"], "op" in row, dict(row["attributes"])) for row in found.rows["span"]] == [
        ("weather", False, {"rain": "1.0"})
    ]
    assert found.notes == ["messages of topics that this version does not know, kept without op: 1"]


@pytest.mark.parametrize(
    "bad",
    [
        b"no json",
        b'{"t": 1, "n": 4, "frames": []}',
        json.dumps(message("kv-events", None)).encode(),
        json.dumps(message("kv-events", [event(None)])).encode(),
        json.dumps(message("active_sequences_events", {"events": [{"data": "x"}]})).encode(),
        json.dumps({**message("kv-events", []), "t": None, "envelope": {"payload": []}}).encode(),
    ],
)
def test_a_bad_message_costs_only_itself(bad: bytes) -> None:
    found = decoded(event_plane, bad + b"\n" + json.dumps(metric(0)).encode())
    assert (found.lost(), len(found.rows["metric"])) == ({"undecodable": 1}, 1)


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (json.dumps(metric(0)).encode(), True),
        (b'{"t": 1, "discovery": {"type": "EventChannel", "topic": "kv-events"}}\n', True),
        (b'{"topic": "", "seq": 0, "ts": 1, "events": []}', False),
        (b'{"t": 1, "frames": ["", "00"], "topic": "", "payload": [1, [], 0]}', False),
        (b"", False),
    ],
)
def test_a_tap_is_known_by_its_first_line(head: bytes, is_one: bool) -> None:  # noqa: FBT001 - a table
    assert event_plane.looks_like(head) is is_one


RAW = SAMPLES / "dynamo-eventplane" / "raw"


def test_a_prompt_moves_from_the_device_to_the_host_and_back() -> None:
    """33 blocks, the copy to the host done about 108 ms later (others.md 1.7)."""
    found = recorded(event_plane, RAW / "event-plane-zmq.jsonl")
    assert found.losses == []
    first = found.rows["block"][0]["key"]
    seen = [(row["event"], row["tier"], row["time_ns"]) for row in found.table("block", key=first)]
    assert [(event, tier) for event, tier, _ in seen[:4]] == [
        ("stored", "gpu"), ("stored", "host"), ("removed", "gpu"), ("stored", "gpu"),
    ]  # fmt: skip
    assert 105 * MS <= seen[1][2] - seen[0][2] <= 112 * MS
    for event, tier, time in seen[:2]:
        assert len(found.table("block", event=event, tier=tier, time_ns=time)) == 33


def test_keys_of_blocks_are_those_that_requests_asked_for() -> None:
    stored = {
        row["key"]
        for row in recorded(event_plane, RAW / "event-plane-zmq.jsonl").table("block", event="stored")
    }
    asked = recorded(request_trace, RAW / "request-trace.jsonl").rows["request_key"]
    whole = [row for row in asked if row["tokens"] == 16]
    assert {row["key"] for row in whole} <= stored
    assert {row["key_space"] for row in asked} == {"dynamo:engine:unknown"}
    assert len(whole) < len(asked)  # the last block of a prompt is partial: its key is never stored


def test_every_request_of_the_run_is_named_once_by_its_router() -> None:
    found = recorded(event_plane, RAW / "event-plane-zmq.jsonl")
    requests = recorded(request_trace, RAW / "request-trace.jsonl").table("span", op="request")
    assert sorted(row["request_id"] for row in found.rows["span"]) == sorted(
        row["request_id"] for row in requests
    )
