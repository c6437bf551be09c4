"""Transfers of NIXL's agents: what their caller measured is what was recorded, whichever backend moved it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing
from tests.engines.recorded_script import Played, assert_as_measured, play

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("script.py")
LOOPBACK = {"UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo"}
WHERE = {
    "ucx": "component = 'nixl.ucx' AND op = 'store' AND request_id <> 'cmpl-cancelled'",
    "prepared": "request_id = 'cmpl-scope'",
    "posix-WRITE": "component = 'nixl.posix' AND op = 'store'",
    "posix-READ": "component = 'nixl.posix' AND op = 'load'",
    "silent": "attributes['times'] = 'observed' AND outcome = 'ok'",
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    skip_when_missing(TRANSFER_LIBRARIES)
    return play(tmp_path_factory.mktemp("nixl"), engine_python(TRANSFER_LIBRARIES), SCRIPT, **LOOPBACK)


def _spans(played: Played, name: str) -> list[dict[str, Any]]:
    return played.rows(f"SELECT * FROM span WHERE {WHERE[name]} ORDER BY start_ns")


@pytest.mark.parametrize("name", list(WHERE))
def test_bytes_and_times_are_what_the_caller_measured(played: Played, name: str) -> None:
    calls = played.calls(name)
    assert_as_measured(calls, _spans(played, name)[: len(calls)])


def test_times_are_nixls_own_where_the_agent_captures_telemetry(played: Played) -> None:
    for name in ("ucx", "prepared", "posix-WRITE", "posix-READ"):
        for row in _spans(played, name):
            told = dict(row["attributes"])
            assert told["times"] == "telemetry"
            assert 0 <= int(told["post_ns"]) <= row["end_ns"] - row["start_ns"]


def test_both_ends_are_the_media_of_the_descriptors(played: Played) -> None:
    ends = {name: {(row["tier_from"], row["tier_to"]) for row in _spans(played, name)} for name in WHERE}
    assert ends == {
        "ucx": {("host", "peer")},
        "prepared": {("peer", "host")},
        "posix-WRITE": {("host", "disk")},
        "posix-READ": {("disk", "host")},
        "silent": {("peer", "host")},
    }


def test_a_notification_names_a_request_if_somebody_said_how_to_read_it(played: Played) -> None:
    rows = _spans(played, "ucx")
    assert [row["request_id"] for row in rows] == [f"cmpl-{number}" for number in range(7)]
    assert {row["attribution"] for row in rows} == {"request"}
    told = played.rows(
        "SELECT request_id, attributes['notif'] AS notif FROM span WHERE name = 'notification'"
    )
    assert sorted(row["notif"] for row in told) == sorted(played.said["told"])
    assert {row["request_id"] for row in told} == {f"cmpl-{number}" for number in range(7)}


def test_a_scope_is_nearer_than_a_notification_and_a_handle_that_is_posted_again_is_another_row(
    played: Played,
) -> None:
    rows = _spans(played, "prepared")
    assert len({row["span_id"] for row in rows}) == len(rows) == 5
    assert {dict(row["attributes"])["notif"] for row in rows} == {"not a request"}


def test_what_is_released_under_way_is_cancelled(played: Played) -> None:
    rows = played.rows(
        "SELECT * FROM span WHERE request_id = 'cmpl-cancelled' AND op = 'store' ORDER BY submit_ns"
    )
    fates = {"PROC": "cancelled", "DONE": "ok"}
    assert [row["outcome"] for row in rows] == [fates[state] for state in played.said["released"]]
    assert "cancelled" in {row["outcome"] for row in rows}
    assert all(row["end_ns"] >= row["start_ns"] for row in rows)


def test_an_error_is_a_failed_row_and_reaches_the_caller_as_it_is(played: Played) -> None:
    assert played.said["errors"] == {
        "unregistered": "nixlNotFoundError: NIXL_ERR_NOT_FOUND",
        "context": "None",
    }
    (row,) = played.rows("SELECT * FROM span WHERE outcome = 'failed'")
    assert (row["op"], row["name"], row["reason"]) == ("load", "initialize_xfer", "not_found")
    assert dict(row["attributes"])["error"] == "nixlNotFoundError"
    assert row["bytes"] is None


def test_an_agent_without_telemetry_is_not_asked_for_it(played: Played) -> None:
    assert "telemetry is not enabled" not in played.log


def test_nothing_was_lost(played: Played) -> None:
    assert played.rows("SELECT * FROM loss") == []
