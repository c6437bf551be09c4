"""Chrome traces of PyTorch's profiler: copies are rows, and a request's only along call, thread and range.

range   |--- kvtrace:req-7:load ---|
call        |cudaMemcpyAsync| 41
copy             41 ..|=======|
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources import kineto
from kvtrace.sources.decoded import Options
from tests.samples import SAMPLES
from tests.unit.sources.given import Bytes, Found, decoded, recorded
from tests.unit.sources.profilers import BASE_NS, annotation, call, copies, copy, event, trace

RECORDED = Path(__file__).parent / "recorded"


def read(*events: str, **document: Any) -> Found:
    found = decoded(kineto, trace(*events, **document))
    assert found.losses == []
    return found


def only(*events: str, **document: Any) -> dict[str, Any]:
    (row,) = copies(read(*events, **document))
    return row


def said(row: dict[str, Any]) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in row["attributes"]}


def test_a_copy_is_a_load_on_the_devices_clock_with_its_call_as_submit() -> None:
    row = only(call(1000, 41), copy(2001, 5003, 41))
    assert (row["op"], row["tier_from"], row["tier_to"], row["outcome"]) == ("load", "host", "gpu", "ok")
    assert (row["submit_ns"], row["start_ns"], row["end_ns"]) == (
        BASE_NS + 1000, BASE_NS + 2001, BASE_NS + 5003,
    )  # fmt: skip
    assert (row["bytes"], row["device"], row["stream"], row["clock"]) == (4096, "cuda:0", "20", "gpu")
    assert (row["process"], row["observer"], row["evidence"]) == ("host-a/514683", "worker", "native")
    assert said(row) == {"correlation": "41", "launch": "cudaMemcpyAsync", "thread": "7", "pid": "514683"}


def test_copies_of_an_old_trace_with_unix_times_in_its_events_are_those_that_a_v100_made() -> None:
    """Of a public trace of a Tesla V100: no base time, whole microseconds, a stream by its name."""
    made = ((1621401187224533, 1621401187224556, 640, 311), (1621401187224752, 1621401187224767, 128, 323))
    events = [
        {
            "ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0,
            "tid": "stream 7", "ts": started, "dur": 1,
            "args": {"device": 0, "context": 1, "stream": 7, "correlation": number, "bytes": size},
        }
        for _, started, size, number in made
    ] + [
        {
            "ph": "X", "cat": "Runtime", "name": "cudaMemcpyAsync", "pid": 24572, "tid": "24572",
            "ts": called, "dur": 12, "args": {"cbid": 41, "correlation": number},
        }
        for called, _, _, number in made
    ]  # fmt: skip
    found = decoded(kineto, json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    rows = sorted(copies(found), key=lambda row: row["start_ns"])
    assert [(row["submit_ns"], row["start_ns"], row["end_ns"], row["bytes"]) for row in rows] == [
        (called * 1000, started * 1000, (started + 1) * 1000, size) for called, started, size, _ in made
    ]
    assert {(row["op"], row["device"], row["stream"], row.get("request_id")) for row in rows} == {
        ("load", "cuda:0", "7", None)
    }


@pytest.mark.parametrize(
    ("name", "op", "tier_from", "tier_to"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "load", "host", "gpu"),
        ("Memcpy DtoH (Device -> Pinned)", "store", "gpu", "host"),
        ("Memcpy HtoA (Pinned -> Array)", "load", "host", "gpu"),
        ("Memcpy DtoD (Device -> Device)", None, "gpu", "gpu"),
        ("Memcpy HtoH (Pinned -> Pageable)", None, "host", "host"),
        ("Memcpy PtoP (Device -> Device)", "load", "peer", "gpu"),
        ("CopyHostToDevice", "load", "host", "gpu"),
        ("CopyDeviceToHost", "store", "gpu", "host"),
        ("Memcpy M2D (Host -> Device)", "load", "host", "gpu"),
        ("Memcpy D2M (Device -> Host)", "store", "gpu", "host"),
        ("Memcpy <unknown> (Unknown -> Unknown)", None, "unknown", "unknown"),
    ],
)
def test_the_name_of_a_copy_says_its_way(name: str, op: str | None, tier_from: str, tier_to: str) -> None:
    row = only(event("gpu_memcpy", name, 10, 5, pid=0, tid=20, device=0, stream=20, bytes=1))
    assert (row.get("op"), row["tier_from"], row["tier_to"]) == (op, tier_from, tier_to)


def test_a_copy_between_devices_is_on_the_one_that_receives() -> None:
    row = only(copy(10, 20, 1, "PtoP", device=None, fromDevice=1, inDevice=1, toDevice=2))
    assert (row["device"], said(row)["from_device"]) == ("cuda:2", "cuda:1")


def test_times_are_whole_nanoseconds_where_floats_are_none() -> None:
    far = 88_511_388_202_755_003  # ns after the base: as us in a float64 the next neighbours are 16 ns away
    row = only(copy(far, far + 1, 1))
    assert (row["start_ns"], row["end_ns"]) == (BASE_NS + far, BASE_NS + far + 1)


def test_copies_of_one_moment_are_all_kept() -> None:
    same = copy(100, 200, 1)
    found = copies(read(same, same, copy(100, 200, 2), copy(150, 250, 3)))
    assert len(found) == 4
    assert len({row["span_id"] for row in found}) == 4
    again = copies(read(same, same, copy(100, 200, 2), copy(150, 250, 3)))
    assert [row["span_id"] for row in again] == [row["span_id"] for row in found]


def test_a_scope_around_the_call_names_the_request_even_when_the_copy_is_later() -> None:
    row = only(annotation("kvtrace:req-7:load", 1000, 2000), call(1500, 41), copy(9000, 9500, 41))
    assert (row["request_id"], row["attribution"]) == ("req-7", "request")


def test_a_scope_that_only_overlaps_the_copy_in_time_names_nobody() -> None:
    row = only(annotation("kvtrace:req-7:load", 1000, 9999), call(500, 41), copy(2000, 3000, 41))
    assert (row.get("request_id"), row["attribution"]) == (None, "aggregate")


def test_a_scope_of_another_thread_names_nobody() -> None:
    row = only(annotation("request:a", 0, 9999, tid=8), call(500, 41), copy(2000, 3000, 41))
    assert row["attribution"] == "aggregate"


def test_a_copy_without_its_call_names_nobody() -> None:
    row = only(annotation("request:a", 0, 9999), copy(2000, 3000, 41))
    assert (row["attribution"], row.get("submit_ns")) == ("aggregate", None)


def test_the_innermost_scope_that_names_a_request_counts() -> None:
    ranges = [
        annotation("request:outer", 0, 1000), annotation("kvtrace:inner:load", 200, 400),
        annotation("gpu_model_runner: forward", 500, 600), annotation("kvtrace:-:load", 700, 800),
    ]  # fmt: skip
    calls = {100: "outer", 200: "inner", 399: "inner", 400: "outer", 550: "outer", 750: "outer", 1000: None}
    found = copies(
        read(*ranges, *(call(at, at + 1) for at in calls), *(copy(5000, 6000, at + 1) for at in calls))
    )
    assert {int(said(row)["correlation"]) - 1: row.get("request_id") for row in found} == calls


def test_scopes_that_begin_or_end_with_one_another_keep_their_order() -> None:
    ranges = [annotation("request:in", 100, 200), annotation("request:out", 100, 300),
              annotation("request:next", 300, 400), annotation("request:none", 350, 350)]  # fmt: skip
    calls = {100: "in", 200: "out", 300: "next", 350: "next"}
    found = copies(read(*ranges, *(call(at, at) for at in calls), *(copy(5000, 6000, at) for at in calls)))
    assert {int(said(row)["correlation"]): row.get("request_id") for row in found} == calls


def test_a_scope_of_several_requests_makes_its_copies_theirs_together() -> None:
    row = only(annotation("kvtrace:a,b:store", 0, 100), call(50, 1), copy(60, 70, 1, "DtoH"))
    assert [member["request_id"] for member in row["members"]] == ["a", "b"]
    assert (row.get("request_id"), row["attribution"]) == (None, "operation")


def test_a_scope_of_a_whole_batch_is_longer_than_other_names_and_kept() -> None:
    ids = [f"cmpl-{number:040}" for number in range(100)]
    found = read(annotation(f"kvtrace:{','.join(ids)}:load", 0, 100), call(50, 1), copy(60, 70, 1),
                 annotation("x" * 600, 0, 10))  # fmt: skip
    (row,) = copies(found)
    assert [member["request_id"] for member in row["members"]] == ids
    assert any("more than 512 characters" in note for note in found.notes)


@pytest.mark.parametrize("op", ["load", "store"])
def test_a_copy_that_stays_on_the_device_takes_the_operation_of_kvtraces_own_scope(op: str) -> None:
    row = only(annotation(f"kvtrace:a:{op}", 0, 100), call(50, 1), copy(60, 70, 1, "DtoD"))
    assert (row["op"], row["tier_from"], row["tier_to"]) == (op, "gpu", "gpu")


def test_one_call_may_ask_for_many_copies() -> None:
    found = copies(read(annotation("request:a", 0, 100), call(50, 1, "cudaMemcpyBatchAsync"),
                        copy(60, 70, 1), copy(70, 80, 1)))  # fmt: skip
    assert [row["request_id"] for row in found] == ["a", "a"]


@pytest.mark.parametrize("sign", ["launch", "node"])
def test_copies_of_a_cuda_graph_are_nobodys_and_say_so(sign: str) -> None:
    name = "cudaGraphLaunch" if sign == "launch" else "cudaMemcpyAsync"
    node = {"graph node id": 5} if sign == "node" else {}
    found = read(annotation("kvtrace:a:load", 0, 100), call(50, 1, name), copy(60, 70, 1, **node))
    (row,) = copies(found)
    assert (row["attribution"], said(row)["cuda_graph"], row.get("request_id")) == ("aggregate", "true", None)
    assert any("CUDA graphs" in note for note in found.notes)


def test_a_graph_node_of_0_is_no_graph() -> None:
    row = only(call(50, 1), copy(60, 70, 1, **{"graph id": 0, "graph node id": 0}))
    assert "cuda_graph" not in said(row)


def test_a_correlation_id_of_calls_of_two_threads_joins_none() -> None:
    found = read(annotation("request:a", 0, 100), call(50, 1), call(60, 1, tid=9), copy(70, 80, 1))
    (row,) = copies(found)
    assert (row["attribution"], row.get("submit_ns")) == ("aggregate", None)
    assert any("several threads" in note for note in found.notes)


def test_a_copy_that_began_before_its_call_keeps_its_request_and_has_no_submit() -> None:
    found = read(annotation("request:a", 0, 100), call(50, 1), copy(49, 80, 1))
    (row,) = copies(found)
    assert (row["request_id"], row.get("submit_ns")) == ("a", None)
    assert any("before they were asked for" in note for note in found.notes)


def test_a_trace_of_2021_has_its_own_words_and_unix_times() -> None:
    start = 1_621_401_187_224_000_000
    found = read(
        event("Operator", "kvtrace:a:load", start, 900_000, tid="24572"),
        event("Operator", "aten::copy_", start, 900_000, tid="24572"),
        event("Runtime", "cudaMemcpyAsync", start + 1000, 1000, tid="24572", correlation=3),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", start + 2000, 5000, pid=0, tid="stream 7",
              device=0, stream=7, correlation=3, bytes=64),
        header={"schemaVersion": 1, "computeProperties": []},
    )  # fmt: skip
    (row,) = copies(found)
    assert (row["start_ns"], row["request_id"], row["stream"]) == (start + 2000, "a", "7")
    assert [row["name"] for row in found.table("span", clock="host")] == ["kvtrace:a:load"]


@pytest.mark.parametrize("indent", [None, 4])
def test_a_trace_that_python_wrote_in_whole_microseconds_is_read(indent: int | None) -> None:
    asked = {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 5, "tid": 6,
             "ts": 1_689_861_288_000_100, "dur": 3, "args": {"correlation": 7}}  # fmt: skip
    moved = {"name": "Memcpy HtoD (Pinned -> Device)", "cat": "gpu_memcpy", "ph": "X", "pid": 1, "tid": 20,
             "ts": 1_689_861_288_000_108, "dur": 31, "args": {"device": 1, "correlation": 7}}  # fmt: skip
    document = {"distributedInfo": {"rank": 1}, "traceEvents": [asked, moved]}
    content = json.dumps(document, indent=indent).encode()
    assert kineto.looks_like(content)
    (row,) = copies(decoded(kineto, content))
    assert (row["submit_ns"], row["start_ns"], row["end_ns"], row["rank"]) == (
        1_689_861_288_000_100_000, 1_689_861_288_000_108_000, 1_689_861_288_000_139_000, 1,
    )  # fmt: skip


def test_without_an_anchor_times_are_null_and_the_traces_own_are_kept() -> None:
    found = read(call(40, 1), copy(50, 60, 1), header={"schemaVersion": 1, "deviceProperties": []})
    (row,) = copies(found)
    assert (row.get("start_ns"), row.get("end_ns"), row.get("submit_ns")) == (None, None, None)
    assert (said(row)["trace_start_ns"], said(row)["trace_end_ns"]) == ("50", "60")
    assert any("without unix times" in note for note in found.notes)


def test_the_rank_and_the_host_are_what_the_trace_says() -> None:
    found = read(copy(1, 2, 1), header={"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS},
                 footer='"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}')  # fmt: skip
    (row,) = copies(found)
    assert (row["rank"], row.get("process")) == (3, None)


def test_a_process_is_described_where_its_host_is_known() -> None:
    parts = list(kineto.read(Bytes(trace(call(1, 1), copy(2, 3, 1))), "s", Options()))  # type: ignore[arg-type]
    (process,) = (row for part in parts for row in part.processes)
    assert (process["process"], process["host"], process["instrument"]) == (
        "host-a/514683",
        "host-a",
        "kineto",
    )


def test_what_is_not_kept_is_counted_by_kind() -> None:
    found = read(event("kernel", "k", 1, 2), event("kernel", "k", 2, 2), event("cpu_op", "aten::mm", 1, 2))
    assert found.rows.get("span", []) == []
    (note,) = found.notes
    assert "kernel (2), cpu_op (1)" in note


def test_no_other_sample_looks_like_a_trace_and_a_trace_like_no_other_format() -> None:
    whole = trace(call(40, 1), copy(50, 60, 1))
    assert [name for name, module in decoders().items() if module.looks_like(whole)] == [kineto.FORMAT]
    others = [path for place in (SAMPLES, RECORDED) for path in place.rglob("*") if path.is_file()]
    found = {path.name for path in others if kineto.looks_like(path.read_bytes()[: 1 << 16])}
    assert found == {"kineto-cpu.json"}


def test_a_trace_recorded_here_gives_the_annotations_of_kvtrace_and_of_anybody() -> None:
    path = RECORDED / "kineto-cpu.json"
    assert format_of(path) == kineto.FORMAT
    found = recorded(kineto, path)
    assert found.losses == []
    events = json.loads(path.read_text())
    base = events["baseTimeNanoseconds"]
    ranges = {row["name"]: row for row in found.rows["span"]}
    for each in events["traceEvents"]:
        if each.get("cat") == "user_annotation":
            start = base + round(each["ts"] * 1000)
            assert abs(ranges[each["name"]]["start_ns"] - start) <= 1  # ours is exact, json's float is not
    assert ranges["kvtrace:req-1:load"]["request_id"] == "req-1"
    assert [m["request_id"] for m in ranges["kvtrace:req-2,req-3:store"]["members"]] == ["req-2", "req-3"]
    assert ranges["request:req-4"]["request_id"] == "req-4"
    assert "request_id" not in ranges["step 0"]
    assert {row["process"] for row in found.rows["span"]} == {"host-a/16814"}
