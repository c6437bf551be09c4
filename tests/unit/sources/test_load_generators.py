"""What load generators' records become: one row a request seen by the client, its times in attributes.

The recorded files are of generators that ran here (tests/unit/sources/recorded/README.md), each six requests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvtrace.sources import load_aiperf, load_guidellm, load_vllm_bench
from tests.unit.sources.given import Found, given, recorded

RECORDED = Path(__file__).parent / "recorded"
FILES = {
    load_vllm_bench: "load-vllm-bench.json",
    load_aiperf: "load-aiperf.jsonl",
    load_guidellm: "load-guidellm.json",
}
S = 1_000_000_000
BENCH: dict[str, Any] = json.loads((RECORDED / FILES[load_vllm_bench]).read_text())
AIPERF: dict[str, Any] = json.loads((RECORDED / FILES[load_aiperf]).read_text().splitlines()[0])
GUIDELLM: dict[str, Any] = json.loads((RECORDED / FILES[load_guidellm]).read_text())
METADATA = ("clock_offset_ns", "request_id_prefix")
EVERY = pytest.mark.parametrize("module", FILES, ids=lambda module: module.FORMAT)


def rows(found: Found) -> list[dict[str, Any]]:
    return found.rows.get("span", [])


def said(row: dict[str, Any]) -> dict[str, str]:
    return dict(row["attributes"])


@EVERY
def test_a_recorded_file_is_six_answered_requests_of_the_client(module: Any) -> None:
    found = recorded(module, RECORDED / FILES[module])
    assert not found.losses
    assert len(rows(found)) == len({row["request_id"] for row in rows(found)}) == 6
    for row in rows(found):
        assert (row["op"], row["observer"], row["evidence"], row["status"]) == (
            "request", "client", "native", "ok",
        )  # fmt: skip
        assert row["prompt_tokens"] in (150, 200)
        assert row["output_tokens"] == 8


@EVERY
def test_times_of_the_client_stay_in_attributes_and_inside_of_the_request(module: Any) -> None:
    """words.md: a load generator's own first token is no first_token_ns."""
    for row in rows(recorded(module, RECORDED / FILES[module])):
        assert "first_token_ns" not in row
        first, latency = int(said(row)["client.ttft_ns"]), int(said(row)["client.latency_ns"])
        assert 0 < first < latency <= row["end_ns"] - row["start_ns"] + 1_000_000
        assert 0 < int(said(row)["client.itl_mean_ns"]) < latency


@EVERY
def test_nothing_that_was_asked_or_answered_is_in_any_row(module: Any) -> None:
    found = recorded(module, RECORDED / FILES[module])
    assert " w" not in str(found.rows)
    assert "prompt" not in {name for row in rows(found) for name in said(row)}


def test_bench_texts_are_counted_and_dropped() -> None:
    assert recorded(load_vllm_bench, RECORDED / FILES[load_vllm_bench]).content == {"generated_texts": 6}


def test_guidellm_arguments_and_answers_are_counted_and_dropped() -> None:
    content = recorded(load_guidellm, RECORDED / FILES[load_guidellm]).content
    assert content == {"request_args": 6, "output": 6}


