"""What goes in comes out: values, gaps, texts, members, facts."""

from __future__ import annotations

import enum
import gc
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace import recorder
from kvtrace.recorder import encoding
from kvtrace.recorder.shapes import DEFINITIONS
from kvtrace.schema.frames import CUT, MAX_TEXT

if TYPE_CHECKING:
    from tests.unit.recorder.conftest import Spools

QUEUE = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "reason", "blocks"), op="queue", observer="scheduler"
)
STEP = recorder.shape("span", ("start_ns", "members"), op="step")
NOTE = recorder.shape("span", ("tokens", "attributes.note"), op="load")


def column(spools: Spools, name: str) -> list[Any]:
    recorder.flush(10)
    return [row[name] for row in spools.rows()]


def test_a_row_comes_back_with_the_columns_and_constants_of_its_shape(spools: Spools) -> None:
    recorder.record((QUEUE, "r1", 10, 20, "capacity", 4))
    recorder.flush(10)
    assert spools.rows() == [
        {"request_id": "r1", "start_ns": 10, "end_ns": 20, "reason": "capacity", "blocks": 4}
        | {"op": "queue", "observer": "scheduler"}
    ]


def test_what_was_not_observed_is_null_and_not_zero(spools: Spools) -> None:
    recorder.record((QUEUE, "r1", 0, None, None, None))
    recorder.record((QUEUE, None, 0, 0, "", 0))
    recorder.flush(10)
    first, second = spools.rows()
    assert [first[name] for name in ("end_ns", "reason", "blocks")] == [None, None, None]
    assert [second[name] for name in ("request_id", "end_ns", "reason", "blocks")] == [None, 0, "", 0]


def test_rows_of_one_shape_keep_their_order(spools: Spools) -> None:
    for number in range(5_000):
        recorder.record((QUEUE, "r", number, number, "capacity", number))
    assert column(spools, "blocks") == list(range(5_000))


def test_the_frames_of_one_flush_say_the_same_time_and_everything_before_it_is_there(spools: Spools) -> None:
    recorder.record((QUEUE, "r0", 0, 0, None, 0))
    recorder.flush(10)
    for number in range(3_000):
        recorder.record((QUEUE, "r1", number, number, None, number))
        recorder.record((NOTE, number, "n"))
    recorded = recorder.now()
    recorder.flush(10)
    first, *second = [frame for frame in spools.frames() if frame.kind == "rows"]
    assert len(second) > 4
    times = {frame.written_ns for frame in second if frame.written_ns > recorded}
    assert len(times) <= 1
    assert len({frame.written_ns for frame in second}) < len(second)
    assert 0 < first.written_ns < recorded
    assert first.written_ns < second[-1].written_ns


def test_a_column_that_mixes_types_loses_no_row(spools: Spools) -> None:
    for value in (1, "two", 3.0, None, True, "4"):
        recorder.record((NOTE, value, value))
    recorder.flush(10)
    assert [row["attributes.note"] for row in spools.rows()] == ["1", "two", "3.0", None, "true", "4"]
    assert [row["tokens"] for row in spools.rows()] == [1, None, 3, None, 1, 4]


@pytest.mark.parametrize("values", [(True, 1), (1, True)])
def test_truth_in_an_attribute_is_not_one(spools: Spools, values: tuple[int, int]) -> None:
    for value in values:
        recorder.record((NOTE, value, value))
    recorder.flush(10)
    assert [row["attributes.note"] for row in spools.rows()] == [
        "true" if value is True else "1" for value in values
    ]
    assert [row["tokens"] for row in spools.rows()] == [1, 1]


@pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1, -(1 << 63), -(1 << 63) - 1, 1 << 200])
def test_an_integer_of_any_size_is_kept_where_its_column_holds_it(spools: Spools, value: int) -> None:
    shape = recorder.shape("span", ("parent_span_id", "start_ns", "attributes.x"))
    recorder.record((shape, value, value, value))
    recorder.record((shape, 5, 5, 5))
    recorder.flush(10)
    first, second = spools.rows()
    assert first["parent_span_id"] == (value if 0 <= value < 1 << 64 else None)
    assert first["start_ns"] == (value if -(1 << 63) <= value < 1 << 63 else None)
    assert first["attributes.x"] == str(value)
    assert second == {"parent_span_id": 5, "start_ns": 5, "attributes.x": "5"}


