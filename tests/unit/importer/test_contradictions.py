"""What one source says is missing from another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.importer.drawn import (
    EXTERNAL,
    INTERNAL,
    LMCACHE,
    hash_log,
    imported,
    llm_request,
    lmcache,
    lookup,
    losses,
    op,
    query,
    retrieve,
    span,
    store,
)

if TYPE_CHECKING:
    from pathlib import Path

OTHER = "cmpl-req-001-0-99ccb134"
THIRD = "cmpl-req-002-0-aaaabbbb"


def test_a_lookup_in_the_log_without_a_span_is_an_unclean_end_of_the_server(tmp_path: Path) -> None:
    """The exporter was killed before it sent the second lookup.

    spans   12 |--| 15
    log     12 .         60 .
    """
    run = imported(tmp_path, [lookup(INTERNAL, 12, 15, 1280)], hash_log((INTERNAL, 12, 5), (OTHER, 60, 5)))
    assert losses(run) == [("unclean_end", "lookup", 1)]
    rows = query(run, "SELECT process, source, from_ns, to_ns, detail FROM loss")
    assert rows[0][:4] == ("lmcache-1", "import", 60_000_000, 60_000_000)
    assert "hash log" in rows[0][4]


def test_a_server_none_of_whose_lookups_came_is_convicted_by_its_other_spans(tmp_path: Path) -> None:
    run = imported(tmp_path, [store(INTERNAL, 12, 15, 5, 0)], hash_log((INTERNAL, 12, 5)))
    assert ("unclean_end", "lookup", 1) in losses(run)


def test_lookups_that_all_have_their_span_are_no_loss(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 1280), lookup(INTERNAL, 60, 61, 1280), lookup(OTHER, 70, 71, 1280)],
        hash_log((INTERNAL, 12, 5), (INTERNAL, 60, 5), (OTHER, 70, 5)),
    )
    assert losses(run) == []


def test_a_lookup_below_a_chunk_has_a_span_and_no_line(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 0, early="empty_chunk_hashes"), lookup(OTHER, 20, 21, 1280)],
        hash_log((OTHER, 20, 5)),
    )
    assert losses(run) == []


def test_a_skipped_lookup_does_not_stand_in_for_one_that_was_lost(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 0, early="empty_chunk_hashes"), lookup(OTHER, 20, 21, 1280)],
        hash_log((OTHER, 20, 5), (INTERNAL, 60, 5)),
    )
    assert losses(run) == [("unclean_end", "lookup", 1)]


def test_a_log_without_any_span_of_its_server_convicts_nobody(tmp_path: Path) -> None:
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100)], hash_log((INTERNAL, 12, 5)))
    assert losses(run) == []


def test_two_servers_share_the_blame(tmp_path: Path) -> None:
    second = {"service.name": "lmcache", "service.instance.id": "lmcache-2"}
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 1280), lookup(OTHER, 20, 21, 1280, resource=second)],
        hash_log((THIRD, 60, 5)),
    )
    assert query(run, "SELECT process, cause, count FROM loss") == [(None, "unclean_end", 1)]


def test_a_parent_that_never_came_is_an_unclean_end_counted_once_for_all_of_its_children(
    tmp_path: Path,
) -> None:
    """The server's root ends last, so that a killed server loses it first.

    root     11 |------- - - -   never sent
    lookup   12 |--| 15
    retrieve       16 |---| 20
    """
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 1280, parent=77), retrieve(INTERNAL, 16, 20, 5, 0, parent=77)],
        [lookup(OTHER, 30, 31, 1280, parent=88), lmcache("request", OTHER, 29, 40, id=88)],
    )
    rows = query(run, "SELECT process, cause, op, count, from_ns, to_ns FROM loss")
    assert [row[:4] for row in rows] == [("lmcache-1", "unclean_end", None, 1)]


def test_a_lost_parent_lived_as_long_as_its_children(tmp_path: Path) -> None:
    children = [lookup(INTERNAL, 12, 15, 1280, parent=77), retrieve(INTERNAL, 16, 20, 5, 0, parent=77)]
    ((low, high),) = query(imported(tmp_path, children), "SELECT from_ns, to_ns FROM loss")
    assert low <= 12_000_000
    assert high >= 16_000_000


def test_a_parent_of_another_product_is_no_loss(tmp_path: Path) -> None:
    # the caller's own trace continues in vLLM: its spans are in a collector of its own
    run = imported(tmp_path, [llm_request(EXTERNAL, 10, 100, parent=77), op("load", 1, 2, parent=78)])
    assert losses(run) == []


def test_overlapping_stores_of_a_session_leave_a_gap_in_the_numbers(tmp_path: Path) -> None:
    """LMCache keeps one span of two overlapping stores: #1 is never sent.

    #0  |----|
    #1      |-----|    lost: its start went to the span of #2
    #2        |-----|
    """
    run = imported(
        tmp_path,
        [store(INTERNAL, 10, 15, 2, 0), store(INTERNAL, 12, 19, 2, 2), retrieve(OTHER, 30, 31, 2, 3)],
    )
    assert query(run, "SELECT process, cause, op, count, from_ns, to_ns FROM loss") == [
        ("lmcache-1", "sequence_gap", None, 1, 10_000_000, 30_000_000)
    ]


def test_numbers_need_not_begin_at_zero_and_may_come_in_any_order(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [store(INTERNAL, 40, 45, 2, 19), store(INTERNAL, 10, 15, 0, 18), retrieve(OTHER, 30, 31, 2, 17)],
    )
    assert losses(run) == []


def test_servers_number_their_transfers_each_for_itself(tmp_path: Path) -> None:
    second = {"service.name": "lmcache", "service.instance.id": "lmcache-2"}
    run = imported(tmp_path, [store(INTERNAL, 10, 15, 2, 0), store(OTHER, 10, 15, 2, 7, resource=second)])
    assert losses(run) == []


def test_a_drop_whose_lookup_found_everything_is_a_duplicate(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 1280, 1280), store(INTERNAL, 30, 33, 0, 0)],
        [lookup(OTHER, 40, 41, 1280, 512), store(OTHER, 42, 43, 0, 1)],
        [store(THIRD, 50, 51, 0, 2)],
    )
    rows = query(run, "SELECT request_id, reason FROM span WHERE op = 'drop' ORDER BY start_ns")
    assert rows == [(INTERNAL, "duplicate"), (OTHER, "unknown"), (THIRD, "unknown")]


def test_a_drop_after_a_lookup_that_missed_is_no_duplicate(tmp_path: Path) -> None:
    # asked twice: the first time nothing was there
    run = imported(
        tmp_path,
        [
            lookup(INTERNAL, 12, 13, 1280, 0),
            lookup(INTERNAL, 14, 15, 1280, 1280),
            store(INTERNAL, 30, 33, 0, 0),
        ],
    )
    assert query(run, "SELECT reason FROM span WHERE op = 'drop'") == [("unknown",)]


def test_a_lookup_below_a_chunk_makes_no_drop_a_duplicate(tmp_path: Path) -> None:
    run = imported(
        tmp_path, [lookup(INTERNAL, 12, 13, 0, early="empty_chunk_hashes"), store(INTERNAL, 30, 33, 0, 0)]
    )
    assert query(run, "SELECT reason FROM span WHERE op = 'drop'") == [("unknown",)]


def test_a_reason_that_its_producer_gave_stays(tmp_path: Path) -> None:
    run = imported(
        tmp_path, [lookup(INTERNAL, 12, 13, 1280, 1280), op("drop", 30, 31, INTERNAL, reason="no_room")]
    )
    assert query(run, "SELECT reason FROM span WHERE op = 'drop'") == [("no_room",)]


def test_a_second_root_of_a_session_changes_nothing(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [
            llm_request(EXTERNAL, 10, 100),
            lmcache("request", INTERNAL, 11, 99, id=5),
            lmcache("request", INTERNAL, 100, 101, id=6),
        ],
        [store(INTERNAL, 100, 101, 2, 0, parent=6)],
    )
    assert query(run, "SELECT request_id, observers FROM request") == [(INTERNAL, 1)]
    assert query(run, "SELECT count(*) FROM span WHERE op IS NULL") == [(2,)]
    assert losses(run) == []


def test_a_stacked_child_is_in_no_sum(tmp_path: Path) -> None:
    times = {"first_start_s": "0.016", "last_end_s": "0.017", "nbytes": "999"}
    child = span("transfer.staging", 16, 17, times, resource=LMCACHE, scope="lmcache_mp.transfer", parent=3)
    run = imported(tmp_path, [retrieve(INTERNAL, 16, 20, 5, 0, id=3), child])
    assert query(run, "SELECT count(*), sum(bytes)::BIGINT FROM transfer") == [(1, 2_621_440)]


def test_losses_of_decoding_and_of_joining_stand_side_by_side(tmp_path: Path) -> None:
    run = imported(
        tmp_path,
        [lookup(INTERNAL, 12, 15, 1280), llm_request(EXTERNAL, 10, 100, queue_ms=-5), op("load", 5, 4)],
        hash_log((OTHER, 60, 5)) + b"not a lookup\n",
    )
    assert losses(run) == [
        ("negative_duration", "queue", 1),
        ("negative_duration", None, 1),
        ("unclean_end", "lookup", 1),
        ("undecodable", "lookup", 1),
    ]
