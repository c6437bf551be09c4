"""The queue between receivers and the decoding thread, and losses that are many."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kvtrace.collect import feeding, intake
from kvtrace.collect.feeding import merged
from kvtrace.collect.intake import ITEM_BYTES, Intake
from kvtrace.collect.otlp.received import Otlp
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    import pytest

SOURCE = Otlp("otlp-grpc x", "otlp-grpc")


def test_a_full_queue_refuses_until_there_is_room() -> None:
    queue = Intake(limit_bytes=2 * (ITEM_BYTES + 100))
    assert [queue.offer(SOURCE, number, 100) for number in range(3)] == [True, True, False]
    assert [item.content for item in queue.take()] == [0, 1]
    assert queue.offer(SOURCE, 3, 100)


def test_an_item_larger_than_all_the_room_is_taken_alone() -> None:
    queue = Intake(limit_bytes=10)
    assert queue.offer(SOURCE, "large", 1000)
    assert not queue.offer(SOURCE, "next", 1)


def test_who_waits_gets_room_or_the_end() -> None:
    queue = Intake(limit_bytes=ITEM_BYTES + 1)
    queue.offer(SOURCE, 0, 1)
    waited: list[bool] = []
    threads = [threading.Thread(target=lambda: waited.append(queue.wait(SOURCE, 1, 1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert queue.take()
    while len(waited) < 1:
        time.sleep(0.01)
    queue.close()
    for thread in threads:
        thread.join(20)
    assert sorted(waited) == [False, True]
    assert [item.content for item in queue.take()] == [1]
    assert queue.take() == []


def test_a_batch_is_bounded_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BATCH_BYTES", 3 * (ITEM_BYTES + 10))
    queue = Intake()
    for number in range(7):
        queue.offer(SOURCE, number, 10)
    queue.close()
    batches = []
    while batch := queue.take():
        batches.append([item.content for item in batch])
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_losses_that_are_alike_are_one_with_the_widest_times() -> None:
    found = merged(
        [
            Loss("a", "dropped", 2, "p", from_ns=5, to_ns=6, detail="x"),
            Loss("a", "dropped", 3, "p", from_ns=3, to_ns=9, detail="x"),
            Loss("a", "dropped", 1, "p", detail="y"),
            Loss("a", "dropped", 1, "p", from_ns=1, to_ns=1, detail="y"),
        ]
    )
    assert found == [
        Loss("a", "dropped", 5, "p", from_ns=3, to_ns=9, detail="x"),
        Loss("a", "dropped", 2, "p", detail="y"),
    ]


def test_too_many_kinds_of_losses_lose_their_details_and_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "MAX_LOSSES", 3)
    found = merged(Loss("a", "dropped", 1, f"p{number}", detail=str(number)) for number in range(9))
    assert found == [Loss("a", "dropped", 9)]
