"""Forks, spawns, and every way in which a process ends: at most the last second is lost."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.unit.recorder.conftest import Program

SECOND_NS = 1_000_000_000


def test_without_kvtrace_out_nothing_happens(program: Program) -> None:
    said = program(
        """
        recorder.describe(engine="e")
        recorder.lost("dropped")
        recorder.identity("i", "writer", {"a": "b"}, source="s")
        for number in range(5000): recorder.record((S, number, 0))
        recorder.flush(); recorder.close()
        tell(f"{recorder.enabled()} {len(recorder._recordings)} {len(recorder._local.buffer)}")
        """,
        KVTRACE_OUT="",
    )
    assert said.split() == ["False", "0", "0"]
    assert not (program.run / "spool").exists()


def test_a_process_that_records_nothing_leaves_no_spool(program: Program) -> None:
    assert program("tell(str(recorder.enabled()))").split() == ["True"]
    assert not (program.run / "spool").exists()


def test_a_program_that_ends_leaves_everything_and_its_closing_mark(program: Program) -> None:
    program("for number in range(3000): recorder.record((S, number, 0))")
    assert [row["tokens"] for row in program.spools.rows()] == list(range(3000))
    assert program.spools.kinds()[0] == "header"
    assert program.spools.frames()[-1].kind == "end"
    assert program.spools.frames()[-1].content["rows"] == 3000
    assert (program.run / "spool").stat().st_mode & 0o777 == 0o700
    assert program.spools.files[0].stat().st_mode & 0o777 == 0o600


def test_a_program_that_raises_or_exits_inside_a_thread_leaves_everything(program: Program) -> None:
    program(
        """
        def work():
            recorder.record((S, 1, 0))
            sys.exit()
        thread = threading.Thread(target=work); thread.start(); thread.join()
        recorder.record((S, 2, 0))
        sys.exit(0)
        """
    )
    assert sorted(row["tokens"] for row in program.spools.rows()) == [1, 2]
    assert program.spools.kinds()[-1] == "end"


def test_a_fork_writes_its_own_spool_and_none_of_its_parents_rows(program: Program) -> None:
    program(
        """
        recorder.describe(engine="e", role="api")
        for number in range(100): recorder.record((S, number, 0))
        pid = os.fork()
        if pid == 0:
            tell(str(recorder.next_id() >> 40))
            for number in range(1000, 1100): recorder.record((S, number, 0))
            sys.exit(0)
        os.waitpid(pid, 0)
        tell(str(recorder.next_id() >> 40))
        for number in range(100, 200): recorder.record((S, number, 0))
        """
    )
    found = {file.name.split("-")[1]: program.spools.rows(file=file) for file in program.spools.files}
    assert sorted([row["tokens"] for row in rows] for rows in found.values()) == [
        list(range(200)), list(range(1000, 1100)),
    ]  # fmt: skip


def test_ids_of_a_fork_and_of_its_parent_never_meet(program: Program) -> None:
    said = program(
        """
        pid = os.fork()
        tell(str(recorder.next_id()))
        if pid: os.waitpid(pid, 0)
        """
    )
    first, second = map(int, said.split())
    assert first >> 40 != second >> 40


def test_a_fork_says_again_what_its_parent_described_but_for_the_role(program: Program) -> None:
    from kvtrace.sources.spool.decode import SpoolReader

    program(
        """
        recorder.describe(engine="e", role="api")
        pid = os.fork()
        if pid == 0:
            recorder.record((S, 7, 0))
            sys.exit(0)
        os.waitpid(pid, 0)
        """
    )
    said = {}
    for file in program.spools.files:
        frames = list(SpoolReader(file).frames())
        said[any(f.kind == "rows" for f in frames)] = [f.content for f in frames if f.kind == "facts"]
    assert said == {True: [{"engine": "e"}], False: [{"engine": "e", "role": "api"}]}


def test_a_fork_while_threads_record_loses_nothing_of_either_side(program: Program) -> None:
    program(
        """
        def work(first):
            for number in range(first, first + 20000): recorder.record((S, number, 0))
        threads = [threading.Thread(target=work, args=(n * 100000,)) for n in range(4)]
        for thread in threads: thread.start()
        children = []
        for n in range(5):
            time.sleep(0.01)
            pid = os.fork()
            if pid == 0:
                for number in range(1000): recorder.record((S, -number, 0))
                recorder.close()
                os._exit(0)
            children.append(pid)
        for pid in children: os.waitpid(pid, 0)
        for thread in threads: thread.join()
        """
    )
    sizes = sorted(len(program.spools.rows(file=file)) for file in program.spools.files)
    assert sizes == [1000] * 5 + [80000]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_leave_everything_and_their_closing_mark(
    program: Program, method: str
) -> None:
    program(
        f"""
        def child(first):
            for number in range(first, first + 100): recorder.record((S, number, 0))
        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            recorder.record((S, 0, 0))
            children = [context.Process(target=child, args=(n * 1000,)) for n in (1, 2)]
            for one in children: one.start()
            for one in children: one.join()
            assert [one.exitcode for one in children] == [0, 0]
        """
    )
    found = []
    for file in program.spools.files:
        from kvtrace.sources.spool.decode import SpoolReader

        assert [frame.kind for frame in SpoolReader(file).frames()][-1] == "end"
        found.append([row["tokens"] for row in program.spools.rows(file=file)])
    assert sorted(found) == [[0], list(range(1000, 1100)), list(range(2000, 2100))]


def last_ns(program: Program) -> int:
    return max(row["start_ns"] for row in program.spools.rows())


def running(program: Program, code: str) -> subprocess.Popen[str]:
    process = program.start(code)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any(
        file.stat().st_size > 4_000 for file in program.spools.files
    ):
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_loses_at_most_its_last_second(program: Program, number: signal.Signals) -> None:
    process = running(program, "steady(60)")
    time.sleep(1.7)
    process.send_signal(number)
    killed = time.monotonic_ns()
    assert process.wait(10) == -number
    process.stdout.close()  # type: ignore[union-attr]
    rows = program.spools.rows()
    assert [row["tokens"] for row in rows] == list(range(1, len(rows) + 1))
    assert killed - last_ns(program) < SECOND_NS
    assert program.spools.kinds()[-1] != "end"


def test_a_process_that_ends_by_os_exit_loses_at_most_its_last_second(program: Program) -> None:
    said = program("steady(1.8); tell(str(recorder.now())); os._exit(0)")
    assert int(said) - last_ns(program) < SECOND_NS


def test_a_handler_that_turns_sigterm_into_an_exit_loses_nothing(program: Program) -> None:
    process = running(
        program,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        number = 0
        try:
            while True:
                number += 1
                recorder.record((S, number, recorder.now()))
                time.sleep(0.001)
        finally:
            tell(str(number))
        """,
    )
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert [row["tokens"] for row in program.spools.rows()][-1] >= int(out) - 1
    assert program.spools.kinds()[-1] == "end"


