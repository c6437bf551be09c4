"""Transfers of Mooncake's engine: what its caller measured is what was recorded, and -1 is a failed row."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing
from tests.engines.recorded_script import Played, assert_as_measured, play

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("engine_script.py")
MIB = 1 << 20


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    skip_when_missing(TRANSFER_LIBRARIES)
    return play(tmp_path_factory.mktemp("engine"), engine_python(TRANSFER_LIBRARIES), SCRIPT)


@pytest.mark.parametrize(
    "name",
    [
        "transfer_sync_write",
        "transfer_sync_read",
        "batch_transfer_sync",
        "batch_transfer_async_write",
        "transfer_submit_write",
    ],
)
def test_bytes_and_times_are_what_the_caller_measured(played: Played, name: str) -> None:
    calls = played.calls(name)
    assert_as_measured(calls, played.spans(name)[: len(calls)])


def test_a_read_is_a_load_from_the_peer_and_a_write_is_a_store_to_it(played: Played) -> None:
    hops = played.rows("SELECT DISTINCT op, tier_from, tier_to, observer FROM span ORDER BY op")
    assert hops == [
        {"op": "load", "tier_from": "peer", "tier_to": "host", "observer": "worker"},
        {"op": "store", "tier_from": "host", "tier_to": "peer", "observer": "worker"},
    ]
    ops = played.rows("SELECT DISTINCT name, op FROM span ORDER BY name")
    assert {row["name"]: row["op"] for row in ops} == {
        "transfer_sync_write": "store",
        "transfer_sync_read": "load",
        "batch_transfer_sync": "load",
        "batch_transfer_async_write": "store",
        "batch_transfer_async_read": "load",
        "transfer_submit_write": "store",
    }


def test_a_transfer_is_the_request_of_its_scope(played: Played) -> None:
    named = played.rows("SELECT request_id, name FROM span WHERE attribution = 'request'")
    assert named == [{"request_id": "cmpl-8", "name": "batch_transfer_sync"}] * 5


def test_transfers_that_fail_fail_as_rows(played: Played) -> None:
    assert played.said["returned"] == {"bad_address": -1, "bad_peer": 0, "bad_batch": -1}
    failed = played.rows(
        "SELECT name, reason, attributes FROM span WHERE outcome = 'failed' ORDER BY start_ns"
    )
    told = [(row["name"], row["reason"], dict(row["attributes"])["returned"]) for row in failed]
    assert told == [
        ("transfer_sync_write", "io", "-1"),
        ("batch_transfer_async_read", "io", "0"),
        ("batch_transfer_async_read", "io", "-1"),
    ]


def test_every_transfer_ended_and_nothing_was_lost(played: Played) -> None:
    assert played.rows("SELECT * FROM span WHERE end_ns IS NULL") == []
    assert played.rows("SELECT * FROM loss") == []
