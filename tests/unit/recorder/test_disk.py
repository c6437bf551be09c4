"""A full disk, a folder that goes away, a closed descriptor: the engine goes on, losses are counted."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.sources.spool.decode import SpoolReader

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from kvtrace.recorder import recording
    from tests.unit.recorder.conftest import Program, Spools

QUEUE = recorder.shape("span", ("tokens",), op="queue")
LIMIT_BYTES = 60_000


def mine() -> recording.Recording:
    (found,) = recorder._recordings.values()
    return found


def tokens(spools: Spools) -> list[int]:
    return [row["tokens"] for row in spools.rows()]


def test_a_full_disk_leaves_whole_frames_and_nothing_is_lost_once_there_is_room(program: Program) -> None:
    said = program(
        f"""
        import resource, glob
        resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, resource.RLIM_INFINITY))
        for number in range(5000): recorder.record((S, number, 0))
        recorder.flush(0.3)
        from kvtrace.sources.spool.decode import SpoolReader
        file, = glob.glob(os.environ["KVTRACE_OUT"] + "/spool/*")
        reader = SpoolReader(file)
        rows = sum(frame.rows for frame in reader.frames())
        tell(f"{{rows}} {{reader.torn}} {{os.stat(file).st_size}}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for number in range(5000, 6000): recorder.record((S, number, 0))
        """
    )
    rows, torn, size = map(int, said.split())
    assert 0 < rows < 5_000
    assert torn == 0
    assert LIMIT_BYTES / 2 < size < LIMIT_BYTES
    assert tokens(program.spools) == list(range(6_000))
    assert program.spools.losses() == {}
    assert program.spools.kinds()[-1] == "end"


def test_a_disk_that_stays_full_costs_the_engine_neither_time_nor_memory(program: Program) -> None:
    said = program(
        f"""
        import resource
        from kvtrace.recorder import recording
        recording.PENDING_ROWS = 10000
        resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, resource.RLIM_INFINITY))
        for turn in range(20):
            for number in range(5000): recorder.record((S, number, 0))
            recorder.flush(0.05)
        found, = recorder._recordings.values()
        waits = sum(map(len, found.buffers)) + found.writing.backlog
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        recorder.flush(10)
        tell(str(waits))
        """
    )
    written = len(program.spools.rows())
    assert int(said) <= 10_000
    assert program.spools.losses() == {("disk_failure", "queue"): 100_000 - written}


def test_a_run_directory_that_cannot_be_written_never_reaches_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_text("a file where the run should be")
    monkeypatch.setenv("KVTRACE_OUT", str(target))
    recorder._begin_process()
    assert not recorder.enabled()
    for number in range(3_000):
        recorder.record((QUEUE, number))
    recorder.describe(engine="e")
    recorder.flush(0.2)
    assert sum(map(len, mine().buffers)) + mine().writing.backlog == 3_000
    recorder.close()
    recorder._begin_process()
    assert target.read_text() == "a file where the run should be"


def test_a_run_directory_that_comes_late_gets_everything(spools: Spools) -> None:
    spools.run.rmdir()
    for number in range(3_000):
        recorder.record((QUEUE, number))
    recorder.flush(0.2)
    spools.run.mkdir()
    recorder.flush(10)
    assert tokens(spools) == list(range(3_000))
    assert spools.losses() == {}


def test_a_removed_spool_is_noticed_counted_and_begun_anew(spools: Spools) -> None:
    recorder.describe(engine="e")
    for number in range(100):
        recorder.record((QUEUE, number))
    recorder.flush(10)
    shutil.rmtree(spools.run / "spool")
    for number in range(100, 150):
        recorder.record((QUEUE, number))
    recorder.flush(10)
    assert tokens(spools) == list(range(100, 150))
    assert spools.losses() == {("disk_failure", None): 100}
    assert spools.kinds()[0] == "header"
    assert spools.facts() == {"engine": "e"}
    (numbers,) = [
        frame.first_row for frame in spools.frames() if frame.kind == "rows" and frame.table == "span"
    ]
    assert numbers >= 100


def test_a_descriptor_that_the_engine_closed_is_opened_again(spools: Spools) -> None:
    recorder.record((QUEUE, 1))
    recorder.flush(10)
    os.close(mine().writing._file.fd)
    recorder.record((QUEUE, 2))
    recorder.flush(10)
    assert tokens(spools) == [1, 2]
    assert spools.kinds().count("header") == 1


def test_a_file_that_got_our_number_is_not_written_to(spools: Spools, tmp_path: Path) -> None:
    recorder.record((QUEUE, 1))
    recorder.flush(10)
    number = mine().writing._file.fd
    other = os.open(tmp_path / "engines-own", os.O_CREAT | os.O_RDWR)
    os.dup2(other, number)
    recorder.record((QUEUE, 2))
    recorder.flush(10)
    assert os.read(other, 10) == b""
    assert tokens(spools) == [1, 2]
    os.close(number)
    os.close(other)


def test_half_a_frame_that_cannot_be_cut_off_costs_no_other_frame(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.record((QUEUE, 1))
    recorder.flush(10)
    real, calls = os.write, []

    def torn(fd: int, block: memoryview) -> int:
        calls.append(fd)
        if len(calls) == 1:
            return real(fd, block[:30])
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(fd, block)

    monkeypatch.setattr(os, "write", torn)
    monkeypatch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    recorder.record((QUEUE, 2))
    recorder.flush(10)
    recorder.flush(10)
    assert len(calls) > 2
    assert tokens(spools) == [1, 2]
    assert spools.kinds().count("damaged") == 1


def test_a_reader_that_follows_a_disk_that_fills_and_empties_sees_every_row_once(program: Program) -> None:
    process = program.start(
        """
        import resource
        for turn in range(1, 60):
            for number in range(200): recorder.record((S, turn * 200 + number, 0))
            limit = turn * 3000 if turn % 3 else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            recorder.flush(0.02)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """
    )
    reader, seen, ended = None, 0, False
    while not ended:
        ended = process.poll() is not None
        if reader is None and program.spools.files:
            reader = SpoolReader(program.spools.files[0])
        if reader is not None:
            seen += sum(frame.rows for frame in reader.frames(reader.position))
    assert process.communicate()[1] is None
    assert seen == 59 * 200
    assert [row["tokens"] for row in program.spools.rows()] == list(range(200, 200 * 60))
