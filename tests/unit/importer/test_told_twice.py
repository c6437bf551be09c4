"""What LMCache's server recorded itself, beside its own files and spans: each call, key and lookup once.

inside   locked k1 k2      unlocked k1      of process server, with a number
.lct      locked k1 k2      unlocked k1     of nobody, 25 us apart
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.importer.matching import SLACK_NS
from tests.rows import write_run
from tests.unit.importer.drawn import hash_log, imported, losses, query, written
from tests.unit.importer.drawn import lookup as span_of
from tests.unit.sources.test_lmcache_storage_trace import WALL, call, header, key, lookup

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

START = round(WALL * 1e9)
MS = 1_000_000
SPACE = "lmcache:unknown:tiny"
K1, K2 = "01010101", "02020202"
TRACE = header() + lookup(key(1), key(2)) + call("finish_read_prefetched", 2.0, keys=[key(1)], read_locks=1)


def native(event: str, chunk: str, at: float, *, late: int = 25_000, **more: Any) -> dict[str, Any]:
    """A call of one key, seconds after the trace began, as the server records it itself."""
    row = {
        "time_ns": START + round(at * 1e9) + late, "event": event, "mode": "read", "reason": "asked",
        "tier": "host", "component": "lmcache.l1", "key_space": SPACE, "key": chunk, "rank": 0,
        "object_group": "0", "count": 1, "engine": "cache", "process": "server", "seq": 7,
        "evidence": "native",
    }  # fmt: skip
    return row | more


CALLS = (native("locked", K1, 1), native("locked", K2, 1), native("unlocked", K1, 2))


def asked(position: int, chunk: str, at: int, **more: Any) -> dict[str, Any]:
    row = {"request_id": "cmpl-1", "attempt": 1, "position": position, "key_space": SPACE, "key": chunk,
           "tokens": 256, "time_ns": at, "source": "lmcache.mp.lookup"}  # fmt: skip
    return row | more


def both(tmp_path: Path, lct: bytes, **tables: Any) -> Run:
    """A run of what a server recorded, and of its storage trace."""
    recorded = write_run(tmp_path / "recorded", **{"span": [], **tables})
    return imported(tmp_path / "made", recorded.path, written(tmp_path / "storage.lct", lct))


def blocks(run: Run) -> list[tuple[Any, ...]]:
    return query(run, "SELECT event, key, process, seq FROM block ORDER BY time_ns, key, process")


def test_a_call_that_the_server_recorded_and_traced_counts_once(tmp_path: Path) -> None:
    run = both(tmp_path, TRACE, block=CALLS)
    assert blocks(run) == [
        ("locked", K1, "server", 7), ("locked", K2, "server", 7), ("unlocked", K1, "server", 7)
    ]  # fmt: skip
    assert losses(run) == [("duplicate", None, 3)]


def test_without_the_servers_recording_the_trace_stays_as_it_is(tmp_path: Path) -> None:
    """Events of another kind, and calls without a process (an earlier import), are no recording of calls."""
    others = [row | {"reason": None} for row in CALLS] + [row | {"process": None} for row in CALLS]
    run = both(tmp_path, TRACE, block=others)
    assert query(run, "SELECT count(*) FROM block WHERE reason = 'asked' AND seq IS NULL") == [(3,)]
    assert losses(run) == []


@pytest.mark.parametrize("differs", ["event", "key", "rank", "object_group", "key_space"])
def test_a_call_that_differs_stays(tmp_path: Path, differs: str) -> None:
    other = {"event": "accessed", "key": K2, "rank": 1, "object_group": "1", "key_space": "lmcache:unknown:x"}
    run = both(tmp_path, TRACE, block=[*CALLS[:2], CALLS[2] | {differs: other[differs]}])
    assert len(blocks(run)) == 4
    assert losses(run) == [("duplicate", None, 2)]


def test_what_only_the_trace_has_belongs_to_its_server(tmp_path: Path) -> None:
    run = both(tmp_path, TRACE, block=CALLS[:2])
    assert blocks(run)[2] == ("unlocked", K1, "server", None)
    assert query(run, "SELECT DISTINCT engine, process FROM block") == [("cache", "server")]


def test_a_release_that_came_twice_on_both_sides_stays_twice(tmp_path: Path) -> None:
    again = call("finish_read_prefetched", 2.001, keys=[key(1)], read_locks=1)
    run = both(tmp_path, TRACE + again, block=[*CALLS, native("unlocked", K1, 2.001)])
    assert [row[0] for row in blocks(run)] == ["locked", "locked", "unlocked", "unlocked"]


def test_calls_too_far_apart_are_two(tmp_path: Path) -> None:
    far = native("unlocked", K1, 2, late=SLACK_NS + MS)
    near = native("unlocked", K1, 2, late=SLACK_NS - MS)
    assert len(blocks(both(tmp_path / "far", TRACE, block=[*CALLS[:2], far]))) == 4
    assert len(blocks(both(tmp_path / "near", TRACE, block=[*CALLS[:2], near]))) == 3


def test_a_trace_is_not_that_of_another_server_that_was_asked_for_one_same_key(tmp_path: Path) -> None:
    run = both(tmp_path, TRACE, block=[CALLS[0], *(native("locked", K2, at) for at in (0.5, 3))])
    assert sorted(row[2] or "nobody's" for row in blocks(run)) == ["nobody's"] * 3 + ["server"] * 3
    assert losses(run) == []


def test_of_two_servers_the_trace_is_that_of_the_one_which_shares_its_calls(tmp_path: Path) -> None:
    other = native("locked", K1, 1, process="other", engine="other")
    run = both(tmp_path, TRACE, block=[*CALLS[:2], other])
    assert blocks(run)[-1] == ("unlocked", K1, "server", None)
    assert len(blocks(run)) == 4


def test_a_lookups_keys_are_those_that_the_server_recorded(tmp_path: Path) -> None:
    """The hash log and the trace tell of them again."""
    at = START + 1_000_000_000
    recorded = [asked(0, K1, at), asked(1, K2, at)]
    run = both(tmp_path, TRACE, request_key=recorded)
    found = query(run, "SELECT position, key, attempt, tokens, source FROM request_key ORDER BY position")
    assert found == [(0, K1, 1, 256, "lmcache.mp.lookup"), (1, K2, 1, 256, "lmcache.mp.lookup")]
    assert losses(run) == [("duplicate", "lookup", 2)]


def test_a_lookup_that_only_a_file_tells_of_stays_with_its_attempt(tmp_path: Path) -> None:
    recorded = write_run(
        tmp_path / "recorded", span=[],
        request_key=[asked(0, "r:0", 1_000 * MS + 9, key_space="lmcache:unknown:tiny-llama", request_id="r")],
    )  # fmt: skip
    run = imported(tmp_path / "made", recorded.path, hash_log(("r", 1_000, 1), ("r", 1_500, 1)))
    found = query(run, "SELECT attempt, time_ns, source FROM request_key ORDER BY time_ns")
    assert [row[:2] for row in found] == [(1, 1_000 * MS + 9), (2, 1_500 * MS)]


def test_the_same_key_at_another_position_is_another_one(tmp_path: Path) -> None:
    run = both(tmp_path, TRACE, request_key=[asked(1, K1, START + 1_000_000_000)])
    assert query(run, "SELECT count(*) FROM request_key") == [(3,)]


BUS = {
    "span_id": 5, "op": "lookup", "name": "mp.lookup_prefetch", "component": "lmcache",
    "observer": "server", "evidence": "native", "request_id": "r", "process": "host/1",
    "engine": "lmcache-1", "attempt": 1, "start_ns": 12 * MS, "end_ns": 15 * MS, "requested_tokens": 1280,
    "found_tokens": 1280,
}  # fmt: skip


def lookups(tmp_path: Path, *rows: dict[str, Any], spans: list[Any]) -> Run:
    return imported(tmp_path / "made", write_run(tmp_path / "recorded", span=list(rows)).path, spans)


def ops(run: Run) -> list[tuple[Any, ...]]:
    """(op, is it the bus's) of the lookups, in time order."""
    return query(
        run,
        "SELECT op, trace_id IS NULL FROM span WHERE name = 'mp.lookup_prefetch' ORDER BY start_ns, trace_id IS NULL",  # noqa: E501
    )


def test_a_span_of_a_lookup_that_the_bus_told_is_no_second_one(tmp_path: Path) -> None:
    run = lookups(tmp_path, BUS, spans=[span_of("r", 12, 15, 1280, 1280)])
    assert ops(run) == [(None, False), ("lookup", True)]
    assert losses(run) == [("duplicate", "lookup", 1)]


def test_a_span_that_knows_the_end_which_the_bus_lost_is_the_lookup(tmp_path: Path) -> None:
    bus = BUS | {"end_ns": None, "found_tokens": None}
    run = lookups(tmp_path, bus, spans=[span_of("r", 12, 15, 1280, 1280)])
    assert ops(run) == [("lookup", False), (None, True)]


def test_a_lookup_that_only_its_span_tells_of_stays(tmp_path: Path) -> None:
    spans = [span_of("r", 12, 15, 1280, 1280), span_of("r", 500, 505, 1280, 1280), span_of("q", 12, 15, 256)]
    assert sorted(ops(lookups(tmp_path, BUS, spans=spans)), key=str) == [
        ("lookup", False), ("lookup", False), ("lookup", True), (None, False)
    ]  # fmt: skip


def test_lookups_of_two_servers_are_two(tmp_path: Path) -> None:
    run = lookups(tmp_path, BUS | {"engine": "lmcache-2"}, spans=[span_of("r", 12, 15, 1280, 1280)])
    assert [row[0] for row in ops(run)] == ["lookup", "lookup"]


def test_a_lookup_that_counts_once_stays_so(tmp_path: Path) -> None:
    once = lookups(tmp_path, BUS, spans=[span_of("r", 12, 15, 1280, 1280)])
    again = imported(tmp_path / "again", once.path)
    assert ops(again) == ops(once)
    assert losses(again) == losses(once)


def test_lookups_that_came_twice_hide_none_that_is_missing(tmp_path: Path) -> None:
    """Two lines of the hash log, one lookup told by bus and span: the other one was lost."""
    recorded = write_run(tmp_path / "recorded", span=[BUS])
    spans = [span_of("r", 12, 15, 1280, 1280)]
    run = imported(tmp_path / "made", recorded.path, spans, hash_log(("r", 12, 5), ("r", 90, 5)))
    assert losses(run) == [("duplicate", "lookup", 1), ("unclean_end", "lookup", 1)]


def merged(tmp_path: Path, *files: Any, **tables: Any) -> Run:
    """A run that was imported of a server's files, and then another with what the server recorded itself."""
    before = imported(tmp_path / "before", *files)
    recorded = write_run(tmp_path / "recorded", **{"span": [], **tables})
    return imported(tmp_path / "merged", before.path, recorded.path)


def test_calls_of_a_run_that_was_imported_before_count_once_beside_the_servers_recording(
    tmp_path: Path,
) -> None:
    run = merged(tmp_path, written(tmp_path / "storage.lct", TRACE), block=CALLS)
    assert blocks(run) == [
        ("locked", K1, "server", 7), ("locked", K2, "server", 7), ("unlocked", K1, "server", 7)
    ]  # fmt: skip
    assert losses(run) == [("duplicate", None, 3)]
    again = imported(tmp_path / "again", run.path)
    assert (blocks(again), losses(again)) == (blocks(run), losses(run))


def test_what_only_the_imported_run_has_belongs_to_its_server_and_the_rest_of_that_run_does_not(
    tmp_path: Path,
) -> None:
    before = imported(tmp_path / "before", written(tmp_path / "storage.lct", TRACE))
    event = native("stored", "gpu-key", 1.5, reason=None, engine=None, process=None, seq=None)
    other = write_run(tmp_path / "other", span=[], block=[event])
    both_kinds = imported(tmp_path / "both", before.path, other.path)
    recorded = write_run(tmp_path / "recorded", span=[], block=CALLS[:2])
    run = imported(tmp_path / "merged", both_kinds.path, recorded.path)
    assert blocks(run)[2:] == [("stored", "gpu-key", None, None), ("unlocked", K1, "server", None)]


def test_an_imported_run_of_another_server_stays(tmp_path: Path) -> None:
    others = [row | {"key": "09090909"} for row in CALLS]
    run = merged(tmp_path, written(tmp_path / "storage.lct", TRACE), block=others)
    assert len(blocks(run)) == 6
    assert losses(run) == []


def test_keys_of_lookups_of_a_run_that_was_imported_before_count_once(tmp_path: Path) -> None:
    at = START + 1_000_000_000
    run = merged(
        tmp_path, written(tmp_path / "storage.lct", TRACE), request_key=[asked(0, K1, at), asked(1, K2, at)]
    )
    found = query(run, "SELECT position, key, source FROM request_key ORDER BY position")
    assert found == [(0, K1, "lmcache.mp.lookup"), (1, K2, "lmcache.mp.lookup")]
    assert losses(run) == [("duplicate", "lookup", 2)]


def test_a_key_of_a_lookup_that_only_the_imported_run_has_stays(tmp_path: Path) -> None:
    run = merged(
        tmp_path, written(tmp_path / "storage.lct", TRACE), request_key=[asked(0, K1, START + 1_000_000_000)]
    )
    assert query(run, "SELECT count(*), count(DISTINCT key) FROM request_key") == [(2, 2)]
