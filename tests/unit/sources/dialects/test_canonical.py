"""Spans with kvtrace.op, from anyone."""

from __future__ import annotations

import pytest
from kvtrace.schema.attributes import CANONICAL, MEMBERS
from kvtrace.schema.tables import SPAN
from kvtrace.schema.vocabulary import CLOSED, OPS, REASONS
from tests.unit.importer.drawn import MS, op, span, word, words

TYPES = {column.name: column.type for column in SPAN}


@pytest.mark.parametrize(("attribute", "column"), sorted(CANONICAL.items()))
def test_every_attribute_of_ours_fills_its_column_and_leaves_the_rest(attribute: str, column: str) -> None:
    value: object = 7 if TYPES[column] == "int64" else CLOSED.get(column, ("anything",))[-1]
    word_of_op = "queue"
    if column == "reason":
        value = "capacity"
    if column == "first_token_ns":
        value = 1_500_000
    if column == "op":
        value = word_of_op = "wait"
    row = word(span("x", 1, 2, {"kvtrace.op": word_of_op, attribute: value}))
    assert row[column] == value
    assert row["attributes"] == {}


@pytest.mark.parametrize("token_ns", [999_999, 2_000_001])
def test_a_first_token_outside_of_its_request_is_not_believed_and_counted(token_ns: int) -> None:
    (row,), lost = words(span("x", 1, 2, {"kvtrace.op": "request", "kvtrace.first_token_ns": token_ns}))
    assert "first_token_ns" not in row
    assert dict(row["attributes"]) == {"kvtrace.first_token_ns": str(token_ns)}
    assert lost == [("negative_duration", "request", 1)]


@pytest.mark.parametrize("tokens", ['["7", "8"]', "[7, 8]"])
def test_numbers_of_members_may_be_texts(tokens: str) -> None:
    attributes = {
        "kvtrace.op": "step",
        "kvtrace.step.request_ids": '["a", "b"]',
        "kvtrace.step.tokens": tokens,
    }
    assert [member["scheduled_tokens"] for member in word(span("x", 1, 2, attributes))["members"]] == [7, 8]


def test_members_of_unequal_length_are_a_loss_of_their_step() -> None:
    attributes = {
        "kvtrace.op": "step",
        "kvtrace.step.request_ids": '["a", "b"]',
        "kvtrace.step.tokens": "[7]",
    }
    _, lost = words(span("x", 1, 2, attributes))
    assert lost == [("undecodable", "step", 1)]


@pytest.mark.parametrize("operation", sorted(OPS))
def test_every_operation_is_a_row_with_its_own_times(operation: str) -> None:
    row = word(op(operation, 10, 20))
    assert (row["op"], row["start_ns"], row["end_ns"]) == (operation, 10 * MS, 20 * MS)
    assert (row["request_id"], row["evidence"], row["attribution"]) == ("r0", "native", "request")


@pytest.mark.parametrize(
    ("operation", "reason"), [(name, word) for name in REASONS for word in REASONS[name]]
)
def test_a_reason_of_the_operations_own_list_is_its_reason(operation: str, reason: str) -> None:
    row = word(op(operation, 1, 2, reason=reason))
    assert row["reason"] == reason
    assert row["attributes"] == {}


@pytest.mark.parametrize(
    ("operation", "reason"), [("queue", "duplicate"), ("step", "capacity"), ("drop", "no room")]
)
def test_a_reason_out_of_the_closed_list_stays_an_attribute(operation: str, reason: str) -> None:
    row = word(op(operation, 1, 2, reason=reason))
    assert "reason" not in row
    assert row["attributes"] == {"kvtrace.reason": reason}


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kvtrace.tier.from", "nvme"),
        ("kvtrace.outcome", "fine"),
        ("kvtrace.status", "done"),
        ("kvtrace.tokens", "twelve"),
        ("kvtrace.tokens", 1.5),
        ("kvtrace.bytes", "99999999999999999999"),
    ],
)
def test_what_does_not_fit_a_column_stays_an_attribute(attribute: str, value: object) -> None:
    row = word(span("x", 1, 2, {"kvtrace.op": "load", attribute: value}))
    assert CANONICAL[attribute] not in row
    assert row["attributes"] == {attribute: str(value)}


@pytest.mark.parametrize("given", [12, "12", 12.0, "12.0"])
def test_a_number_is_read_from_any_of_its_forms(given: object) -> None:
    assert word(span("x", 1, 2, {"kvtrace.op": "load", "kvtrace.tokens": given}))["tokens"] == 12


def test_zero_is_a_number_and_no_null() -> None:
    assert word(op("load", 1, 2, tokens=0))["tokens"] == 0


def test_an_unknown_operation_is_a_row_without_op_and_keeps_every_attribute() -> None:
    row = word(op("teleport", 1, 2, tokens=7))
    assert "op" not in row
    assert row["attributes"] == {"kvtrace.op": "teleport", "kvtrace.request.id": "r0", "kvtrace.tokens": "7"}


