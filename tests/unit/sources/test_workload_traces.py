"""What workload traces become: predicted requests and their keys; nothing of them happened in the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources import workload_bailian, workload_kv_cache_tester, workload_mooncake, workload_rows
from kvtrace.sources.workload_blocks import block_tokens
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded, given, recorded

RECORDED = Path(__file__).parent / "recorded"
FILES = {
    workload_mooncake: "workload-mooncake.jsonl",
    workload_bailian: "workload-bailian.jsonl",
    workload_kv_cache_tester: "workload-kv-cache-tester.json",
}
MS, S = 1_000_000, 1_000_000_000
FIRST = workload_rows.TRACE_START_NS
EVERY = pytest.mark.parametrize("module", FILES, ids=lambda module: module.FORMAT)


def tokens(found: Found) -> dict[str, list[int | None]]:
    """Tokens of each request's keys, in order."""
    by_request: dict[str, list[int | None]] = {}
    for row in sorted(
        found.rows.get("request_key", []), key=lambda row: (row["request_id"], row["position"])
    ):
        by_request.setdefault(row["request_id"], []).append(row.get("tokens"))
    return by_request


@EVERY
def test_every_request_is_a_forecast_and_has_its_keys(module: Any) -> None:
    found = recorded(module, RECORDED / FILES[module])
    assert not found.losses
    requests = found.rows["span"]
    assert {(row["op"], row["evidence"], row.get("observer"), row.get("status")) for row in requests} == {
        ("request", "predicted", None, None)
    }
    assert all("end_ns" not in row and row["workload_key"] == row["request_id"] for row in requests)
    assert set(tokens(found)) == {row["request_id"] for row in requests}
    assert any(workload_rows.PLANNED in note for note in found.notes)
    assert any(workload_rows.PLACED in note for note in found.notes)


@pytest.mark.parametrize("module", [workload_mooncake, workload_bailian], ids=lambda module: module.FORMAT)
def test_keys_cover_the_whole_prompt(module: Any) -> None:
    found = recorded(module, RECORDED / FILES[module])
    prompts = {row["request_id"]: row["prompt_tokens"] for row in found.rows["span"]}
    assert {name: sum(filter(None, each)) for name, each in tokens(found).items()} == prompts


def test_keys_of_a_conversation_are_of_whole_blocks() -> None:
    found = recorded(workload_kv_cache_tester, RECORDED / FILES[workload_kv_cache_tester])
    prompts = {row["request_id"]: row["prompt_tokens"] for row in found.rows["span"]}
    for name, each in tokens(found).items():
        assert set(each) == {64}
        assert 0 <= prompts[name] - 64 * len(each) < 64


def test_every_recorded_file_is_of_exactly_one_format() -> None:
    """Those of the samples, too; the same when a file is cut after its first kilobytes."""
    own = {name: module.FORMAT for module, name in FILES.items()}
    files = [path for place in (SAMPLES, RECORDED) for path in place.rglob("*")]
    mine = [name for name in decoders() if name.startswith(("workload-", "load-"))]
    assert len(mine) == 6
    for path in files:
        if path.is_file() and path.suffix != ".parquet":
            head = path.read_bytes()[: 1 << 16]
            wanted = [path.stem] if path.stem in mine else []
            assert [name for name in mine if decoders()[name].looks_like(head)] == wanted, path
            if wanted:
                assert format_of(path) == path.stem
                assert [name for name in decoders() if decoders()[name].looks_like(head[:2500])] == wanted
    assert set(own) <= {path.name for path in files}


