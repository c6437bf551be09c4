"""Laws of the decoders of profilers: hostile bytes cost only themselves, cuts the rest, times are exact.

Copies find their requests as a slow reading of the rule says, whoever wrote the trace.
"""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvtrace.schema.tables import TABLES
from kvtrace.schema.vocabulary import CLOSED, LOSS_CAUSES
from kvtrace.sources import kineto, nsight
from kvtrace.sources.kineto.numbers import nanoseconds
from kvtrace.sources.profiled.names import named
from tests.unit.sources.given import Found, decoded, recorded
from tests.unit.sources.profilers import (
    BASE_NS,
    EPOCH_NS,
    MACHINE,
    PID,
    Export,
    annotation,
    call,
    copy,
    event,
    trace,
    us,
)  # fmt: skip

if TYPE_CHECKING:
    import random
    from pathlib import Path

LAW = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.sampled_from(
    [
        "kvtrace:a:load",
        "kvtrace:b:store",
        "kvtrace:-:load",
        "kvtrace:a,b:store",
        "request:c",
        "step 3",
        "kvtrace:",
    ]
)
SMALL = st.integers(1, 30)


class World(NamedTuple):
    """Times in ns.

    ranges: (name, start, end, thread); calls: (start, correlation, thread, launches a graph)
    copies: (start, end, correlation)
    """

    ranges: list[tuple[str, int, int, int]]
    calls: list[tuple[int, int, int, bool]]
    copies: list[tuple[int, int, int]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Few threads, times and correlation ids, so that everything meets everything."""
    threads, ids = st.integers(1, 2), st.integers(1, 6)
    ranges = draw(st.lists(st.tuples(NAMES, SMALL, SMALL, threads), max_size=8))
    return World(
        [(name, min(one, two), max(one, two), thread) for name, one, two, thread in ranges],
        draw(st.lists(st.tuples(SMALL, ids, threads, st.booleans()), max_size=8)),
        [(start, start + length, asked) for start, length, asked in
         draw(st.lists(st.tuples(st.integers(1, 50), SMALL, ids), max_size=6))],
    )  # fmt: skip


def expected(world: World) -> list[tuple[Any, ...]]:
    """By the rule, one copy after the other: (start, end, submit, requests, attribution, in a graph)."""
    found = []
    for start, end, asked in world.copies:
        calls = [each for each in world.calls if each[1] == asked]
        if not calls or len({thread for _, _, thread, _ in calls}) > 1:
            found.append((start, end, None, (), "aggregate", False))
            continue
        at, _, thread, graph = min(calls, key=lambda each: each[0])
        around = [
            (first, -last, number, named(name))
            for number, (name, first, last, where) in enumerate(world.ranges)
            if where == thread and first <= at < last and named(name)
        ]
        scope = None if graph or not around else max(around, key=lambda each: each[:3])[3]
        requests = scope.requests if scope else ()
        attribution = ("aggregate", "request", "operation")[min(len(requests), 2)]
        found.append((start, end, at if at <= start else None, requests, attribution, graph))
    return sorted(found, key=str)


def shown(found: Found, base_ns: int) -> list[tuple[Any, ...]]:
    rows = []
    for row in found.table("span", clock="gpu"):
        said = {entry["key"] for entry in row["attributes"]}
        one = (row["request_id"],) if "request_id" in row else ()
        requests = one or tuple(member["request_id"] for member in row.get("members", ()))
        submit = row.get("submit_ns")
        rows.append((row["start_ns"] - base_ns, row["end_ns"] - base_ns,
                     None if submit is None else submit - base_ns, requests, row["attribution"],
                     "cuda_graph" in said))  # fmt: skip
    assert found.losses == []
    return sorted(rows, key=str)


@LAW
@given(worlds(), st.randoms(use_true_random=False), st.integers(1, 600))
def test_copies_find_their_requests_by_the_rule_in_a_chrome_trace(
    world: World, order: random.Random, piece: int
) -> None:
    ranges = [annotation(name, start, end, tid=thread) for name, start, end, thread in world.ranges]
    events = [
        *(call(at, asked, ("cudaMemcpyAsync", "cudaGraphLaunch")[graph], tid=thread)
          for at, asked, thread, graph in _least_first(world.calls)),
        *(copy(start, end, asked) for start, end, asked in world.copies),
        *(event("kernel", "k", start, 3, list=[{"name": 1}, {"ph": "}"}]) for start, _, _ in world.copies),
    ]  # fmt: skip
    order.shuffle(events)  # the order of ranges decides between those that are alike
    assert shown(decoded(kineto, trace(*ranges, *events), piece=piece), BASE_NS) == expected(world)


@LAW
@given(worlds())
def test_copies_find_their_requests_by_the_rule_in_an_export(
    tmp_path_factory: pytest.TempPathFactory, world: World
) -> None:
    made = Export(tmp_path_factory.mktemp("export") / "r.sqlite")
    for name, start, end, thread in world.ranges:
        made.range(name, start, end, globalTid=MACHINE | PID << 24 | thread)
    for at, asked, thread, graph in _least_first(world.calls):
        made.call(at, asked, 2 if graph else 1, tid=thread)
    for start, end, asked in world.copies:
        made.copy(start, end, asked)
    assert shown(recorded(nsight, made.done()), EPOCH_NS) == expected(world)


def _least_first(calls: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, bool]]:
    """Of calls of one moment, id and thread only the first: which of them it was nobody could tell."""
    return list({each[:3]: each for each in reversed(calls)}.values())


@LAW
@given(st.integers(0, 2**62))
def test_what_kineto_writes_is_read_to_the_nanosecond(ns: int) -> None:
    assert nanoseconds(us(ns).encode()) == ns


@LAW
@given(st.from_regex(rb"-?(0|[1-9]\d{0,20})(\.\d{1,8})?([eE][+-]?\d{1,3})?", fullmatch=True))
def test_any_other_number_is_the_nearest_whole_nanosecond_or_none(text: bytes) -> None:
    exact = Decimal(text.decode()) * 1000
    found = nanoseconds(text)
    if abs(exact) > 2**63:
        assert found is None
    elif found is not None:
        assert found == int(exact.to_integral_value(ROUND_HALF_EVEN))
    assert found is not None or abs(exact) > 2**62


EXTREME = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from([[], {}, [None], {"": {}}, 2**63 - 1, 2**63, -0.0, 1e308, "\0", "x" * 600]),
    st.just("kvtrace:a:load"),
)  # fmt: skip
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS = ("correlation", "device", "stream", "bytes", "fromDevice", "toDevice", "graph node id")


def is_sound(found: Found) -> None:
    """Rows of the schema's columns and words, times that are believed, losses that say how many."""
    for table, rows in found.rows.items():
        columns = {column.name for column in TABLES[table]} | {"id_kind"}
        for row in rows:
            assert set(row) <= columns
            assert all(row.get(column) is None or row[column] in words for column, words in CLOSED.items())
            assert row.get("start_ns", 1) > 0
            assert row.get("end_ns", 2**63 - 1) >= row.get("start_ns", 1)
    assert all(loss.cause in LOSS_CAUSES and loss.count > 0 for loss in found.losses)


@LAW
@given(st.data())
def test_any_value_in_place_of_another_costs_at_most_its_event(data: st.DataObject) -> None:
    good = [annotation("kvtrace:a:load", 10, 90), call(20, 1), copy(30, 40, 1)]
    bad = [json.loads(each) for each in good]
    for each in bad:
        for place, names in ((each, FIELDS), (each.get("args", {}), ARGS)):
            for name in data.draw(st.sets(st.sampled_from(names), max_size=3)):
                place[name] = data.draw(EXTREME)
    texts = [json.dumps(each) for each in bad]
    others = [annotation("kvtrace:z:load", 10**6, 10**7, tid=8), call(2 * 10**6, 99, tid=8)]
    found = decoded(kineto, trace(*texts, *others, copy(3 * 10**6, 4 * 10**6, 99)))
    is_sound(found)
    assert [row["request_id"] for row in copies_of(decoded(kineto, trace(*good)))] == ["a"]
    assert [row for row in copies_of(found) if row.get("bytes") == 4096][-1]["tier_to"] == "gpu"


def copies_of(found: Found) -> list[dict[str, Any]]:
    return found.table("span", clock="gpu")


@LAW
@given(st.integers(0, 10**6), st.integers(1, 400))
def test_a_trace_that_is_cut_gives_the_events_before_the_cut(at: int, piece: int) -> None:
    whole = trace(*(copy(at_ns, at_ns + 5, at_ns) for at_ns in range(1, 12)))
    cut = whole[: at % len(whole)]
    found = decoded(kineto, cut, piece=piece)
    is_sound(found)
    starts = [row["start_ns"] - BASE_NS for row in copies_of(found)]
    inside = cut.count(b'"bytes": 4096}\n  }')
    assert starts == list(range(1, 12))[:inside]
    assert found.losses or whole.endswith(cut) or not cut


@LAW
@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_no_bytes_raise(content: bytes) -> None:
    for text in (content, b'{"schemaVersion": 1, "traceEvents": [' + content, content + trace(copy(1, 2, 3))):
        kineto.looks_like(text)
        nsight.looks_like(text)
        is_sound(decoded(kineto, text))


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Export(tmp_path_factory.mktemp("whole") / "r.sqlite")
    for at in range(1, 40):
        made.range(f"request:{at}", at, at + 9).call(at, at).copy(at, at + 5, at)
    return made.done()


@LAW
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=16)), max_size=6),
    st.integers(1, 2),
)
def test_no_bytes_in_place_of_others_of_an_export_raise(
    export: Path, tmp_path: Path, puts: list[tuple[int, bytes]], parts: int
) -> None:
    content = bytearray(export.read_bytes())
    for place, put in puts:
        content[place % len(content) : place % len(content) + len(put)] = put
    path = tmp_path / "r.sqlite"
    path.write_bytes(content[: len(content) // parts])
    is_sound(recorded(nsight, path))