class TestVllmBench:
    def test_metadata_gives_ids_and_unix_times(self) -> None:
        found = given(load_vllm_bench, BENCH)
        offset = int(BENCH["clock_offset_ns"])
        for number, row in enumerate(rows(found)):
            assert row["request_id"] == f"bench-abc-{number}"
            start = round(BENCH["start_times"][number] * S)
            assert row["start_ns"] == start + offset
            assert row["end_ns"] - row["start_ns"] == round(BENCH["latencies"][number] * S)
            assert int(said(row)["client.ttft_ns"]) == round(BENCH["ttfts"][number] * S)
            assert "start" not in said(row)
        assert not found.notes

    def test_without_metadata_the_last_answer_is_put_at_the_date(self) -> None:
        """20261130-082302 is 1,796,026,982 s; distances between requests stay what they were."""
        bare = {
            name: value
            for name, value in BENCH.items()
            if name not in ("clock_offset_ns", "request_id_prefix")
        }
        found = given(load_vllm_bench, bare)
        assert max(row["end_ns"] for row in rows(found)) == 1_796_026_982 * S
        exact = rows(given(load_vllm_bench, BENCH))
        moved = {row["start_ns"] - other["start_ns"] for row, other in zip(rows(found), exact, strict=True)}
        assert len(moved) == 1
        assert {said(row)["start"] for row in rows(found)} == {load_vllm_bench.BY_DATE}
        assert rows(found)[0]["request_id"] == "given:1:0"
        assert found.notes == [f"{load_vllm_bench.NO_CLOCK}: 6", f"{load_vllm_bench.NO_NAMES}: 6"]

    def test_named_requests_without_a_clock_have_no_end_that_others_could_take(self) -> None:
        named = {name: value for name, value in BENCH.items() if name != "clock_offset_ns"}
        found = rows(given(load_vllm_bench, named))
        assert [row["request_id"] for row in found] == [f"bench-abc-{number}" for number in range(6)]
        assert not any("end_ns" in row for row in found)
        assert all("client.latency_ns" in said(row) for row in found)

    def test_a_request_that_failed_is_an_error_without_times_of_an_answer(self) -> None:
        failed = {**BENCH, "errors": ["refused", *[""] * 5], "ttfts": [0.0, *BENCH["ttfts"][1:]],
                  "latencies": [0.0, *BENCH["latencies"][1:]]}  # fmt: skip
        found = given(load_vllm_bench, failed)
        first, *others = rows(found)
        assert first["status"] == "error"
        assert not {"end_ns", "output_tokens"} & set(first)
        assert "client.ttft_ns" not in said(first)
        assert {row["status"] for row in others} == {"ok"}
        assert "refused" not in str(found.rows)
        assert found.content["errors"] == 1

    def test_an_older_result_without_latencies_ends_with_its_last_part(self) -> None:
        old = {name: value for name, value in BENCH.items() if name != "latencies"}
        row = rows(given(load_vllm_bench, old))[0]
        length = BENCH["ttfts"][0] + sum(BENCH["itls"][0])
        assert row["end_ns"] - row["start_ns"] == pytest.approx(length * S, abs=2)

    def test_results_that_were_appended_are_told_apart(self) -> None:
        bare = {name: value for name, value in BENCH.items() if name != "request_id_prefix"}
        names = [row["request_id"] for row in rows(given(load_vllm_bench, bare, bare))]
        assert len(set(names)) == 12

    def test_a_result_without_details_is_a_loss_that_says_so(self) -> None:
        found = given(load_vllm_bench, {"date": "20261130-082302", "num_prompts": 6, "latencies": [1.0]})
        assert not found.rows
        assert [(loss.cause, loss.detail) for loss in found.losses] == [
            ("undecodable", load_vllm_bench.NO_DETAIL)
        ]

    def test_columns_of_unequal_length_cost_only_what_they_lack(self) -> None:
        cut = {**BENCH, "ttfts": BENCH["ttfts"][:2], "start_times": BENCH["start_times"][:5]}
        found = given(load_vllm_bench, cut)
        assert len(rows(found)) == 5
        assert found.lost() == {"impossible_time": 1}
        assert ["client.ttft_ns" in said(row) for row in rows(found)] == [True, True, False, False, False]

    @pytest.mark.parametrize("offset", ["", "-5", "1e9", "9" * 30, None, 1.5, [], "0"])
    def test_an_offset_that_is_none_is_not_used(self, offset: Any) -> None:
        found = given(load_vllm_bench, {**BENCH, "clock_offset_ns": offset})
        assert {said(row)["start"] for row in rows(found)} == {load_vllm_bench.BY_DATE}