def test_a_lone_surrogate_is_written_as_its_escape(spools: Spools) -> None:
    recorder.record((NOTE, 1, "a\ud800b"))
    recorder.record((NOTE, 2, "fine"))
    assert column(spools, "attributes.note") == ["a\\ud800b", "fine"]


def test_a_huge_text_is_cut_and_says_so(spools: Spools) -> None:
    recorder.record((NOTE, 1, "x" * (MAX_TEXT + 1)))
    recorder.record((NOTE, 2, "y" * MAX_TEXT))
    cut, whole = column(spools, "attributes.note")
    assert len(cut) == MAX_TEXT
    assert cut.endswith(CUT)
    assert whole == "y" * MAX_TEXT


def test_words_of_an_enumeration_are_their_text(spools: Spools) -> None:
    class Reason(str, enum.Enum):  # noqa: UP042 - not StrEnum: str() gives its name
        CAPACITY = "capacity"

    class Size(enum.IntEnum):
        FOUR = 4

    recorder.record((QUEUE, "r", 1, 2, Reason.CAPACITY, Size.FOUR))
    recorder.flush(10)
    (row,) = spools.rows()
    assert (row["reason"], row["blocks"]) == ("capacity", 4)


def test_members_come_back_row_by_row(spools: Spools) -> None:
    rows = [
        (["a", "b"], ["prefill", "decode"], [7, 1], [0, 1], [0, 512]),
        None,
        ((), (), (), (), ()),
        (["c"], ["decode"], [1], [None], [None]),
    ]
    for number, members in enumerate(rows):
        recorder.record((STEP, number, members))
    found = column(spools, "members")
    names = ("request_id", "phase", "scheduled_tokens", "output_tokens", "computed_before")
    assert found == [
        None if row is None else [dict(zip(names, member, strict=True)) for member in zip(*row, strict=True)]
        for row in rows
    ]


def test_a_row_that_no_column_can_hold_is_counted_and_its_neighbours_are_kept(spools: Spools) -> None:
    for row in (
        (QUEUE, "r1", 1, 2, "capacity", 1),
        (QUEUE, "r2", object(), 2, "capacity", 1),
        (QUEUE, "too", "short"),
        (QUEUE, "r3", 1, 2, "capacity", 1, "too long"),
        (STEP, 1, (["a", "b"], ["decode"], [1], [1], [1])),
        (QUEUE, "r4", 1, 2, ["a", "list"], 1),
        (QUEUE, "r5", 1, 2, "capacity", 1),
    ):
        recorder.record(row)
    assert column(spools, "request_id") == ["r1", "r5"]
    assert spools.losses() == {("undecodable", "queue"): 4, ("undecodable", "step"): 1}


def test_a_row_with_a_value_too_many_is_counted_and_not_cut(spools: Spools) -> None:
    recorder.record((QUEUE, "r1", 1, 2, "capacity", 1))
    recorder.record((QUEUE, "r2", 1, 2, "capacity", 1, "too many"))
    assert column(spools, "request_id") == ["r1"]
    assert spools.losses() == {("undecodable", "queue"): 1}


@pytest.mark.parametrize("row", [None, (), 7, "text", {0: 1}, ([],), (10**9,), ("shape", 1), (-1, 2)])
def test_what_is_no_row_at_all_is_counted(spools: Spools, row: Any) -> None:
    recorder.record((NOTE, 1, "a"))
    recorder.record(row)
    recorder.record((NOTE, 2, "b"))
    assert column(spools, "tokens") == [1, 2]
    assert spools.losses() == {("undecodable", None): 1}