class TestMooncake:
    def test_a_line_is_a_request_at_its_millisecond(self) -> None:
        line = {"timestamp": 27482, "input_length": 1000, "output_length": 52, "hash_ids": [46, 2353]}
        found = given(workload_mooncake, line)
        (row,) = found.rows["span"]
        assert (row["start_ns"], row["prompt_tokens"], row["output_tokens"]) == (FIRST + 27482 * MS, 1000, 52)
        keys = found.rows["request_key"]
        assert [(key["position"], key["key"], key["tokens"]) for key in keys] == [
            (0, "46", 512), (1, "2353", 488),
        ]  # fmt: skip
        assert {key["key_space"] for key in keys} == {"mooncake-trace:512:given"}
        assert {(key["attempt"], key["time_ns"]) for key in keys} == {(1, row["start_ns"])}

    def test_a_unix_time_stays(self) -> None:
        line = {"timestamp": 1_796_026_982_001, "input_length": 5, "hash_ids": [1]}
        found = given(workload_mooncake, line)
        assert found.rows["span"][0]["start_ns"] == 1_796_026_982_001 * MS
        assert not any(workload_rows.PLACED in note for note in found.notes)

    def test_blocks_of_another_size_are_told_from_lengths_and_keys(self) -> None:
        lines = [{"timestamp": 0, "input_length": 100, "hash_ids": [1, 2]},
                 {"timestamp": 1, "input_length": 129, "hash_ids": [1, 3, 4]}]  # fmt: skip
        assert list(tokens(given(workload_mooncake, *lines)).values()) == [[64, 36], [64, 64, 1]]

    def test_where_no_size_fits_tokens_are_null(self) -> None:
        lines = [{"timestamp": 0, "input_length": 100, "hash_ids": [1, 2, 3]},
                 {"timestamp": 1, "input_length": 1000, "hash_ids": [1]}]  # fmt: skip
        found = given(workload_mooncake, *lines)
        assert list(tokens(found).values()) == [[None, None, None], [None]]
        assert f"{workload_mooncake.NO_BLOCK}: 2" in found.notes

    def test_a_later_request_that_contradicts_the_size_is_told(self) -> None:
        fits = {"timestamp": 0, "input_length": 1000, "hash_ids": [1, 2]}
        odd = {"timestamp": 1, "input_length": 1000, "hash_ids": [1, 2, 3]}
        found = given(workload_mooncake, *[fits] * 1000, odd)
        assert list(tokens(found).values())[-1] == [512, 488, None]
        assert f"{workload_mooncake.OTHER_COUNT.format(512)}: 1" in found.notes

    def test_keys_behind_one_that_is_none_are_no_prefix(self) -> None:
        line = {"timestamp": 0, "input_length": 2000, "hash_ids": [1, None, 3, 4]}
        found = given(workload_mooncake, line)
        assert [key["key"] for key in found.rows["request_key"]] == ["1"]
        assert found.lost() == {"undecodable": 3}

    def test_a_prompt_has_no_more_blocks_than_tokens(self) -> None:
        line = {"timestamp": 0, "input_length": 2, "hash_ids": [1, 2, 3, 4]}
        found = given(workload_mooncake, line)
        assert [key["key"] for key in found.rows["request_key"]] == ["1", "2"]
        assert found.lost() == {"undecodable": 2}

    def test_text_is_counted_and_dropped(self) -> None:
        line = {"timestamp": 0, "input_length": 2, "hash_ids": [1], "text_input": "secret words",
                "messages": [{"content": "secret"}]}  # fmt: skip
        found = given(workload_mooncake, line)
        assert "secret" not in str((found.rows, found.notes))
        assert found.content == {"text_input": 1, "messages": 1}

    def test_a_request_that_only_follows_another_has_no_time(self) -> None:
        found = given(workload_mooncake, {"delay": 5, "input_length": 2, "hash_ids": [1]})
        assert not found.rows
        assert found.lost() == {"impossible_time": 1}


class TestBailian:
    def test_a_line_is_a_request_with_its_place_in_a_conversation(self) -> None:
        found = recorded(workload_bailian, RECORDED / FILES[workload_bailian])
        row = found.rows["span"][2]
        assert row["start_ns"] == FIRST + 62_500 * MS
        assert dict(row["attributes"]) == {
            "chat_id": "161", "parent_chat_id": "159", "type": "text", "turn": "2",
        }  # fmt: skip
        assert tokens(found)[row["request_id"]] == [16, 16, 16, 16]