class TestAiperf:
    def test_the_header_names_the_request(self) -> None:
        (row,) = rows(given(load_aiperf, AIPERF))
        about = AIPERF["metadata"]
        assert (row["request_id"], row["start_ns"], row["end_ns"]) == (
            about["x_request_id"], about["request_start_ns"], about["request_end_ns"],
        )  # fmt: skip
        assert (row["prompt_tokens"], row["output_tokens"], row["reported_cached_tokens"]) == (150, 8, 0)
        assert said(row)["client.ttft_ns"] == "104809526"
        assert said(row)["client.queue_ns"] == str(about["request_start_ns"] - about["credit_issued_ns"])
        assert said(row)["benchmark_phase"] == "profiling"

    def test_cached_tokens_that_nobody_reported_are_null(self) -> None:
        metrics = {name: value for name, value in AIPERF["metrics"].items() if not name.startswith("usage")}
        (row,) = rows(given(load_aiperf, {**AIPERF, "metrics": metrics}))
        assert "reported_cached_tokens" not in row
        assert row["prompt_tokens"] == 150

    @pytest.mark.parametrize(
        ("change", "status"),
        [({"was_cancelled": True}, "aborted"), ({}, "error")],
    )
    def test_how_it_ended(self, change: dict[str, Any], status: str) -> None:
        record = {"metadata": {**AIPERF["metadata"], **change}, "metrics": {},
                  "error": {"code": 500, "message": "the prompt was: secret"}}  # fmt: skip
        found = given(load_aiperf, record)
        assert [row["status"] for row in rows(found)] == [status]
        assert "secret" not in str(found.rows)
        assert found.content == {"error": 1}

    @pytest.mark.parametrize(("unit", "ns"), [("s", "2000000000"), ("us", "2000"), ("parsec", None)])
    def test_a_duration_is_read_in_the_unit_that_it_says(self, unit: str, ns: str | None) -> None:
        record = {**AIPERF, "metrics": {"time_to_first_token": {"value": 2, "unit": unit}}}
        (row,) = rows(given(load_aiperf, record))
        assert said(row).get("client.ttft_ns") == ns

    def test_a_record_that_ends_before_it_begins_is_set_aside(self) -> None:
        about = {**AIPERF["metadata"], "request_end_ns": AIPERF["metadata"]["request_start_ns"] - 1}
        found = given(load_aiperf, {**AIPERF, "metadata": about}, AIPERF)
        assert len(rows(found)) == 1
        assert found.lost() == {"negative_duration": 1}


class TestGuidellm:
    def test_the_answers_id_names_the_request(self) -> None:
        request = GUIDELLM["benchmarks"][0]["requests"]["successful"][0]
        row = rows(given(load_guidellm, GUIDELLM))[0]
        timings = request["info"]["timings"]
        assert row["request_id"] == request["response_id"]
        assert said(row)["guidellm.request_id"] == request["request_id"]
        assert row["start_ns"] == pytest.approx(timings["request_start"] * S, abs=500)
        assert (row["prompt_tokens"], row["reported_cached_tokens"], row["output_tokens"]) == (150, 128, 8)
        assert int(said(row)["client.ttft_ns"]) == pytest.approx(
            request["time_to_first_token_ms"] * 1e6, abs=999
        )
        assert int(said(row)["client.itl_mean_ns"]) == pytest.approx(
            request["inter_token_latency_ms"] * 1e6, abs=999
        )
        assert said(row)["strategy"] == "concurrent"

    def test_groups_say_how_requests_ended(self) -> None:
        request = GUIDELLM["benchmarks"][0]["requests"]["successful"][0]
        groups = {name: [{**request, "response_id": None, "request_id": name}] for name in
                  ("successful", "errored", "incomplete")}  # fmt: skip
        found = given(load_guidellm, {"benchmarks": [{"requests": groups}]})
        assert {row["request_id"]: row["status"] for row in rows(found)} == {
            "successful": "ok", "errored": "error", "incomplete": "aborted",
        }  # fmt: skip

    def test_a_request_that_was_never_sent_has_no_time_and_no_row(self) -> None:
        waiting = {
            "request_id": "a",
            "info": {"timings": {"queued": 1.0}, "error": "text", "traceback": "more"},
        }
        found = given(load_guidellm, {"benchmarks": [{"requests": {"incomplete": [waiting]}}]})
        assert not found.rows
        assert found.lost() == {"impossible_time": 1}
        assert found.content == {"error": 2}

    def test_a_document_without_benchmarks_is_a_loss(self) -> None:
        assert given(load_guidellm, {"metadata": {}}, [1], "x").lost() == {"undecodable": 3}
