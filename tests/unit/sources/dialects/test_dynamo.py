"""Dynamo's spans: a request, the choice of its worker, the worker's call (others.md 1.4).

http-request    10 |----------------------------------| 100     first token at 50
select_worker        12 |--| 15                                  the choice
route_request                16 |---------------------| 95      its row has the times of the choice
handle_payload                 17 |-------------------| 94
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources import otlp
from kvtrace.sources.dialects import to_words
from kvtrace.sources.otlp import json_lines
from tests.samples import SAMPLES
from tests.unit.importer.drawn import MS, Sent, body, span, word, words

UUID = "45a01fec-68d0-4edf-901e-f101d6a94d94"
W = str(2**63 + 1)
FRONT, WORKER = {"service.name": "frontend"}, {"service.name": "mocker"}


def http(start: float = 10, end: float | None = 100, **more: Any) -> Sent:
    named = {"target": "request_span", "uri": "/v1/chat/completions", "request_id": UUID, "busy_ns": 1,
             "x_request_id": "tier-r1-p0", "input_tokens": "542", "output_tokens": "8", "ttft_ms": "40.00",
             "decode_worker_id": W, "request.outcome": "success"} | more  # fmt: skip
    status = named.pop("status", 0)
    return span("http-request", start, end, {k: v for k, v in named.items() if v is not None}, resource=FRONT,
                id=7, scope="frontend", status=status)  # fmt: skip


def select(
    start: float = 12, end: float = 15, *, size: str | None = "16", parent: int = 7, **how: Any
) -> Sent:
    named = {"target": "dynamo_llm::kv_router::routing_host::kv", "busy_ns": 1}
    sent = span(
        "kv_router.select_worker", start, end, named, resource=FRONT, parent=parent, scope="frontend", **how
    )
    if size is not None:
        given = {"request_id": UUID, "isl_tokens": "542", "block_size": size}
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in given.items()]
        sent.span["events"] = [{"timeUnixNano": "1", "name": "[ROUTING_INPUT] request local hashes",
                                "attributes": attributes}]  # fmt: skip
    return sent


def route(start: float = 16, end: float = 95, **more: Any) -> Sent:
    named = {"target": "request_span", "busy_ns": 1, "request_id": UUID, "worker_id": W, "dp_rank": "0",
             "overlap_blocks": "25", "request.attempt": "0"} | more  # fmt: skip
    how = {key: named.pop(key) for key in ("trace", "parent") if key in named}
    return span("kv_router.route_request", start, end, named, resource=FRONT, scope="frontend",
                **{"parent": 7, **how})  # fmt: skip


def call(endpoint: str = "generate") -> Sent:
    named = {
        "target": "request_span",
        "busy_ns": 1,
        "request_id": UUID,
        "instance_id": W,
        "endpoint": endpoint,
    }
    return span("handle_payload", 17, 94, named, resource=WORKER, scope="mocker")


def by_name(*sent: Sent) -> dict[str, dict[str, Any]]:
    rows, lost = words(*sent)
    assert lost == []
    return {row["name"]: row | {"attributes": dict(row.get("attributes", ()))} for row in rows}


def names(*sent: Sent) -> list[tuple[str, str, str, str]]:
    found = to_words(json_lines.decode([json.dumps(body(*sent)).encode()]), "file").aliases
    return [] if found is None else found.select("alias", "kind", "request_id", "evidence").rows()


def test_a_request_has_its_tokens_first_token_and_worker() -> None:
    row = word(http())
    assert (row["op"], row["observer"], row["evidence"], row["attribution"]) == (
        "request", "api", "native", "request",
    )  # fmt: skip
    assert (row["request_id"], row["id_kind"], row["engine"]) == (UUID, "internal", W)
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (10 * MS, 50 * MS, 100 * MS)
    assert (row["prompt_tokens"], row["output_tokens"], row["status"]) == (542, 8, "ok")
    assert row["attributes"]["decode_worker_id"] == W


def test_counts_that_nobody_filled_are_not_observed() -> None:
    """1.5.1 writes 0 of both for /v1/completions; no prompt has 0 tokens."""
    row = word(http(input_tokens=0, output_tokens=0))
    assert (row.get("prompt_tokens"), row.get("output_tokens")) == (None, None)
    aborted = word(http(output_tokens=0))
    assert (aborted["prompt_tokens"], aborted["output_tokens"]) == (542, 0)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "ok"), ({"request.outcome": "cancelled"}, "aborted"), ({"request.outcome": "error"}, "error"),
        ({"request.outcome": "new"}, None), ({"request.outcome": None}, None), ({"status": 2}, "error"),
    ],
)  # fmt: skip
def test_an_outcome_is_a_status(more: dict[str, Any], status: str | None) -> None:
    assert word(http(**more)).get("status") == status


@pytest.mark.parametrize("ttft", ["90.01", "1e13", "nan", "-1"])
def test_a_first_token_that_cannot_be_is_not_believed(ttft: str) -> None:
    assert "first_token_ns" not in word(http(ttft_ms=ttft))


def test_calls_that_serve_no_request_have_no_request_id() -> None:
    """A GET of /v1/models and a router's query of a worker have ids too: nobody asked for tokens."""
    rows = by_name(http(target="system_span", uri="/v1/models"), call("worker_kv_query_source_1"))
    assert [("op" in row, "request_id" in row) for row in rows.values()] == [(False, False)] * 2
    assert rows["handle_payload"]["engine"] == "mocker"