def test_recording_inside_signal_handlers_and_finalisers_never_hangs(program: Program) -> None:
    said = program(
        """
        count = [0, 0]
        class Dies:
            def __init__(self): self.me = self
            def __del__(self):
                count[1] += 1
                recorder.record((S, 2, 0))
        def handler(*_):
            count[0] += 1
            recorder.record((S, 1, 0))
            recorder.lost("dropped", detail="in a handler")
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        end = time.monotonic() + 2
        number = 0
        while time.monotonic() < end:
            number += 1
            recorder.record((S, 3, 0))
            if number % 50 == 0: Dies()
            if number % 20000 == 0: recorder.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)
        import gc; gc.collect()
        recorder.close()
        tell(f"{count[0]} {count[1]} {number}")
        """
    )
    handled, died, plain = map(int, said.split())
    tokens = [row["tokens"] for row in program.spools.rows()]
    dropped = {key: n for key, n in program.spools.losses().items() if key == ("dropped", "queue")}
    assert handled > 100
    assert len(tokens) + sum(dropped.values()) == handled + died + plain
    assert program.spools.losses()["dropped", None] == handled


def test_a_program_ends_although_other_threads_still_record(program: Program) -> None:
    program(
        """
        def work():
            while True: recorder.record((S, 1, 0)); time.sleep(0.0001)
        for _ in range(4): threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        """
    )
    assert program.spools.kinds()[-1] == "end"


