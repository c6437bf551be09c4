"""Dynamo's router log: all lines of a request are one choice (others.md 1.3, 1.4).

Queried | Formula Formula | Selected | Best        start .. end of the first choice
                          | Selected | Best        attempt 2
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources.dynamo import router_log
from kvtrace.sources.dynamo.router_log import moment
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded, given, recorded

A, B = 2**63 + 1, 7
T = 1_795_963_511_000_000_000


def line(message: str, micros: int = 0, request: str = "r", **fields: Any) -> dict[str, Any]:
    return {"time": f"2026-11-29T14:45:11.{micros:06d}Z", "level": "DEBUG", "target": "dynamo_kv_router::x",
            "message": message, "request_id": request, **fields}  # fmt: skip


def selected(micros: int = 2, **fields: Any) -> dict[str, Any]:
    return line("Selected worker", micros, **{
        "disk_blocks": 0, "dp_rank": "0", "host_pinned_blocks": 0, "logit": 42.5, "router_mode": "kv",
        "worker_id": A, "worker_type": "decode", **fields,
    })  # fmt: skip


def best(overlap: int, total: int, micros: int = 3, **fields: Any) -> dict[str, Any]:
    named = {"dp_rank": 0, "worker_id": A, "trace_id": f"{5:032x}", "span_id": f"{6:016x}"}
    return line(f"[ROUTING] Best: worker_{A} dp_rank=0 with {overlap}/{total} blocks overlap", micros,
                overlap_blocks=overlap, total_blocks=total, **(named | fields))  # fmt: skip


def formula(worker: int, effective: float, micros: int = 1) -> dict[str, Any]:
    said = f"Formula for worker_id={worker} dp_rank=0 with {effective:.2f} effective cached blocks: 1 = 1"
    return line(said, micros)


def size(block: int = 16, isl: int = 541) -> dict[str, Any]:
    return line("[ROUTING_INPUT] request local hashes", 0, block_size=block, isl_tokens=isl, num_blocks=33,
                local_hashes=[1, 2])  # fmt: skip


def one(*records: dict[str, Any]) -> dict[str, Any]:
    found = given(router_log, *records)
    assert found.losses == []
    (row,) = found.rows["span"]
    return row


def test_the_lines_of_a_request_are_one_route() -> None:
    row = one(formula(A, 3), formula(B, 9), selected(), best(3, 34))
    assert (row["op"], row["observer"], row["request_id"], row["attempt"]) == ("route", "router", "r", 1)
    assert (row["start_ns"], row["end_ns"]) == (T + 1000, T + 3000)
    assert (row["engine"], row["trace_id"], row["parent_span_id"]) == (str(A), f"{5:032x}", 6)
    said = dict(row["attributes"])
    assert (said["best_available_blocks"], said["candidates"], said["logit"]) == ("9.0", "2", "42.5")


def test_a_second_choice_is_a_second_attempt() -> None:
    rows = given(router_log, selected(1), selected(2), best(3, 34), selected(4, request_id="other")).rows[
        "span"
    ]
    assert [(row["request_id"], row["attempt"]) for row in rows] == [("r", 1), ("r", 2), ("other", 1)]


def test_choices_of_several_requests_may_be_interleaved() -> None:
    rows = given(router_log, selected(1), selected(2, request_id="s", worker_id=B), best(3, 34, 5),
                 best(4, 30, 6, request_id="s", worker_id=B)).rows["span"]  # fmt: skip
    assert [(row["request_id"], row["engine"]) for row in rows] == [("r", str(A)), ("s", str(B))]


@pytest.mark.parametrize(
    ("overlap", "host", "disk", "device"),
    [(34, 0, 0, 34), (25, 33, 0, 0), (26, 30, 0, 4), (24, 30, 4, 0), (0, 0, 0, 0)],
)
def test_blocks_of_the_device_are_what_the_default_weights_leave(
    overlap: int, host: int, disk: int, device: int
) -> None:
    row = one(size(), selected(host_pinned_blocks=host, disk_blocks=disk), best(overlap, 34))
    assert dict(row["found_by_tier"]) == {"gpu": 16 * device, "host": 16 * host, "disk": 16 * disk}
    assert row["found_tokens"] == 16 * (device + host + disk)
    assert row["predicted_tokens"] == int(16 * (device + 0.75 * host + 0.25 * disk))
    assert ("device_blocks_basis" in dict(row["attributes"])) is bool(host + disk)


def test_blocks_of_the_device_are_unknown_where_the_weights_cannot_be_the_default_ones() -> None:
    for lines in (
        [selected(host_pinned_blocks=33), best(33, 34)],  # credited in full: 8 more would not fit
        [selected(host_pinned_blocks=33), best(16, 34)],  # credited by half
        [formula(A, 20.3), selected(host_pinned_blocks=20), best(20, 34)],
    ):
        row = one(size(), *lines)
        assert "gpu" not in dict(row["found_by_tier"])
        assert "found_tokens" not in row
        assert "device_blocks" not in dict(row["attributes"])
        assert row["predicted_tokens"] > 0


def test_without_the_size_of_a_block_there_are_blocks_and_no_tokens() -> None:
    row = one(selected(host_pinned_blocks=33), best(25, 34))
    assert {"found_tokens", "found_by_tier", "predicted_tokens", "requested_tokens"} & set(row) == set()
    said = dict(row["attributes"])
    assert (said["host_pinned_blocks"], said["effective_blocks"], said["device_blocks"]) == (
        "33",
        "24.75",
        "0",
    )


def test_the_choice_alone_is_a_route() -> None:
    row = one(selected(dp_rank="1"))
    assert (row["start_ns"], row["end_ns"], row["engine"]) == (T + 2000, T + 2000, f"{A}/1")
    assert "effective_blocks" not in dict(row["attributes"])


def test_tiers_that_were_asked_are_attributes() -> None:
    asked = line(
        "Queried lower-tier indexer", 0, storage_tier="HostPinned", queried_workers=2, matched_workers=1
    )
    row = one(asked, selected())
    assert row["start_ns"] == T
    said = dict(row["attributes"])
    assert said["lower_tier.HostPinned.queried_workers"] == "2"
    assert said["lower_tier.HostPinned.matched_workers"] == "1"


def test_the_callers_name_is_an_alias() -> None:
    found = given(router_log, selected(), best(1, 2, x_request_id="tier-r0-p0"))
    assert [(row["alias"], row["kind"], row["request_id"]) for row in found.rows["alias"]] == [
        ("tier-r0-p0", "client", "r")
    ]


def test_lines_of_other_things_are_counted() -> None:
    found = given(router_log, line("Starting"), selected(), line("Stopping"))
    assert found.notes == ["log lines of other things, left out: 2"]
    assert len(found.rows["span"]) == 1


@pytest.mark.parametrize(
    "bad",
    [
        b"plain text",
        b'{"message": 4}',
        json.dumps(selected(time="yesterday")).encode(),
        json.dumps(selected(request_id=None)).encode(),
        json.dumps(best(1, 2, request_id="x", worker_id=None)).encode(),
    ],
)
def test_a_bad_line_costs_only_itself(bad: bytes) -> None:
    found = decoded(router_log, bad + b"\n" + json.dumps(selected()).encode())
    assert (found.lost(), len(found.rows["span"])) == ({"undecodable": 1}, 1)


def test_requests_that_are_too_many_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_log, "MAX_OPEN", 1)
    rows = given(router_log, selected(), selected(3, request_id="s"), best(1, 2, 4)).rows["span"]
    assert [(row["request_id"], row["attempt"]) for row in rows] == [("r", 1), ("s", 1), ("r", 2)]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T00:00:01.000000001Z", 10**9 + 1),
        ("1970-01-01T01:00:01.5+01:00", 15 * 10**8),
        ("1970-01-01T00:00:01.25", 125 * 10**7),
        ("1970-01-01T00:00:00Z", None),
        ("1969-01-01T00:00:00Z", None),
        ("9999-01-01T00:00:00Z", None),
        ("soon", None),
        (12, None),
    ],
)
def test_a_moment_is_exact_to_the_nanosecond(text: Any, ns: int | None) -> None:
    assert moment(text) == ns


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (json.dumps(selected()).encode(), True),
        (json.dumps(line("x") | {"target": "h2"}).encode() + b"\n" + json.dumps(selected()).encode(), True),
        (json.dumps(line("x") | {"target": "h2"}).encode(), False),
        (b'{"time": "x", "message": "y"}', False),
        (b"", False),
    ],
)
def test_a_log_is_known_by_the_parts_of_dynamo_in_it(head: bytes, is_one: bool) -> None:  # noqa: FBT001 - a table
    assert router_log.looks_like(head) is is_one


def sample(name: str) -> Found:
    return recorded(router_log, SAMPLES / name / "raw" / "router-log.jsonl")


def test_a_router_with_the_event_plane_sees_33_host_blocks_and_credits_24_75() -> None:
    routes = [dict(row["attributes"]) for row in sample("dynamo-eventplane").rows["span"]]
    seen = [(int(said["host_pinned_blocks"]), float(said["effective_blocks"])) for said in routes]
    assert seen == [(0, 0.0)] * 4 + [(33, 24.75), (33, 24.75), (35, 26.25), (0, 31.0)] * 2


def test_a_router_without_it_sees_no_host_block() -> None:
    routes = sample("dynamo-hosttier").rows["span"]
    assert len(routes) == 12
    assert {dict(row["attributes"])["host_pinned_blocks"] for row in routes} == {"0"}


def test_every_candidate_of_a_debug_log_is_weighed() -> None:
    found = sample("dynamo-1.5.1")
    assert {dict(row["attributes"])["candidates"] for row in found.rows["span"]} == {"2"}
    assert (found.losses, found.notes, len(found.rows["alias"])) == ([], [], 9)


@pytest.mark.parametrize("effective", [".", "1.2.3", "9" * 400, "\u0661"])
def test_effective_blocks_that_are_no_number_are_not_known(effective: str) -> None:
    said = line(f"Formula for worker_id={A} dp_rank=0 with {effective} effective cached blocks", 1)
    row = one(size(), said, selected())
    assert row.get("predicted_tokens") is None
    assert "effective_blocks" not in dict(row["attributes"])


@pytest.mark.parametrize("overlap", [1e300, -5.0, 2**63 - 1])
def test_a_forecast_that_is_no_count_of_tokens_is_null(overlap: float) -> None:
    row = one(size(), selected(host_pinned_blocks=None), {**best(0, 34), "overlap_blocks": overlap})
    assert row.get("predicted_tokens") is None


def test_blocks_whose_tokens_exceed_64_bits_are_not_tokens() -> None:
    row = one(size(2**62), selected(host_pinned_blocks=2**61, disk_blocks=0), best(2**61, 2**62))
    assert row.get("found_tokens") is None
    assert "host" not in dict(row.get("found_by_tier") or ())
