"""LMCache MP's spans, all of whose numbers are text."""

from __future__ import annotations

import pytest
from tests.unit.importer.drawn import (
    INTERNAL,
    LMCACHE,
    MS,
    lmcache,
    lookup,
    retrieve,
    span,
    store,
    word,
    words,
)


@pytest.mark.parametrize(
    ("l1", "l2", "outcome"), [(0, 0, "miss"), (512, 0, "partial"), (512, 768, "ok"), (1280, 0, "ok")]
)
def test_a_lookup_says_what_it_asked_for_and_found_by_tier(l1: int, l2: int, outcome: str) -> None:
    row = word(lookup(INTERNAL, 12, 15, 1280, l1, l2))
    assert (row["op"], row["outcome"]) == ("lookup", outcome)
    assert (row["requested_tokens"], row["found_tokens"]) == (1280, l1 + l2)
    assert dict(row["found_by_tier"]) == {"host": l1, "unknown": l2}
    assert (row["request_id"], row["id_kind"], row["observer"]) == (INTERNAL, "internal", "server")
    assert set(row["attributes"]) == {"found_count", "early_exit_reason", "model_name", "cache_salt"}


@pytest.mark.parametrize(
    ("early", "reason"),
    [
        ("empty_chunk_hashes", "below_chunk"),
        ("no_gpu_context", "no_context"),
        ("no_group_layout_descs", "no_context"),
        ("something_new", "unknown"),
    ],
)
def test_a_lookup_that_left_early_was_skipped_and_says_why(early: str, reason: str) -> None:
    row = word(lookup(INTERNAL, 12, 15, 0, early=early))
    assert (row["outcome"], row["reason"], row["found_tokens"]) == ("skipped", reason, 0)
    assert row["attributes"]["early_exit_reason"] == early


def test_a_retrieve_is_a_load_from_host_to_gpu() -> None:
    row = word(retrieve(INTERNAL, 16, 20, 5, 3))
    assert (row["op"], row["tier_from"], row["tier_to"], row["purpose"]) == ("load", "host", "gpu", "reuse")
    assert (row["tokens"], row["bytes"], row["outcome"]) == (1280, 2_621_440, "ok")
    assert (row["transfer_id"], row["device"], row["component"]) == (f"{INTERNAL}#3", "cpu", "lmcache.l1")


def test_a_retrieve_of_no_tokens_failed() -> None:
    rows, _ = words(retrieve(INTERNAL, 16, 20, 0, 3), retrieve(INTERNAL, 26, 30, 1, 4))
    assert [(row["outcome"], row.get("reason")) for row in rows] == [("failed", "unknown"), ("ok", None)]


def test_a_store_goes_from_gpu_to_host() -> None:
    row = word(store(INTERNAL, 30, 33, 2, 1))
    assert (row["op"], row["tier_from"], row["tier_to"], row["outcome"]) == ("store", "gpu", "host", "ok")
    assert (row["tokens"], row["bytes"]) == (512, 1_048_576)


def test_a_store_that_stored_nothing_is_a_drop_of_unknown_reason() -> None:
    rows, _ = words(store(INTERNAL, 30, 33, 0, 1), store(INTERNAL, 34, 35, 1, 2))
    assert [(row["op"], row.get("reason"), row["outcome"]) for row in rows] == [
        ("drop", "unknown", "skipped"), ("store", None, "ok"),
    ]  # fmt: skip


def test_a_store_that_does_not_say_how_much_it_stored_is_a_store() -> None:
    row = word(lmcache("mp.store", INTERNAL, 30, 33))
    assert row["op"] == "store"
    assert "tokens" not in row


def test_the_servers_own_root_has_no_operation_and_keeps_what_it_says() -> None:
    row = word(lmcache("request", INTERNAL, 11, 99, more={"hit_tokens": 1280, "hit_rate": 1.0}))
    assert "op" not in row
    assert (row["request_id"], row["observer"]) == (INTERNAL, "server")
    assert row["attributes"] == {"hit_tokens": "1280", "hit_rate": "1.0"}


def test_a_second_root_of_a_session_is_one_more_row_without_operation() -> None:
    rows, lost = words(lmcache("request", INTERNAL, 11, 99), lmcache("request", INTERNAL, 100, 101))
    assert [("op" in row, row["request_id"]) for row in rows] == [(False, INTERNAL), (False, INTERNAL)]
    assert lost == []


@pytest.mark.parametrize("name", ["transfer.kernel_interval", "transfer.staging"])
def test_stacked_children_take_their_true_times_from_attributes(name: str) -> None:
    #  the span says      40 |----| 45       (stacked after its sibling)
    #  the attributes  31 |--| 32
    times = {"first_start_s": "0.031", "last_end_s": "0.032", "nbytes": "4096", "num_steps": "3"}
    row = word(span(name, 40, 45, times, resource=LMCACHE, scope="lmcache_mp.transfer"))
    assert "op" not in row
    assert (row["start_ns"], row["end_ns"], row["bytes"]) == (31 * MS, 32 * MS, 4096)


@pytest.mark.parametrize(
    ("first", "last"), [("0.032", "0.031"), ("-1", "0.03"), ("never", "0.03"), ("0", "0.1"), ("1e12", "2e12")]
)
def test_stacked_children_without_true_times_keep_the_spans(first: str, last: str) -> None:
    times = {"first_start_s": first, "last_end_s": last}
    row = word(span("transfer.staging", 40, 45, times, resource=LMCACHE, scope="lmcache_mp.transfer"))
    assert (row["start_ns"], row["end_ns"]) == (40 * MS, 45 * MS)


def test_an_unknown_span_of_lmcache_is_its_sessions_without_operation() -> None:
    row = word(
        span(
            "cb.lookup", 1, 2, {"session_id": INTERNAL, "x": "y"}, resource=LMCACHE, scope="lmcache_mp.blend"
        )
    )
    assert "op" not in row
    assert (row["request_id"], row["attributes"]) == (INTERNAL, {"x": "y"})


def test_a_span_of_its_name_and_another_scope_is_not_lmcaches() -> None:
    row = word(span("mp.store", 1, 2, {"session_id": INTERNAL, "stored_count": "1"}, scope="somebody.else"))
    assert "op" not in row
    assert "request_id" not in row