def test_a_foreign_value_is_never_turned_into_text(spools: Spools) -> None:
    class Prompt:
        def __repr__(self) -> str:
            raise AssertionError

        __str__ = __repr__

    recorder.record((NOTE, 1, Prompt()))
    recorder.describe(config={"prompt": Prompt()})
    recorder.record((NOTE, 2, "b"))
    assert column(spools, "tokens") == [2]
    assert spools.facts() == {"config": {"prompt": "<Prompt>"}}


def test_an_epoch_of_texts_ends_and_every_name_stays_right(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "EPOCH_TEXTS", 1_000)
    for number in range(20_000):
        recorder.record((NOTE, number, f"request-{number // 2}"))
    assert column(spools, "attributes.note") == [f"request-{number // 2}" for number in range(20_000)]
    assert spools.reader()._texts is None
    reader = spools.reader()
    list(reader.frames())
    assert reader._texts is not None
    assert reader._texts.epoch >= 5
    assert reader._texts.size < 2_500


def test_facts_merge_and_the_last_ones_count(spools: Spools) -> None:
    recorder.describe(engine="e", instruments={"a": "active"})
    recorder.flush(10)
    recorder.describe(role="scheduler", instruments={"b": "no such method"})
    recorder.flush(10)
    assert spools.facts() == {
        "engine": "e", "role": "scheduler", "instruments": {"a": "active", "b": "no such method"},
    }  # fmt: skip


def test_an_identity_is_a_row_a_field(spools: Spools) -> None:
    recorder.identity(
        "i", "writer", {"dtype": "bf16", "seed": "0"}, source="config", enforced_by={"dtype": "key"}
    )
    recorder.flush(10)
    assert [(r["field"], r["value"], r["enforced_by"]) for r in spools.rows("identity")] == [
        ("dtype", "bf16", "key"), ("seed", "0", None),
    ]  # fmt: skip


def test_losses_of_one_kind_are_summed_with_their_times(spools: Spools) -> None:
    before = recorder.now()
    for _ in range(3):
        recorder.lost("hook_failure", 2, op="step", detail="steps: KeyError")
    recorder.lost("hook_failure", detail="other")
    after = recorder.now()
    recorder.flush(10)
    rows = {row["detail"]: row for row in spools.rows("loss")}
    assert {detail: row["count"] for detail, row in rows.items()} == {"steps: KeyError": 6, "other": 1}
    assert all(before <= row["from_ns"] <= row["to_ns"] <= after for row in rows.values())


def test_the_same_shape_asked_for_twice_is_one_shape() -> None:
    before = len(DEFINITIONS)
    again = recorder.shape(
        "span", ("request_id", "start_ns", "end_ns", "reason", "blocks"), op="queue", observer="scheduler"
    )
    assert again == QUEUE
    assert len(DEFINITIONS) == before
    assert recorder.shape("span", ("request_id",), op="queue") != recorder.shape(
        "span", ("request_id",), op="lookup"
    )


def test_a_waiting_row_of_plain_values_is_nothing_that_the_garbage_collector_visits() -> None:
    row = (NOTE, 10**12, "text" * 2)
    gc.collect(0)
    assert not gc.is_tracked(row)


def test_span_ids_carry_the_prefix_of_the_process_and_never_repeat(spools: Spools) -> None:
    recorder.record((NOTE, 1, "a"))
    ids = {recorder.next_id() for _ in range(1_000)}
    recorder.flush(10)
    header = spools.frames()[0].content
    assert {number >> 40 for number in ids} == {header["prefix"]}
    assert len(ids) == 1_000
    assert max(ids) < 1 << 63
    assert not any(number >> 39 & 1 for number in ids)


def test_a_container_says_the_name_of_its_host_as_opentelemetry_does(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=x, host.name=node-7")
    recorder.record((QUEUE, "r", 0, 1, None, None))
    recorder.flush(10)
    reader = spools.reader()
    assert spools.kinds()[0] == "header"
    list(reader.frames())
    assert reader.header is not None
    assert reader.header["host"] == "node-7"
