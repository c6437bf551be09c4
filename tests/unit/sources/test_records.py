"""Records that somebody else wrote: numbers are numbers, names are names, counts are bounded."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from kvtrace.sources import records
from kvtrace.sources.losses import Loss
from kvtrace.sources.records import (
    LATEST_TIME_NS,
    LONGEST_NS,
    MAX_NAMES,
    Rows,
    at,
    attributes,
    frame,
    number,
    span_ns,
    text,
    time_ns,
    whole,
)

LATEST = 2**63 - 1


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (12, 12), (12.0, 12), (LATEST, LATEST), (LATEST + 1, None), (-1, None), (1.5, None),
     (True, None), ("12", None), (None, None), (math.inf, None), (math.nan, None), (1e300, None),
     ([1], None)],
)  # fmt: skip
def test_a_count_is_a_whole_number_of_64_bits(value: Any, count: int | None) -> None:
    assert whole(value) == count


@pytest.mark.parametrize(
    ("value", "unit", "time"),
    [(1795963408245, 10**6, 1795963408245 * 10**6), (1.5, 10**9, 15 * 10**8), (0, 1, None), (-1, 1, None),
     (LATEST, 1, None), (LATEST // 10**6, 10**6, None), (2**62 + 1, 1, 2**62 + 1), (1e300, 1, None),
     ("1", 1, None), (True, 1, None)],
)  # fmt: skip
def test_a_time_is_exact_or_none(value: Any, unit: int, time: int | None) -> None:
    assert time_ns(value, unit) == time


@pytest.mark.parametrize(
    ("value", "length"),
    [(0, 0), (1.5, 15 * 10**5), (-0.1, None), (math.nan, None), (1e300, None), ("1", None)],
)
def test_a_duration_is_not_negative(value: Any, length: int | None) -> None:
    assert span_ns(value, 10**6) == length


def test_the_latest_time_and_the_longest_duration_fit_into_64_bits_together() -> None:
    assert time_ns(LATEST_TIME_NS, 1) == LATEST_TIME_NS
    assert span_ns(LONGEST_NS, 1) == LONGEST_NS
    assert LATEST_TIME_NS + LONGEST_NS <= LATEST


def test_a_name_is_a_text_of_bounded_length() -> None:
    given = ("a", "", "a" * 512, "a" * 513, 4, None)
    assert [text(value) for value in given] == ["a", None, "a" * 512, None, None, None]


def test_a_path_that_is_missing_is_none() -> None:
    assert at({"a": {"b": 1}}, "a", "b") == 1
    assert at({"a": 4}, "a", "b") is at([], "a") is at(None, "a") is None


def test_attributes_are_what_is_known_as_text() -> None:
    assert attributes(a=1, b=1.5, c=True, d="x", e=None, f="", g=[1], h=math.nan) == {
        "a": "1", "b": "1.5", "c": "true", "d": "x",
    }  # fmt: skip


def test_rows_come_in_parts_and_counts_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ROWS_A_PART", 2)
    rows = Rows("source")
    rows.add("alias", {"alias": "a"})
    assert not rows.full
    rows.add("span", {"name": "n", "attributes": {"k": "v"}, "id_kind": "internal"})
    rows.refuse("bad", op="request")
    rows.refuse("bad", op="request", count=2)
    rows.drop("prompt", 3)
    assert rows.full
    part = rows.part()
    assert (part.tables["span"].columns, part.losses, part.content) == (
        ["name", "attributes", "id_kind"], (), {"prompt": 3},
    )  # fmt: skip
    last = rows.end()
    assert (last.tables, last.content) == ({}, {})
    assert last.losses == (Loss("source", "undecodable", 3, op="request", detail="bad"),)


def test_remarks_and_details_are_bounded_whatever_the_input_names() -> None:
    rows = Rows("source")
    for count in range(1000):
        rows.remark(f"remark {count}")
        rows.refuse(f"detail {count}")
        rows.ignore("records", [f"field {number}"])
    last = rows.end()
    assert len(last.losses) <= MAX_NAMES + 1
    assert sum(loss.count for loss in last.losses) == 1000
    assert len(last.notes) <= MAX_NAMES + 2
    assert max(map(len, last.notes)) < 1000


def test_a_frame_has_the_types_of_its_table() -> None:
    rows: list[dict[str, Any]] = [{"time_ns": 1, "labels": {"a": "b"}}, {"value": 2}]
    found = frame("metric", rows)
    assert found.schema["time_ns"] == pl.Int64
    assert found.schema["value"] == pl.Float64
    assert found.to_dicts()[0]["labels"] == {"a": "b"}
    assert found.to_dicts()[1]["labels"] is None


def test_a_whole_number_beyond_what_a_float_holds_is_no_number() -> None:
    assert number(10**400) is None
    assert number(7) == 7.0
