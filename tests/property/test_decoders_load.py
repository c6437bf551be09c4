"""Laws of the decoders of load generators and workload traces: hostile records cost only themselves.

Round trips: what was drawn comes back. And the ideal hit ratio against a cache that is played through.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrace.analyses.ideal_hit_ratio import ideal_hit_ratio
from kvtrace.importer import import_files
from kvtrace.importer.formats import decoders
from kvtrace.run import open_run
from tests.property.test_decoders_dynamo import HARD, JSON, is_sound, places, put
from tests.unit.sources.given import decoded
from tests.unit.sources.given import given as lines_given

RECORDED = Path(__file__).parents[1] / "unit" / "sources" / "recorded"
FILES = {
    path.stem: path.read_bytes().splitlines()
    for path in sorted(RECORDED.iterdir())
    if path.name.startswith(("load-", "workload-"))
}
NAMES = pytest.mark.parametrize("name", FILES)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def module(name: str) -> Any:
    return decoders()[name]


@NAMES
@HARD
@given(data=st.data())
def test_a_record_with_anything_anywhere_is_rows_or_losses(name: str, data: st.DataObject) -> None:
    record = json.loads(data.draw(st.sampled_from(FILES[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        record = put(record, data.draw(st.sampled_from(places(record))), data.draw(JSON))
    content = json.dumps(record).encode() + b"\n"
    is_sound(decoded(module(name), content))
    for each in FILES:
        module(each).looks_like(content)


@NAMES
@HARD
@given(data=st.data(), junk=st.lists(st.binary(max_size=40), max_size=4))
def test_lines_of_anything_cost_only_themselves(name: str, data: st.DataObject, junk: list[bytes]) -> None:
    lines = list(FILES[name])
    whole = decoded(module(name), b"\n".join(lines))
    bad = [b"\xff" + each.replace(b"\n", b"") for each in junk]
    for each in bad:
        lines.insert(data.draw(st.integers(0, len(lines))), each)
    found = decoded(module(name), b"\n".join(lines), piece=data.draw(st.integers(50, 5000)))
    assert found.rows == whole.rows
    assert found.lost().get("undecodable", 0) == len(bad)


@NAMES
@HARD
@given(cut=st.integers(0, 20_000), piece=st.integers(50, 4000))
def test_a_file_that_is_cut_keeps_what_came_before(name: str, cut: int, piece: int) -> None:
    found = decoded(module(name), b"\n".join(FILES[name])[:cut], piece=piece)
    is_sound(found)
    assert set(found.lost()) <= {"undecodable"}
    assert found.lost().get("undecodable", 0) <= 1


@NAMES
@HARD
@given(value=JSON, head=st.binary(max_size=64))
def test_no_value_is_taken_for_a_file_by_mistake_or_breaks_a_decoder(
    name: str, value: Any, head: bytes
) -> None:
    content = json.dumps(value).encode()
    assert not module(name).looks_like(content)
    module(name).looks_like(head)
    is_sound(decoded(module(name), content + b"\n" + head))


@NAMES
def test_a_document_of_many_requests_is_never_held_as_rows_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of four rows instead of 50,000: nothing else changes."""
    content = b"\n".join(FILES[name])
    whole = decoded(module(name), content)
    monkeypatch.setattr("kvtrace.sources.records.ROWS_A_PART", 4)
    monkeypatch.setattr("kvtrace.sources.workload_mooncake.LOOKED_AT", 4)
    found = decoded(module(name), content)
    assert found.rows == whole.rows
    assert found.parts >= len(whole.rows["span"]) // 4


IDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6)


@HARD
@given(ids=IDS, rest=st.integers(1, 16), at=st.integers(0, 2 * 10**7), turn=st.integers(1, 9))
def test_keys_and_tokens_of_a_trace_come_back(ids: list[int], rest: int, at: int, turn: int) -> None:
    length = 16 * (len(ids) - 1) + rest
    line = {"chat_id": 3, "parent_chat_id": -1, "timestamp": at, "input_length": length, "output_length": 7,
            "type": "text", "turn": turn, "hash_ids": ids}  # fmt: skip
    found = lines_given(module("workload-bailian"), line)
    keys = found.rows["request_key"]
    assert [(row["position"], int(row["key"])) for row in keys] == list(enumerate(ids))
    assert sum(row["tokens"] for row in keys) == length == found.rows["span"][0]["prompt_tokens"]
    assert not found.losses


@HARD
@given(
    offset=st.integers(10**18, 2 * 10**18),
    requests=st.lists(
        st.tuples(st.integers(1, 10**15), st.integers(1, 10**9), st.integers(0, 10**9)),
        min_size=1,
        max_size=5,
    ),
)
def test_times_of_a_bench_come_back_by_its_offset(offset: int, requests: list[tuple[int, int, int]]) -> None:
    result = {
        "date": "20261130-000000", "request_id_prefix": "p", "clock_offset_ns": str(offset),
        "start_times": [start / 1e9 for start, _, _ in requests],
        "ttfts": [first / 1e9 for _, first, _ in requests],
        "latencies": [(first + rest) / 1e9 for _, first, rest in requests],
    }  # fmt: skip
    found = lines_given(module("load-vllm-bench"), result).rows["span"]
    for number, (row, (start, first, rest)) in enumerate(zip(found, requests, strict=True)):
        assert row["request_id"] == f"p{number}"
        assert abs(row["start_ns"] - offset - start) < 200  # a float of 10**15 ns is exact to 125
        assert row["end_ns"] - row["start_ns"] == round((first + rest) / 1e9 * 1e9)
        assert int(dict(row["attributes"])["client.ttft_ns"]) == first


PATH = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@FEW
@given(trace=st.lists(st.tuples(st.integers(0, 5), PATH), min_size=1, max_size=12))
def test_the_ideal_hit_is_that_of_a_cache_that_is_played_through(
    tmp_path_factory: pytest.TempPathFactory, trace: list[tuple[int, list[int]]]
) -> None:
    """Keys are of prefixes: equal paths through a tree have equal keys. Requests of one time in any order."""
    names: dict[tuple[int, ...], int] = {}
    asked = [
        (at, [names.setdefault(tuple(path[: depth + 1]), len(names)) for depth in range(len(path))])
        for at, path in trace
    ]
    lines = [
        {"chat_id": 1, "timestamp": at, "input_length": 16 * len(ids), "hash_ids": ids} for at, ids in asked
    ]
    folder = tmp_path_factory.mktemp("played")
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = ideal_hit_ratio(open_run(import_files([folder / "trace.jsonl"], folder / "run").run)).to_dicts()
    cache: set[int] = set()
    hits = 0
    for _, ids in sorted(asked, key=lambda one: one[0]):
        known = [each in cache for each in ids]
        hits += known.index(False) if False in known else len(known)
        cache.update(ids)
    total = sum(len(ids) for _, ids in asked)
    assert (row["keys"], row["distinct_keys"], row["hit_keys"]) == (total, len(cache), hits)
    assert hits == total - len(cache)
    assert row["of_prompt"] == pytest.approx(hits / total)
