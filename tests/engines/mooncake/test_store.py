"""What the store's caller measured is what was recorded; what failed failed for the reason that was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.environment import TRANSFER_LIBRARIES, engine_python, skip_when_missing
from tests.engines.mooncake import master
from tests.engines.recorded_script import Played, assert_as_measured, play

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("store_script.py")
MIB = 1 << 20


def _played(folder: Path, what: str, lease_ms: int) -> Played:
    skip_when_missing(TRANSFER_LIBRARIES)
    python = engine_python(TRANSFER_LIBRARIES)
    with master.running(python, folder, lease_ms=lease_ms) as served:
        ports = (served.rpc_port, served.metadata_port, master.free_port())
        return play(folder, python, SCRIPT, *map(str, ports), what)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _played(tmp_path_factory.mktemp("full"), "full", 500)


@pytest.fixture(scope="module")
def lease(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return _played(tmp_path_factory.mktemp("lease"), "lease", 1)


@pytest.mark.parametrize("name", ["get_into", "batch_put_from", "batch_get_into"])
def test_bytes_and_times_are_what_the_caller_measured(full: Played, name: str) -> None:
    calls = full.calls(name)
    assert_as_measured(calls, full.spans(name)[: len(calls)])


def test_values_are_measured_as_buffers_are(full: Played) -> None:
    for name in ("put", "get"):
        calls = full.calls(name)
        assert_as_measured(calls, full.spans(name)[: len(calls)])


def test_a_store_goes_from_this_host_to_the_cluster_and_a_load_comes_from_there(full: Played) -> None:
    hops = full.rows(
        "SELECT DISTINCT op, tier_from, tier_to FROM span WHERE op IN ('load', 'store')"
        " AND request_id IS DISTINCT FROM 'cmpl-placed' ORDER BY op"
    )
    assert hops == [
        {"op": "load", "tier_from": "peer", "tier_to": "host"},
        {"op": "store", "tier_from": "host", "tier_to": "peer"},
    ]


def test_a_store_that_the_segment_has_no_room_for_failed_for_want_of_it(full: Played) -> None:
    assert full.said["codes"]["full"] == [-200] * 3
    spans = full.spans("put_from")
    assert [(row["outcome"], row["reason"]) for row in spans] == [("failed", "no_room")] * 3
    assert {dict(row["attributes"])["codes"] for row in spans} == {"-200 NO_AVAILABLE_HANDLE=1"}
    assert {row["bytes"] for row in spans} == {None}


def test_a_missing_key_is_not_found_where_the_method_says_so_and_unknown_where_it_does_not(
    full: Played,
) -> None:
    assert full.said["codes"]["missing"] == -704
    assert full.said["codes"]["empty"] == 0
    (into, value) = (full.spans("get_into")[-1], full.spans("get")[-1])
    assert (into["outcome"], into["reason"], into["bytes"]) == ("failed", "not_found", None)
    assert (value["outcome"], value["reason"], value["bytes"]) == ("failed", "unknown", None)


def test_a_batch_of_which_a_part_came_is_partial_and_says_what_came(full: Played) -> None:
    rows = full.spans("batch_get_into")
    assert {(row["outcome"], row["reason"], row["bytes"]) for row in rows} == {
        ("partial", "not_found", 2 * MIB)
    }
    blocks = full.rows(
        "SELECT DISTINCT event, key, bytes, reason FROM block WHERE request_id = 'cmpl-7' ORDER BY event, key"
    )
    assert blocks == [
        {"event": "accessed", "key": "page-0", "bytes": MIB, "reason": None},
        {"event": "accessed", "key": "page-1", "bytes": MIB, "reason": None},
        {"event": "failed", "key": "nowhere", "bytes": None, "reason": "-704 OBJECT_NOT_FOUND"},
    ]


def test_calls_are_the_requests_of_the_scope_they_are_made_in(full: Played) -> None:
    named = full.rows("SELECT name, attribution FROM span WHERE request_id = 'cmpl-7' ORDER BY start_ns")
    assert named == [
        {"name": "batch_is_exist", "attribution": "request"},
        *[{"name": "batch_get_into", "attribution": "request"}] * 5,
    ]
    others = full.rows(
        "SELECT DISTINCT attribution FROM span WHERE request_id IS NULL AND component IS NOT NULL"
    )
    assert {row["attribution"] for row in others} == {"key", "aggregate"}
    asked = full.rows("SELECT position, key FROM request_key WHERE request_id = 'cmpl-7' ORDER BY position")
    assert asked == [{"position": 0, "key": "page-0"}, {"position": 1, "key": "nowhere"}]


def test_a_lookup_tells_what_was_found(full: Played) -> None:
    (exists,), (described,) = full.spans("batch_is_exist"), full.spans("batch_get_replica_desc")
    assert exists["outcome"] == described["outcome"] == "partial"
    assert dict(exists["attributes"])["found_keys"] == "1"
    assert dict(described["attributes"])["replicas"] == "host=1"


def test_a_load_comes_from_where_the_program_was_told_that_its_keys_lie(full: Played) -> None:
    (load,) = full.rows("SELECT tier_from, tier_to, bytes FROM span WHERE request_id = 'cmpl-placed'")
    assert load == {"tier_from": "host", "tier_to": "host", "bytes": MIB}
    (block,) = full.rows("SELECT tier, event FROM block WHERE request_id = 'cmpl-placed'")
    assert block == {"tier": "host", "event": "accessed"}


def test_a_leased_key_is_not_removed_and_one_without_a_lease_is(full: Played) -> None:
    leased, removed = full.spans("remove")
    assert full.said["codes"]["leased"] == -706
    assert (leased["outcome"], dict(leased["attributes"])["codes"]) == ("failed", "-706 OBJECT_HAS_LEASE=1")
    assert full.said["codes"]["removed"] == 0
    assert (removed["outcome"], removed["reason"]) == ("ok", "cleared")
    (swept,) = full.spans("remove_all")
    assert int(dict(swept["attributes"])["removed_keys"]) == full.said["codes"]["all"] > 0


def test_arguments_that_the_store_refuses_are_its_callers_error_and_a_row(full: Played) -> None:
    rows = [row for row in full.spans("put") if dict(row["attributes"] or {}).get("error")]
    assert [(dict(row["attributes"])["error"], row["outcome"]) for row in rows] == [("TypeError", "failed")]


def test_nothing_was_lost(full: Played) -> None:
    assert full.rows("SELECT * FROM loss") == []


def test_a_lease_that_ends_before_its_read_is_a_load_that_expired(lease: Played) -> None:
    reads = lease.said["codes"]["reads"]
    assert -707 in reads
    spans = [row for row in lease.spans("get_into") if row["reason"] == "expired"]
    assert len(spans) == reads.count(-707)
    assert {row["outcome"] for row in spans} == {"failed"}
