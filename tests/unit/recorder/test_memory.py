"""How much may wait, who drops what is over, and what a dead thread leaves."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.recorder import buffers, recording, writing

if TYPE_CHECKING:
    import pytest
    from tests.unit.recorder.conftest import Spools

QUEUE = recorder.shape("span", ("tokens",), op="queue")
STEP = recorder.shape("span", ("tokens",), op="step")


def mine() -> recording.Recording:
    (found,) = recorder._recordings.values()
    return found


def waiting() -> int:
    return sum(map(len, mine().buffers)) + mine().writing.backlog


def test_what_is_over_the_bound_is_dropped_and_counted_by_operation(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PENDING_ROWS", 5_000)
    recorder.record((QUEUE, 0))
    recorder.flush(10)
    with mine()._busy:  # the writer is held up
        for number in range(1, 6_001):
            recorder.record((QUEUE, number))
        for number in range(500):
            recorder.record((STEP, number))
        assert waiting() == 5_000
    recorder.flush(10)
    assert spools.losses() == {("dropped", "queue"): 1_000, ("dropped", "step"): 500}
    assert [row["tokens"] for row in spools.rows()] == list(range(5_001))
    recorder.record((STEP, 7))
    recorder.flush(10)
    assert spools.rows()[-1]["tokens"] == 7


def test_all_threads_together_stay_within_the_bound(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PENDING_ROWS", 20_000)
    recorder.record((QUEUE, 0))
    recorder.flush(10)
    with mine()._busy:
        threads = [
            threading.Thread(target=lambda: [recorder.record((QUEUE, n)) for n in range(10_000)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = waiting()
        assert 20_000 <= held <= 20_000 + 8 * buffers.QUOTA_ROWS
    recorder.flush(10)
    assert spools.losses() == {("dropped", "queue"): 80_000 - held}
    assert len(spools.rows()) == held + 1


def test_after_a_flush_a_thread_has_its_small_quota_again(spools: Spools) -> None:
    del spools
    for number in range(30_000):
        recorder.record((QUEUE, number))
    recorder.flush(10)
    recorder.flush(10)
    assert [buffer.quota for buffer in mine().buffers] == [buffers.QUOTA_ROWS]


def test_what_a_dead_thread_left_is_written_and_its_buffer_forgotten(spools: Spools) -> None:
    for number in range(20):
        thread = threading.Thread(target=recorder.record, args=((QUEUE, number),))
        thread.start()
        thread.join()
    recorder.record((QUEUE, 20))
    gc.collect()
    recorder.flush(10)
    assert sorted(row["tokens"] for row in spools.rows()) == list(range(21))
    assert len(mine().buffers) == 1


def test_a_flush_that_cannot_take_all_at_once_goes_on(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ROUND_ROWS", 1_000)
    recorder.record((QUEUE, 0))
    recorder.flush(10)
    for number in range(1, 5_500):
        recorder.record((QUEUE, number))
    recorder.flush(10)
    assert [row["tokens"] for row in spools.rows()] == list(range(5_500))


def test_nothing_is_held_for_a_million_open_operations(spools: Spools) -> None:
    opened = recorder.shape("span", ("span_id", "request_id"), part="open", op="request")
    for turn in range(20):
        for number in range(5_000):
            recorder.record((opened, recorder.next_id(), f"request-{turn}-{number}"))
        recorder.flush(10)
        assert waiting() == 0
        assert len(mine().writing._texts) < 16_384 + 5_002
    assert sum(frame.rows for frame in spools.frames()) == 100_000


def test_after_close_nothing_is_kept_and_nothing_grows(spools: Spools) -> None:
    recorder.record((QUEUE, 1))
    recorder.close()
    assert not recorder.enabled()
    for number in range(3_000):
        recorder.record((QUEUE, number))
    thread = threading.Thread(target=recorder.record, args=((QUEUE, 5),))
    thread.start()
    thread.join()
    assert waiting() == 0
    assert spools.kinds()[-1] == "end"
    assert len(spools.rows()) == 1


def test_a_thread_that_recorded_before_there_was_a_run_records_into_it(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVTRACE_OUT")
    recorder.record((QUEUE, 1))
    monkeypatch.setenv("KVTRACE_OUT", str(spools.run))
    recorder.describe(engine="e")
    recorder.record((QUEUE, 2))
    recorder.flush(10)
    assert [row["tokens"] for row in spools.rows()] == [2]


def test_losses_that_come_faster_than_they_are_written_stay_bounded_and_exact(spools: Spools) -> None:
    recorder.record((QUEUE, 1))
    recorder.flush(10)
    with mine()._busy:
        for number in range(50_000):
            recorder.lost("hook_failure", detail=f"hook {number}")
    recorder.flush(10)
    assert spools.losses() == {("hook_failure", None): 50_000}
    assert len(spools.rows("loss")) < 200
