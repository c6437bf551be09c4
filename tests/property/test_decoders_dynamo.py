"""Laws of the decoders of responses and of Dynamo: hostile bytes cost only themselves, cuts the rest.

Round trips: what was drawn comes back, whatever else the records say.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrace.schema.tables import TABLES
from kvtrace.schema.vocabulary import BLOCK_EVENTS, CLOSED, LOSS_CAUSES
from kvtrace.sources import openai_responses
from kvtrace.sources.dynamo import event_plane, replay_report, request_trace, router_log
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded
from tests.unit.sources.given import given as lines_given

RECORDED = {
    openai_responses: ("dynamo-hosttier", "responses.jsonl"),
    request_trace: ("dynamo-hosttier", "request-trace.jsonl"),
    router_log: ("dynamo-eventplane", "router-log.jsonl"),
    event_plane: ("dynamo-eventplane", "event-plane-zmq.jsonl"),
    replay_report: ("dynamo-replay", "replay-report.json"),
}
MODULES = pytest.mark.parametrize("module", RECORDED, ids=lambda module: module.FORMAT)
EXTREME = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from([[], {}, [None], {"": {}}, 2**63 - 1, 2**63, 2**64 - 1, 9.2e18, -0.0, 1e308, "\0"]),
    st.just("x" * 600),
)  # fmt: skip
JSON = st.recursive(EXTREME, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["id", "event", "request", "usage", "seq", "topic", "message", "x"]), inner, max_size=3),
    max_leaves=8)  # fmt: skip
HARD = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def recorded_lines(module: Any) -> list[bytes]:
    sample, name = RECORDED[module]
    content = (SAMPLES / sample / "raw" / name).read_bytes()
    if module is replay_report:
        document = json.loads(content)
        return [json.dumps(document | {"per_request": document["per_request"][:3]}).encode()]
    return content.splitlines()[:24]


LINES = {module: recorded_lines(module) for module in RECORDED}


def is_sound(found: Found) -> None:
    """Rows of the schema's columns and words, losses that say how many, nothing that is not bounded."""
    for table, rows in found.rows.items():
        columns = {column.name for column in TABLES[table]} | {"id_kind"}
        for row in rows:
            assert set(row) <= columns
            for column, words in CLOSED.items():
                assert row.get(column) is None or row[column] in words
            if table == "span":
                assert row["start_ns"] > 0
                assert row.get("end_ns", row["start_ns"]) >= row["start_ns"]
                assert (
                    row["start_ns"] <= row.get("first_token_ns", row["start_ns"]) <= row.get("end_ns", 2**63)
                )
            if table == "block":
                assert row.get("event") in (None, *BLOCK_EVENTS)
    for loss in found.losses:
        assert loss.cause in LOSS_CAUSES
        assert loss.count > 0
    assert all(count > 0 for count in found.content.values())
    assert len(found.notes) < 60


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in list(inner)[:12] for place in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place."""
    if not path:
        return new
    found = copy.copy(value)
    found[path[0]] = put(value[path[0]], path[1:], new)
    return found


@MODULES
@HARD
@given(data=st.data())
def test_a_record_with_anything_anywhere_is_rows_or_losses(module: Any, data: st.DataObject) -> None:
    """What is wrong with one record costs no other: the last line is whole, and its rows are there."""
    lines = LINES[module]
    record = json.loads(data.draw(st.sampled_from(lines)))
    for _ in range(data.draw(st.integers(1, 3))):
        record = put(record, data.draw(st.sampled_from(places(record))), data.draw(JSON))
    found = decoded(module, json.dumps(record).encode() + b"\n")
    is_sound(found)
    module.looks_like(json.dumps(record).encode())


@MODULES
@HARD
@given(data=st.data(), junk=st.lists(st.binary(max_size=40), max_size=4))
def test_lines_of_anything_cost_only_themselves(module: Any, data: st.DataObject, junk: list[bytes]) -> None:
    lines = list(LINES[module])
    whole = decoded(module, b"\n".join(lines))
    bad = [b"\xff" + each.replace(b"\n", b"") for each in junk]
    if module is replay_report:
        is_sound(decoded(module, b"".join([*bad, *lines])))
        return
    for each in bad:
        lines.insert(data.draw(st.integers(0, len(lines))), each)
    found = decoded(module, b"\n".join(lines), piece=data.draw(st.integers(1, 5000)))
    assert found.rows == whole.rows
    assert found.lost().get("undecodable", 0) == len(bad)


@MODULES
@HARD
@given(cut=st.integers(0, 20_000), piece=st.integers(1, 4000))
def test_a_file_that_is_cut_keeps_what_came_before(module: Any, cut: int, piece: int) -> None:
    content = b"\n".join(LINES[module])[:cut]
    found = decoded(module, content, piece=piece)
    is_sound(found)
    assert found.lost().get("undecodable", 0) <= 1
    assert set(found.lost()) <= {"undecodable", "unclean_end"}


HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6, unique=True)


@HARD
@given(hashes=HASHES, size=st.integers(1, 64), rest=st.integers(1, 64), cached=st.integers(0, 10**6))
def test_keys_and_tokens_of_a_request_come_back(hashes: list[int], size: int, rest: int, cached: int) -> None:
    length = (len(hashes) - 1) * size + min(rest, size)
    replay = {"trace_block_size": size, "input_length": length, "input_sequence_hashes": hashes}
    request = {"request_id": "r", "request_received_ms": 1, "input_tokens": length, "cached_tokens": cached,
               "replay": replay}  # fmt: skip
    record = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    found = lines_given(request_trace, record)
    keys = found.rows["request_key"]
    assert [int(row["key"], 16) for row in keys] == hashes
    assert sum(row["tokens"] for row in keys) == length == found.rows["span"][0]["prompt_tokens"]
    assert found.rows["span"][0]["predicted_tokens"] == cached


@HARD
@given(
    hashes=HASHES,
    parent=st.none() | st.integers(0, 2**64 - 1),
    tier=st.sampled_from(["device", "host_pinned"]),
)
def test_what_is_stored_and_removed_comes_back_as_a_chain(
    hashes: list[int], parent: int | None, tier: str
) -> None:
    stored = {"stored": {"parent_hash": parent, "blocks": [{"block_hash": each} for each in hashes]}}
    removed = {"removed": {"block_hashes": hashes}}
    payload = [{"worker_id": 1, "storage_tier": tier, "event": {"data": data}} for data in (stored, removed)]
    envelope = {"sequence": 0, "published_at": 5, "payload": payload}
    found = lines_given(event_plane, {"topic": "kv-events", "publisher": "p", "envelope": envelope})
    chain = [None if parent is None else f"{parent:016x}", *(f"{each:016x}" for each in hashes)]
    assert [(row["event"], row["key"], row.get("parent_key")) for row in found.rows["block"]] == [
        *(("stored", key, before) for before, key in pairwise(chain)),
        *(("removed", key, None) for key in chain[1:]),
    ]


@HARD
@given(numbers=st.lists(st.integers(0, 30), unique=True, min_size=1).map(sorted))
def test_messages_there_and_messages_missing_are_all_since_the_tap_began(numbers: list[int]) -> None:
    envelope = {"published_at": 9, "payload": {"n": 1}}
    records = [
        {"topic": "kv_metrics", "publisher": "p", "seq": number, "envelope": envelope} for number in numbers
    ]
    found = lines_given(event_plane, *records)
    assert len(found.rows["metric"]) == len(numbers)
    assert found.lost().get("sequence_gap", 0) == numbers[-1] + 1 - numbers[0] - len(numbers)


@HARD
@given(
    device=st.integers(0, 50), host=st.integers(0, 50), disk=st.integers(0, 50), size=st.integers(1, 256),
    log=st.sampled_from(["exact", "rounded"]),
)  # fmt: skip
def test_tokens_that_a_router_saw_come_back(device: int, host: int, disk: int, size: int, log: str) -> None:
    """With the default weights, whether the log has the formula or rounds to blocks."""
    effective = device + 0.75 * host + 0.25 * disk
    common = {"time": "2026-11-29T00:00:00Z", "request_id": "r", "worker_id": 1, "dp_rank": 0}
    said = [
        {"message": "[ROUTING_INPUT] request local hashes", "block_size": size, "isl_tokens": 9},
        {"message": f"Formula for worker_id=1 dp_rank=0 with {effective:.2f} effective cached blocks"},
        {"message": "Selected worker", "logit": 1, "host_pinned_blocks": host, "disk_blocks": disk},
        {"message": "[ROUTING] Best", "overlap_blocks": int(effective + 0.5), "total_blocks": 999},
    ]
    lines = [common | line for line in said if log == "exact" or "Formula" not in str(line["message"])]
    (row,) = lines_given(router_log, *lines).rows["span"]
    seen = {"gpu": device * size, "host": host * size, "disk": disk * size}
    if log == "exact":
        assert (row["found_by_tier"], row["found_tokens"]) == (seen, sum(seen.values()))
        assert row["predicted_tokens"] == int(effective * size)
    else:  # a half may be rounded either way
        assert abs(row["found_by_tier"]["gpu"] - seen["gpu"]) <= size
