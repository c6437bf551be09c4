"""Cached results: where they lie, when they are used again, and many writers at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from kvtrace.analyses.exposure import cache, exposure
from kvtrace.run import Run, derived
from kvtrace.run.derived import derived_folder, published
from tests.rows import write_run

SPANS = [
    {"op": "request", "request_id": "r0", "engine": "e0", "start_ns": 0, "end_ns": 10},
    {"op": "lookup", "request_id": "r0", "engine": "e0", "start_ns": 2, "end_ns": 5},
]

ASK = (
    sys.executable,
    "-c",
    "import sys; import kvtrace.run as r; import kvtrace.analyses.exposure as e; "  # noqa: ISC004 - one program
    "print(e.exposure(r.open_run(sys.argv[1])).height)",
)
"""Prints how many rows the question has for a run."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", span=SPANS)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one whenever the partition is computed."""
    calls: list[Any] = []
    real = cache.rows_of
    monkeypatch.setattr(cache, "rows_of", lambda prepared: (calls.append(1), real(prepared))[1])
    return calls


def unwritable(run: Run, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    """The run's folder takes no files (root could write anywhere: the call itself fails)."""
    real = Path.mkdir

    def mkdir(self: Path, *args: Any, **options: Any) -> None:
        if self == run.path / ".derived":
            raise PermissionError(13, "Permission denied", str(self))
        real(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))


def test_the_second_question_reads_the_first_one_s_answer(run: Run, counted: list[Any]) -> None:
    first = exposure(run)
    assert exposure(run).equals(first)
    assert len(counted) == 1
    assert [path.suffix for path in (run.path / ".derived").iterdir()] == [".parquet"]
    assert (run.path / ".derived").stat().st_mode & 0o077 == 0


def test_a_changed_or_a_further_file_is_never_met_by_an_old_answer(run: Run, counted: list[Any]) -> None:
    before = exposure(run).height
    file = run.path / "span" / "part-0.parquet"
    os.utime(file, ns=(1, 1))
    assert exposure(run).height == before
    assert len(counted) == 2
    more = write_run(run.path.parent / "more", span=[{**SPANS[0], "request_id": "r1"}])
    (more.path / "span" / "part-0.parquet").rename(run.path / "span" / "part-1.parquet")
    assert set(exposure(run)["request_id"]) == {"r0", "r1"}
    assert len(counted) == 3


def test_a_new_algorithm_never_meets_an_old_answer(
    run: Run, counted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exposure(run)
    monkeypatch.setattr(cache, "ALGORITHM", "next")
    exposure(run)
    assert len(counted) == 2


def test_a_read_only_run_is_answered_and_the_answer_is_kept_elsewhere(
    run: Run, counted: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = exposure(write_run(tmp_path / "same", span=SPANS))
    counted.clear()
    (tmp_path / "tmp").mkdir()
    unwritable(run, monkeypatch, tmp_path / "tmp")
    assert exposure(run).equals(expected)
    assert exposure(run).equals(expected)
    assert len(counted) == 1
    assert not (run.path / ".derived").exists()
    (kept,) = (tmp_path / "tmp").rglob("*.parquet")
    assert kept.parent.parent.stat().st_mode & 0o077 == 0


def test_a_really_read_only_file_system_is_answered_too(run: Run, tmp_path: Path) -> None:
    """A bind mount in a mount namespace of its own: nothing outlives the process."""
    at = run.path
    mount = f"mount --bind {at} {at} && mount -o remount,bind,ro {at} && ! touch {at}/x"
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f'{mount} 2>/dev/null && exec "$@"', "sh", *ASK, str(run.path)],
            capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "Operation not permitted" in done.stderr or done.returncode == 32:
        pytest.skip("no mounts here")
    if done.returncode and not done.stderr:
        pytest.skip("the mount is not allowed here")
    assert done.stdout.split() == [str(exposure(run).height)], done.stderr


def test_a_temporary_folder_that_somebody_else_made_is_not_trusted(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its name can be guessed: others could read answers, or lay false ones there."""
    theirs = tmp_path / f"kvtrace-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    unwritable(run, monkeypatch, tmp_path)
    folder = derived_folder(run)
    assert theirs not in folder.parents
    assert folder.parent.stat().st_mode & 0o077 == 0
    theirs.rmdir()
    (tmp_path / "target").mkdir()
    theirs.symlink_to(tmp_path / "target")
    assert (tmp_path / "target") not in derived_folder(run).resolve().parents


def test_two_processes_and_many_threads_computing_at_once_leave_one_whole_answer(run: Run) -> None:
    started = [subprocess.Popen([*ASK, str(run.path)], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    heights: list[int] = []
    threads = [threading.Thread(target=lambda: heights.append(exposure(run).height)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heights += [int(process.communicate()[0]) for process in started]
    assert len(heights) == 6
    assert len(set(heights)) == 1
    assert [path.suffix for path in (run.path / ".derived").iterdir()] == [".parquet"]


def test_a_result_that_fails_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    target.write_text("old")

    def fail() -> None:
        with published(target) as partial:
            partial.write_text("new")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]
    assert target.read_text() == "old"


def test_the_hash_covers_every_table(run: Run) -> None:
    before = derived.files_hash(run)
    (run.path / "loss").mkdir()
    (run.path / "loss" / "a.parquet").write_bytes(b"PAR1PAR1")
    assert derived.files_hash(run) != before
    assert derived.files_hash(run, "1") != derived.files_hash(run, "2")