def test_where_no_thread_can_be_started_flush_and_close_write(program: Program) -> None:
    program(
        """
        from kvtrace.recorder import recording
        def refuse(*_): raise RuntimeError("can't start new thread")
        recording.start_new_thread = refuse
        for number in range(100): recorder.record((S, number, 0))
        recorder.flush()
        assert len(os.listdir(os.path.join(os.environ["KVTRACE_OUT"], "spool"))) == 1
        for number in range(100, 200): recorder.record((S, number, 0))
        """
    )
    assert [row["tokens"] for row in program.spools.rows()] == list(range(200))
    assert program.spools.kinds()[-1] == "end"


def test_the_header_says_who_and_where(program: Program, tmp_path: Path) -> None:
    said = program(
        "recorder.record((S, 1, 0)); tell(f'{os.getpid()} {os.getppid()}')",
        KVTRACE_ANCHOR="5:1700000000000000005", KVTRACE_RUN_ID="run-1",
    )  # fmt: skip
    from kvtrace.schema.frames import HEADER_FIELDS

    header = program.spools.frames()[0].content
    assert set(header) == set(HEADER_FIELDS)
    assert [header["pid"], header["ppid"]] == [int(part) for part in said.split()]
    assert header["anchor"] == [5, 1700000000000000005]
    assert (header["anchor_source"], header["run_id"], header["program"]) == ("run", "run-1", "program.py")
    assert isinstance(header["start_ticks"], int)
    assert program.spools.files[0].parent == tmp_path / "spool"
    assert program.spools.files[0].name == (
        f"{header['boot_id'].replace('-', '')}-{header['pid']}-{header['start_ns']}.kvspool"
    )


@pytest.mark.parametrize("anchor", ["", "5", "a:b", "1:2:3"])
def test_a_process_without_the_runs_anchor_takes_its_own_and_says_so(program: Program, anchor: str) -> None:
    program("recorder.record((S, 1, 0))", KVTRACE_ANCHOR=anchor)
    header = program.spools.frames()[0].content
    assert header["anchor_source"] == "own"
    assert abs(header["anchor"][1] - time.time_ns()) < 60 * SECOND_NS


def test_a_stepped_wall_clock_moves_the_later_anchors_and_no_time_of_a_row(program: Program) -> None:
    program(
        """
        from kvtrace.recorder import place, writing
        writing.ANCHOR_EVERY_NS = 0
        recorder.record((S, 1, recorder.now())); recorder.flush()
        real = time.time_ns
        place.time = type(time)("time"); place.time.monotonic_ns = time.monotonic_ns
        place.time.time_ns = lambda: real() + 3600 * 10**9
        recorder.record((S, 2, recorder.now()))
        """,
        KVTRACE_ANCHOR="5:1700000000000000005",
    )
    frames = program.spools.frames()
    offsets = [unix - monotonic for monotonic, unix in (f.content for f in frames if f.kind == "anchor")]
    assert offsets[-1] - offsets[0] == pytest.approx(3600 * SECOND_NS, abs=SECOND_NS)
    first, second = program.spools.rows()
    assert 0 < second["start_ns"] - first["start_ns"] < 10 * SECOND_NS
    assert frames[0].content["anchor"] == [5, 1700000000000000005]


def test_a_pause_is_marked_once(program: Program) -> None:
    """Rows, nothing for several flushes, rows: one mark between them."""
    body = """
    import time
    recorder.record((S, 1, 0))
    time.sleep(2.2)
    recorder.record((S, 2, 0))
    """
    program(body)
    kinds = [frame.kind for frame in program.spools.frames()]
    kinds = [kind for kind in kinds if kind in ("rows", "idle", "end")]
    assert kinds == ["rows", "idle", "rows", "end"]