def test_found_tokens_of_each_tier_are_one_map() -> None:
    more = {
        "kvtrace.found_tokens.host": 512,
        "kvtrace.found_tokens.disk": 768,
        "kvtrace.found_tokens.attic": 1,
    }
    rows, _ = words(op("lookup", 1, 2, found_tokens=1280, more=more), op("lookup", 3, 4, found_tokens=0))
    assert dict(rows[0]["found_by_tier"]) == {"host": 512, "disk": 768}
    assert dict(rows[0]["attributes"]) == {"kvtrace.found_tokens.attic": "1"}
    assert "found_by_tier" not in rows[1]


def members(**arrays: object) -> dict[str, object]:
    return {f"kvtrace.step.{name}": value for name, value in arrays.items()}


def test_members_are_arrays_of_equal_length() -> None:
    arrays = members(
        request_ids=["r0", "r1"], phases=["prefill", "decode"], tokens=[128, 1],
        output_tokens=[0, 1], computed_before=[0, 1500],
    )  # fmt: skip
    assert set(arrays) == set(MEMBERS)
    row = word(op("step", 1, 2, None, more=arrays))
    assert row["members"] == [
        {
            "request_id": "r0",
            "phase": "prefill",
            "scheduled_tokens": 128,
            "output_tokens": 0,
            "computed_before": 0,
        },
        {
            "request_id": "r1",
            "phase": "decode",
            "scheduled_tokens": 1,
            "output_tokens": 1,
            "computed_before": 1500,
        },
    ]
    assert (row["attribution"], row["attributes"]) == ("operation", {})


def test_a_member_array_that_is_absent_is_null_in_every_member() -> None:
    row = word(op("wait", 1, 2, None, more=members(request_ids=["r0", "r1"], tokens=[128, 1])))
    assert [member["scheduled_tokens"] for member in row["members"]] == [128, 1]
    assert [member["output_tokens"] for member in row["members"]] == [None, None]


def test_steps_with_and_without_an_array_stand_side_by_side() -> None:
    rows, _ = words(
        op("step", 1, 2, None, more=members(request_ids=["r0", "r1"], tokens=[128, 1])),
        op("step", 2, 3, None, more=members(request_ids=["r2"])),
        op("step", 3, 4, None, more=members(request_ids=[])),
        op("step", 4, 5, None),
    )
    assert [[m["request_id"] for m in row.get("members", [])] for row in rows] == [
        ["r0", "r1"],
        ["r2"],
        [],
        [],
    ]
    assert [m["scheduled_tokens"] for m in rows[1]["members"]] == [None]
    assert rows[2]["members"] == []
    assert "members" not in rows[3]


@pytest.mark.parametrize(
    "arrays",
    [
        members(request_ids=["r0", "r1"], tokens=[128]),
        members(request_ids=["r0"], tokens=[128], phases=["prefill", "decode"]),
        members(request_ids="r0 and r1", tokens=[128, 1]),
        members(tokens=[128, 1]),
        members(request_ids=["r0", "r1"], tokens="two numbers"),
    ],
)
def test_arrays_that_disagree_stay_attributes(arrays: dict[str, object]) -> None:
    rows, _ = words(
        op("step", 1, 2, None, more=arrays),
        op("step", 2, 3, None, more=members(request_ids=["r9"], tokens=[1])),
    )
    assert "members" not in rows[0]
    assert set(dict(rows[0]["attributes"])) == set(arrays)
    assert rows[1]["members"][0]["request_id"] == "r9"


def test_gen_ai_request_id_names_the_request_where_ours_does_not() -> None:
    named = {"kvtrace.op": "route", "gen_ai.request.id": "theirs"}
    assert word(span("x", 1, 2, named))["request_id"] == "theirs"
    row = word(span("x", 1, 2, {**named, "kvtrace.request.id": "ours"}))
    assert row["request_id"] == "ours"
    assert row["attributes"] == {"gen_ai.request.id": "theirs"}


def test_evidence_and_attribution_that_were_said_are_kept() -> None:
    row = word(op("route", 1, 1, predicted_tokens=512, evidence="predicted", attribution="aggregate"))
    assert (row["predicted_tokens"], row["evidence"], row["attribution"]) == (512, "predicted", "aggregate")


def test_a_span_without_an_end_is_open() -> None:
    row = word(op("load", 1, None))
    assert "end_ns" not in row
    assert row["outcome"] == "open"


def test_an_attribute_given_twice_counts_with_its_last_value() -> None:
    twice = op("load", 1, 2, tokens=1)
    twice.span["attributes"].append({"key": "kvtrace.tokens", "value": {"intValue": "2"}})
    row = word(twice)
    assert row["tokens"] == 2
    assert row["attributes"] == {}