def test_a_workers_call_is_known_by_its_request_and_worker() -> None:
    row = word(call())
    assert ("op" in row, row["request_id"], row["engine"], row["observer"]) == (False, UUID, W, "worker")


def test_a_route_is_the_choice_beside_it() -> None:
    row = by_name(http(), select(), route())["kv_router.route_request"]
    assert (row["op"], row["observer"], row["request_id"], row["engine"]) == ("route", "router", UUID, W)
    assert (row["start_ns"], row["end_ns"], row["attempt"]) == (12 * MS, 15 * MS, 1)
    assert (row["requested_tokens"], row["predicted_tokens"]) == (542, 25 * 16)
    assert row["attributes"]["overlap_blocks"] == "25"


@pytest.mark.parametrize(
    "other", [select(17, 18), select(parent=8), select(trace=2), select(12, 15, parent=0)]
)
def test_a_route_without_a_choice_beside_it_is_a_point(other: Sent) -> None:
    row = by_name(http(), other, route())["kv_router.route_request"]
    assert (row["start_ns"], row["end_ns"]) == (16 * MS, 16 * MS)
    assert {"requested_tokens", "predicted_tokens"} & set(row) == set()


def test_of_two_choices_the_last_before_the_route_counts() -> None:
    rows, _ = words(select(12, 15), route(16), select(40, 45), route(46, **{"request.attempt": "1"}))
    routes = [row for row in rows if row.get("op") == "route"]
    assert [(row["start_ns"], row["attempt"]) for row in routes] == [(12 * MS, 1), (40 * MS, 2)]


def test_a_choice_without_the_size_of_a_block_forecasts_no_tokens() -> None:
    row = by_name(select(size=None), route())["kv_router.route_request"]
    assert (row["start_ns"], "predicted_tokens" in row) == (12 * MS, False)


def test_a_data_parallel_rank_is_an_engine_of_its_own() -> None:
    assert word(route(dp_rank="3"))["engine"] == f"{W}/3"


def test_the_routers_other_spans_stay_without_an_operation() -> None:
    rows = by_name(select(), route())
    assert "op" not in rows["kv_router.select_worker"]
    assert rows["kv_router.select_worker"]["observer"] == "router"


def test_spans_of_these_names_from_others_are_left_alone() -> None:
    row = word(span("http-request", 1, 2, {"request_id": UUID}))
    assert {"op", "request_id", "observer"} & set(row) == set()


@pytest.mark.parametrize(
    ("more", "external"),
    [
        ({}, [f"chatcmpl-{UUID}"]),
        ({"uri": "/v1/completions"}, [f"cmpl-{UUID}"]),
        ({"uri": "/v1/embeddings"}, []),
        ({"request_id": "no uuid"}, []),
    ],
)
def test_a_request_has_the_callers_name_and_the_api_servers(
    more: dict[str, Any], external: list[str]
) -> None:
    internal = more.get("request_id", UUID)
    assert names(http(**more)) == [
        ("tier-r1-p0", "client", internal, "native"),
        *((name, "external", internal, "derived") for name in external),
    ]


def test_a_batch_without_requests_of_dynamo_has_no_other_names() -> None:
    assert names(select()) == names(http(target="system_span")) == names(span("x", 1, 2)) == []


def test_spans_of_a_recorded_run_are_its_twelve_requests_and_routes() -> None:
    rows: list[dict[str, Any]] = []
    aliases: set[str] = set()
    for batch in otlp.read(SAMPLES / "dynamo-eventplane" / "raw" / "otlp-traces.jsonl"):
        found = to_words(batch, "otlp")
        assert found.losses == ()
        rows += [row for table in found.spans for row in table.to_pylist()]
        assert found.aliases is not None
        aliases |= set(found.aliases["alias"])
    requests = [row for row in rows if row.get("op") == "request"]
    routes = [row for row in rows if row.get("op") == "route"]
    assert len(requests) == len(routes) == 12
    assert {row["request_id"] for row in requests} == {row["request_id"] for row in routes}
    assert {f"tier-r{each}-p{number}" for each in range(3) for number in range(4)} <= aliases
    assert all(
        row["end_ns"] - row["start_ns"] < 3 * MS for row in routes
    )  # a choice, not the answer after it
    credited = sorted(row["predicted_tokens"] for row in routes)
    assert credited == [0] * 4 + [400] * 4 + [416] * 2 + [496] * 2  # 24.75 blocks of 16 show as 25


def test_a_choice_is_of_one_route_alone() -> None:
    """The second choice was not recorded: its route has neither the times nor the forecast of the first."""
    rows, _ = words(select(12, 15), route(16), route(46, 95, worker_id="8", overlap_blocks="3"))
    routes = [row for row in rows if row.get("op") == "route"]
    assert [(row["start_ns"], row["end_ns"], row.get("predicted_tokens")) for row in routes] == [
        (12 * MS, 15 * MS, 25 * 16), (46 * MS, 46 * MS, None)
    ]  # fmt: skip
