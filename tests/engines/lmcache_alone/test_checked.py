"""What the commands say of planted faults: each is found, told from the others, and from a healthy server.

Asked of runs that `kvtrace import` made of the recorded ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace.analyses._text import duration
from kvtrace.run import open_run
from tests.engines.lmcache_alone.server import CHUNK_TOKENS, CHUNKS, RANKS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.lmcache_alone.server import Played

pytestmark = pytest.mark.engine
BOUND_S = 3
"""What is submitted to a backend that lives takes milliseconds; the hung lookup is waited for for longer."""


def _kvtrace(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def checked(run: Path, folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings of `kvtrace check` of what `kvtrace import` makes of a run."""
    done = _kvtrace("import", str(run), "--out", str(folder / "imported"))
    assert done.returncode == 0, done.stderr
    done = _kvtrace("check", str(folder / "imported"), *words, "--format", "json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def violated(rows: list[dict[str, Any]]) -> list[tuple[str, str, str | None, str]]:
    """Invariant, severity, request and detail of each violation."""
    return [
        (row["invariant"], row["severity"], row["request_id"], row["detail"])
        for row in rows
        if row["status"] == "violated"
    ]


def test_a_healthy_server_passes(plain: Played, tmp_path: Path) -> None:
    """Two prompts, stored, found in L1, found in L2: all that can be checked holds."""
    code, rows = checked(plain.run, tmp_path)
    assert (code, violated(rows)) == (0, [])


def test_a_hung_backend_is_found_while_every_page_is_green(hung: Played, tmp_path: Path) -> None:
    assert (hung.said["page"]["status"], hung.said["healthy"]) == ("healthy", True)
    assert hung.said["threads"]["healthy"] is True
    code, rows = checked(hung.run, tmp_path, "--bound-s", str(BOUND_S))
    assert code == 1
    ((invariant, severity, request, detail),) = violated(rows)
    assert (invariant, severity, request) == ("completes_within_bound", "error", "hung-0")
    assert detail.startswith("l2 lookup open after ")


def test_what_hung_for_less_than_the_bound_is_no_violation_yet_and_no_pass(
    hung: Played, tmp_path: Path
) -> None:
    code, rows = checked(hung.run, tmp_path, "--bound-s", "600")
    assert (code, violated(rows)) == (4, [])


def test_locks_that_ran_out_are_told_as_such_and_never_as_a_generic_failure(
    held: Played, tmp_path: Path
) -> None:
    """Both ranks' reads came too late, and none of their locks was released in its time."""
    code, rows = checked(held.run, tmp_path)
    assert code == 1
    found = violated(rows)
    assert {(severity, detail.split(":")[0]) for _, severity, _, detail in found} == {
        ("warning", "ttl_expired")
    }
    read = [(request, detail) for name, _, request, detail in found if name == "read_within_ttl"]
    assert [request for request, _ in read] == ["late-0"] * RANKS
    assert all(f" {CHUNKS} keys not locked any more when read, " in detail for _, detail in read)
    assert all(detail.endswith("whose time to live is 2 s") for _, detail in read)
    assert len(found) == len(read) + RANKS * CHUNKS
    assert {name for name, *_ in found} == {"read_within_ttl", "released_once"}


def test_what_was_found_is_called_expired_with_its_numbers_and_what_was_read_in_time_is_not(
    held: Played,
) -> None:
    """Of the two that found all of it, one read at once and one a second after its locks had run out."""
    hits = {row["request_id"]: row for row in kvtrace.analyze(open_run(held.run), "verdict").to_dicts()}
    assert {name: row["still_there"] for name, row in hits.items()} == {"soon-0": "yes", "late-0": "expired"}
    basis = hits["late-0"]["still_there_basis"]
    ((age_ns, ttl_ns),) = open_run(held.run).sql(
        "SELECT min(f.time_ns - l.time_ns), max(l.ttl_ns) FROM block f JOIN block l USING (key, rank) "
        "WHERE f.event = 'failed' AND f.reason = 'l1_retrieve:write_locked' AND l.event = 'locked' "
        "AND l.request_id = 'late-0'"
    ).rows()  # fmt: skip
    assert basis.startswith(f"ttl_expired: {CHUNKS} keys not locked any more when read, ")
    assert f", {duration(age_ns)} after the lock, whose time to live is {duration(ttl_ns)}" in basis


def test_without_an_engine_nobody_says_what_was_selected_and_used_of_what_expired(held: Played) -> None:
    """The server found it and moved nothing; null is no 0, and no fallback of an engine that is not there."""
    run = open_run(held.run)
    row = {row["request_id"]: row for row in kvtrace.analyze(run, "hit_funnel").to_dicts()}["late-0"]
    assert (row["found_tokens"], row["moved_tokens"]) == (CHUNKS * CHUNK_TOKENS, 0)
    parts = ("selected_tokens", "loaded_tokens", "lost_lock", "lost_vanished", "lost_unexplained")
    assert {row[name] for name in parts} == {None}
    assert kvtrace.analyze(run, "fallbacks").is_empty()


def test_what_reads_as_there_and_was_never_written_is_an_error(unwritten: Played, tmp_path: Path) -> None:
    """I13: a write that nobody finished became a hit when its time to live was over."""
    code, rows = checked(unwritten.run, tmp_path)
    assert code == 1
    found = [(severity, detail) for name, severity, _, detail in violated(rows)
             if name == "readable_was_written"]  # fmt: skip
    assert len(found) == unwritten.said["served"] == 2
    assert {severity for severity, _ in found} == {"error"}
    assert all(detail.endswith("after it was reserved, and never written") for _, detail in found)


def test_a_load_that_failed_in_part_breaks_no_contract(fails: Played, tmp_path: Path) -> None:
    """What was promised was not delivered, and nothing was protected in vain: that is for `fallbacks`."""
    code, rows = checked(fails.run, tmp_path)
    assert (code, violated(rows)) == (0, [])
