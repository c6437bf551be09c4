"""Times that cannot be are set aside and counted; an end that nobody saw is null."""

from __future__ import annotations

import pytest
from tests.unit.importer.drawn import MS, llm_request, op, span, words

LAST_NS = 2**63 - 1
IN_2261_NS = 9_200_000_000 * 10**9
IN_2262_NS = 9_223_000_000 * 10**9


@pytest.mark.parametrize(
    "times",
    [(0, 5), (0, 0), (LAST_NS + 1, LAST_NS + 2), (5, LAST_NS + 1), (2**64 - 1, 2**64 - 1)],
)
def test_a_time_of_zero_or_beyond_64_bits_of_nanoseconds_is_set_aside(times: tuple[int, int]) -> None:
    rows, lost = words(span("bad", 0, 0, times_ns=times), span("good", 1, 2))
    assert [row["name"] for row in rows] == ["good"]
    assert lost == [("impossible_time", None, 1)]


@pytest.mark.parametrize("times", [(IN_2261_NS, IN_2261_NS + 1), (1, LAST_NS), (IN_2262_NS - 1, IN_2262_NS)])
def test_a_time_that_64_bits_hold_is_kept(times: tuple[int, int]) -> None:
    rows, lost = words(span("far", 0, 0, times_ns=times))
    assert [(row["start_ns"], row["end_ns"]) for row in rows] == [times]
    assert lost == []


def test_an_end_before_its_start_is_set_aside_and_counted() -> None:
    rows, lost = words(op("load", 5, 4), op("load", 5, 5), op("store", 6, 5))
    assert [(row["start_ns"], row["end_ns"]) for row in rows] == [(5 * MS, 5 * MS)]
    assert lost == [("negative_duration", None, 2)]


def test_no_end_is_null_and_no_loss() -> None:
    rows, lost = words(span("x", 5, None))
    assert "end_ns" not in rows[0]
    assert lost == []


def test_attributes_stay_with_their_span_when_others_are_set_aside() -> None:
    rows, _ = words(
        op("load", 5, 4, tokens=1),
        op("load", 1, 2, tokens=2),
        span("zero", 0, 1, {"a": "b"}),
        op("load", 2, 3, tokens=4),
    )
    assert [row["tokens"] for row in rows] == [2, 4]
    assert [dict(row.get("attributes", ())) for row in rows] == [{}, {}]


def test_nothing_is_left_when_every_time_is_impossible() -> None:
    rows, lost = words(span("a", 0, 1), llm_request("cmpl-x-0", 5, 4, queue_ms=1))
    assert rows == []
    assert sorted(lost) == [("impossible_time", None, 1), ("negative_duration", None, 1)]