class TestConversation:
    def test_ids_of_a_global_scope_are_of_one_space_and_local_ones_are_not(self) -> None:
        def conversation(name: str, scope: str | None) -> dict[str, Any]:
            request = {"t": 0, "type": "s", "in": 70, "out": 1, "hash_ids": [1]}
            return {"id": name, "block_size": 64, "hash_id_scope": scope, "requests": [request]}

        given_ = [conversation("a", "global"), conversation("b", "global"), conversation("a", "local"),
                  conversation("b", None)]  # fmt: skip
        spaces = [row["key_space"] for row in given(workload_kv_cache_tester, *given_).rows["request_key"]]
        assert spaces == [
            "kv-cache-tester:64:all", "kv-cache-tester:64:all", "kv-cache-tester:64:given:a",
            "kv-cache-tester:64:given:b",
        ]  # fmt: skip

    @pytest.mark.parametrize(("inner", "at_s"), [(0.0, 9.0), (2.5, 11.5), (9.0, 9.0), (10.0, 10.0)])
    def test_a_subagents_requests_are_requests_at_their_time(self, inner: float, at_s: float) -> None:
        """Counted from its own beginning where they would lie before it."""
        agent = {"t": 9.0, "type": "subagent", "agent_id": "x", "requests": [
            {"t": inner, "type": "n", "in": 64, "out": 1, "hash_ids": [5]}]}  # fmt: skip
        request = {"t": 1.0, "type": "s", "in": 64, "out": 1, "hash_ids": [4]}
        document = {"id": "a", "block_size": 64, "requests": [request, agent]}
        found = given(workload_kv_cache_tester, document).rows["span"]
        assert [row["start_ns"] for row in found] == [FIRST + S, FIRST + round(at_s * S)]
        assert dict(found[1]["attributes"])["agent_id"] == "x"

    def test_subagents_of_subagents_without_end_are_counted(self) -> None:
        agent: dict[str, Any] = {"t": 1, "type": "subagent", "requests": []}
        for _ in range(60):
            agent = {"t": 1, "type": "subagent", "requests": [agent]}
        found = given(workload_kv_cache_tester, {"id": "a", "block_size": 64, "requests": [agent]})
        assert found.lost() == {"undecodable": 1}


@pytest.mark.parametrize(
    ("requests", "found"),
    [
        ([(6758, 14), (7322, 15)], 512),
        ([(100, 2), (129, 3)], 64),
        ([(100, 2), (97, 3)], None),
        ([(48, 1), (96, 2), (97, 3)], 48),
        ([(100, 1)], 512),
        ([(700, 1)], None),
        ([], None),
        ([(0, 0), (5, 0), (0, 4)], None),
    ],
)
def test_the_size_of_a_block(requests: list[tuple[int, int]], found: int | None) -> None:
    assert block_tokens(requests, 512) == found


def test_a_trace_in_many_parts_is_the_same_trace() -> None:
    keys = [list(range(number, number + 40)) for number in range(3000)]
    lines = [{"timestamp": at, "input_length": 512 * 40, "hash_ids": ids} for at, ids in enumerate(keys)]
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    found = decoded(workload_mooncake, content, piece=70_001)
    assert found.parts > 1
    assert [int(row["key"]) for row in found.rows["request_key"]] == [
        key
        for line in lines
        for key in line["hash_ids"]  # type: ignore[attr-defined]
    ]


def test_a_bot_s_log_of_chats_is_no_workload_trace(tmp_path: Path) -> None:
    """It says chat, time and length as well: as rows it would be requests of nobody's engine."""
    said = {"chat_id": -100, "timestamp": 1796000000, "input_length": 12, "text": "hello"}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(said)}\n" * 3)
    assert format_of(tmp_path / "chats.jsonl") is None
