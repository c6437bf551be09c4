"""One request under all of its names.

cmpl-req-000-0-92cea7c0   internal, on LMCache's spans and in its hash log
cmpl-req-000-0            external, on vLLM's span
     req-000              the caller's own
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.unit.importer.drawn import (
    CLIENT,
    EXTERNAL,
    INTERNAL,
    VLLM,
    body,
    hash_log,
    imported,
    llm_request,
    lookup,
    losses,
    op,
    query,
    retrieve,
    span,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

AAAA, BBBB, CCCC = (f"{EXTERNAL}-{digit * 8}" for digit in "abc")


def names(run: Run) -> dict[str, set[str]]:
    """Alias -> the requests it names, without trace ids."""
    rows = query(run, "SELECT alias, request_id FROM alias WHERE kind != 'trace'")
    return {alias: {request for other, request in rows if other == alias} for alias, _ in rows}


def requests(run: Run, op: str = "request") -> list[str]:
    rows = query(
        run, f"SELECT DISTINCT request_id, start_ns FROM span WHERE op = '{op}' ORDER BY start_ns, 1"
    )
    return [name for name, _ in rows]


def test_three_names_are_one_request(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100, queue_ms=5), lookup(INTERNAL, 12, 15, 1280)])
    assert requests(run) == requests(run, "lookup") == requests(run, "queue") == [INTERNAL]
    assert names(run) == {EXTERNAL: {INTERNAL}, CLIENT: {INTERNAL}}
    kinds = query(run, "SELECT kind, alias, source, evidence FROM alias ORDER BY kind")
    assert kinds[:2] == [("client", CLIENT, "vllm", "derived"), ("external", EXTERNAL, "vllm", "derived")]
    assert kinds[2][0] == "trace"
    assert kinds[2][2:] == ("otlp", "native")


@pytest.mark.parametrize(
    ("external", "client"),
    [
        ("cmpl-req-000-0", "req-000"),
        ("cmpl-a-b-c-12", "a-b-c"),
        ("chatcmpl-req-000", "req-000"),
        ("chatcmpl-req-000_3", "req-000"),
        ("chatcmpl-0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
    ],
)
def test_every_endpoints_id_gives_the_callers(tmp_path: Path, external: str, client: str) -> None:
    internal = f"{external}-92cea7c0"
    run = imported(tmp_path, [llm_request(external, 10, 100), lookup(internal, 12, 15, 1280)])
    assert names(run) == {external: {internal}, client: {internal}}
    assert requests(run) == [internal]


def test_an_id_that_no_engine_made_has_no_other_names(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request("whatever", 10, 100), lookup("somebody-elses", 12, 15, 1280)])
    assert names(run) == {}
    assert requests(run) == ["whatever"]
    assert requests(run, "lookup") == ["somebody-elses"]
    assert losses(run) == []


def test_prompts_of_one_call_are_requests_of_one_caller(tmp_path: Path) -> None:
    first, second = "cmpl-x-0-aaaaaaaa", "cmpl-x-1-bbbbbbbb"
    run = imported(
        tmp_path,
        [llm_request("cmpl-x-0", 10, 100, trace=1), llm_request("cmpl-x-1", 10, 90, trace=2)],
        [lookup(first, 12, 15, 1280), lookup(second, 12, 16, 1280)],
    )
    assert names(run) == {"cmpl-x-0": {first}, "cmpl-x-1": {second}, "x": {first, second}}
    assert sorted(requests(run)) == [first, second]


def test_children_of_one_prompt_are_requests_of_their_own(tmp_path: Path) -> None:
    # n = 2: vLLM sends a span a child, all with the id and the arrival of their parent
    run = imported(tmp_path, [llm_request("cmpl-x-0", 10, 100, id=1), llm_request("cmpl-x-0", 10, 90, id=2)])
    assert len(requests(run)) == 2


def test_a_request_of_a_client_that_reuses_its_id_is_joined_in_time_order(tmp_path: Path) -> None:
    """The first attempt, then a retry with the same X-Request-Id.

    vllm     10 |--------| 50      60 |--------| 100     both cmpl-req-000-0
    lmcache  12 |-| 15             62 |-| 65             -bbbbbbbb, then -aaaaaaaa
    """
    run = imported(
        tmp_path,
        [
            llm_request(EXTERNAL, 60, 100, prompt=2, queue_ms=1),
            llm_request(EXTERNAL, 10, 50, prompt=1, queue_ms=2),
        ],
        [lookup(AAAA, 62, 65, 1280), lookup(BBBB, 12, 15, 1280)],
    )
    assert query(run, "SELECT request_id, prompt_tokens FROM span WHERE op = 'request' ORDER BY 2") == [
        (BBBB, 1),
        (AAAA, 2),
    ]
    assert requests(run, "queue") == [BBBB, AAAA]
    assert names(run) == {EXTERNAL: {AAAA, BBBB}, CLIENT: {AAAA, BBBB}}
    assert losses(run) == []


def test_overlapping_retries_are_joined_by_the_overlap_of_their_lives(tmp_path: Path) -> None:
    """Both are alive at once; each overlaps its own internal request the most.

    vllm     10 |-----------| 50
                    30 |-----------------| 90
    lmcache  12 |--------| 40 (aaaa)   35 |---------| 85 (bbbb)
    """
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 50, prompt=1), llm_request(EXTERNAL, 30, 90, prompt=2)],
        [lookup(AAAA, 12, 40, 1280), lookup(BBBB, 35, 85, 1280)],
    )
    assert query(run, "SELECT request_id, prompt_tokens FROM span WHERE op = 'request' ORDER BY 2") == [
        (AAAA, 1),
        (BBBB, 2),
    ]


def test_a_retry_that_fits_two_requests_equally_is_not_joined_and_counted(tmp_path: Path) -> None:
    """The same name, the same time, twice: nothing tells which is which.

    vllm     10 |--------| 50   twice
    lmcache  12 |-| 15          aaaa and bbbb
    """
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 50, prompt=1), llm_request(EXTERNAL, 11, 51, prompt=2)],
        [lookup(AAAA, 12, 15, 1280), lookup(BBBB, 12, 15, 1280)],
    )
    assert losses(run) == [("ambiguous_join", "request", 2)]
    assert query(run, "SELECT request_id, prompt_tokens FROM span WHERE op = 'request' ORDER BY 2") == [
        (f"{EXTERNAL}#1", 1), (f"{EXTERNAL}#2", 2),
    ]  # fmt: skip
    assert sorted(requests(run, "lookup")) == [AAAA, BBBB]


def test_a_retry_without_an_internal_request_keeps_a_number_of_its_own(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 50, prompt=1), llm_request(EXTERNAL, 60, 100, prompt=2)],
        [lookup(AAAA, 62, 65, 1280)],
    )
    rows = query(run, "SELECT request_id, prompt_tokens FROM span WHERE op = 'request' ORDER BY 2")
    assert rows == [(f"{EXTERNAL}#1", 1), (AAAA, 2)]


def test_one_external_id_thrice_without_internal_ones_is_three_requests(tmp_path: Path) -> None:
    sent = [
        llm_request(EXTERNAL, at, at + 5, prompt=number, queue_ms=1)
        for number, at in ((2, 40), (3, 90), (1, 10))
    ]
    run = imported(tmp_path, sent)
    numbered = [f"{EXTERNAL}#{number}" for number in (1, 2, 3)]
    assert query(run, "SELECT request_id, prompt_tokens FROM span WHERE op = 'request' ORDER BY 2") == [
        (name, number) for number, name in enumerate(numbered, 1)
    ]
    assert requests(run, "queue") == numbered
    assert names(run) == {EXTERNAL: set(numbered), CLIENT: set(numbered)}


def test_one_vllm_span_of_several_internal_requests_joins_the_one_it_lived_with(tmp_path: Path) -> None:
    run = imported(
        tmp_path, [llm_request(EXTERNAL, 60, 100)], [lookup(AAAA, 12, 15, 1280), lookup(BBBB, 62, 65, 1280)]
    )
    assert requests(run) == [BBBB]
    assert sorted(requests(run, "lookup")) == [AAAA, BBBB]


def test_rows_of_anyone_join_by_the_external_id(tmp_path: Path) -> None:
    run = imported(
        tmp_path, [lookup(INTERNAL, 12, 15, 1280), op("route", 9, 9, EXTERNAL, predicted_tokens=512)]
    )
    assert query(run, "SELECT request_id FROM span WHERE op = 'route'") == [(INTERNAL,)]


def test_rows_of_anyone_join_by_the_callers_id(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 100), lookup(INTERNAL, 12, 15, 1280)],
        [op("route", 9, 9, CLIENT, predicted_tokens=512)],
    )
    assert query(run, "SELECT request_id FROM span WHERE op = 'route'") == [(INTERNAL,)]


def test_a_row_of_a_reused_id_joins_the_request_it_overlaps(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 50), llm_request(EXTERNAL, 60, 100)],
        [lookup(AAAA, 12, 15, 1280), lookup(BBBB, 62, 65, 1280)],
        [op("load", 63, 70, EXTERNAL, tokens=1)],
    )
    assert query(run, "SELECT request_id FROM span WHERE op = 'load'") == [(BBBB,)]


def test_internal_ids_of_our_own_rows_join_the_engines_span(tmp_path: Path) -> None:
    shim = {"service.instance.id": "vllm-1/scheduler", "kvtrace.observer": "scheduler"}
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 100), op("request", 11, 99, INTERNAL, gpu_hit_tokens=128, resource=shim)],
    )
    assert query(run, "SELECT request_id, gpu_hit_tokens, observers FROM request") == [(INTERNAL, 128, 2)]


def test_a_hash_log_alone_names_internal_requests(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100)], hash_log((INTERNAL, 12, 5)))
    assert requests(run) == [INTERNAL]
    assert query(run, "SELECT DISTINCT request_id FROM request_key") == [(INTERNAL,)]


def test_without_random_digits_internal_and_external_ids_are_one(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100), lookup(EXTERNAL, 12, 15, 1280)])
    assert requests(run) == requests(run, "lookup") == [EXTERNAL]


def test_a_trace_id_names_every_request_of_its_trace(tmp_path: Path) -> None:
    sent = [llm_request(f"cmpl-r{number}-0", 10 + number, 50, trace=5) for number in range(3)]
    run = imported(tmp_path, sent)
    rows = query(run, "SELECT request_id FROM alias WHERE alias = ? ORDER BY ALL".replace("?", f"'{5:032x}'"))
    assert rows == [("cmpl-r0-0",), ("cmpl-r1-0",), ("cmpl-r2-0",)]


def test_members_of_a_step_carry_the_requests_own_id(tmp_path: Path) -> None:
    arrays = {"kvtrace.step.request_ids": [EXTERNAL], "kvtrace.step.tokens": [128]}
    run = imported(
        tmp_path,
        [
            llm_request(EXTERNAL, 10, 100),
            lookup(INTERNAL, 12, 15, 1280),
            op("step", 20, 30, None, more=arrays),
        ],
    )
    assert query(run, "SELECT request_id FROM member") == [(INTERNAL,)]


def test_members_known_by_a_reused_id_are_those_that_lived_then(tmp_path: Path) -> None:
    """Two requests of one external id; each step serves the one whose lifetime it lies in.

    requests   10 |---- AAAA ----| 50   60 |---- BBBB ----| 100
    steps           20 |---| 40              70 |--| 80            120 |-| 130 serves neither
    """
    arrays = {"kvtrace.step.request_ids": [EXTERNAL], "kvtrace.step.tokens": [128]}
    run = imported(
        tmp_path,
        [llm_request(EXTERNAL, 10, 50), llm_request(EXTERNAL, 60, 100)],
        [lookup(AAAA, 12, 15, 1280), lookup(BBBB, 62, 65, 1280)],
        [op("step", start, end, None, more=arrays) for start, end in ((20, 40), (70, 80), (120, 130))],
    )
    members = query(run, "SELECT request_id FROM member ORDER BY start_ns")
    assert members == [(AAAA,), (BBBB,), (EXTERNAL,)]
    assert losses(run) == [("ambiguous_join", "request", 1)]


def test_fifty_thousand_requests_of_one_trace_stay_apart(tmp_path: Path) -> None:
    count, batch = 50_000, 500
    drawn = json.dumps(body(llm_request("cmpl-r{}-0", 10, 15, trace=1, id=0xABCD)))
    inside = drawn[drawn.index('{"traceId"') : -len("]}]}]}")]
    head, tail = drawn.split(inside)
    wanted = [
        inside.replace("r{}", f"r{n}").replace("000000000000abcd", f"{n + 1:016x}") for n in range(count)
    ]
    content = "\n".join(head + ", ".join(wanted[at : at + batch]) + tail for at in range(0, count, batch))
    log = hash_log(*((f"cmpl-r{n}-0-{n:08x}", 12, 1) for n in range(count)))
    run = imported(tmp_path, content.encode(), log)
    found = query(
        run,
        "SELECT count(*), count(DISTINCT request_id), min(length(request_id)) FROM span WHERE op = 'request'",
    )
    assert found == [(count, count, len("cmpl-r0-0-00000000"))]
    assert losses(run) == []


def test_spans_without_any_id_stay_without_a_request(tmp_path: Path) -> None:
    run = imported(
        tmp_path, [span("x", 1, 2, resource=VLLM), op("wait", 3, 4, None), retrieve(INTERNAL, 16, 20, 5, 0)]
    )
    assert query(run, "SELECT op, request_id FROM span ORDER BY start_ns") == [
        (None, None), ("wait", None), ("load", INTERNAL),
    ]  # fmt: skip
