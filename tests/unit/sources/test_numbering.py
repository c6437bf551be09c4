"""Numbered batches: gaps, copies, restarts, and their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources import numbering
from kvtrace.sources.numbering import Numbering

if TYPE_CHECKING:
    import pytest


def test_two_publishers_under_one_name_have_no_gap_between_them() -> None:
    """As Dynamo's two mock workers were recorded: 0 1 | 0 1 2 3 | 2 3."""
    counting = Numbering()
    for time_ns, number in enumerate((0, 1, 0, 1, 2, 3, 2, 3), start=1):
        assert counting.take(number, time_ns)
    assert list(counting.losses("file", "events")) == []
    assert counting.interleaved


def test_gaps_beyond_the_limit_are_added_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_GAPS", 2)
    counting = Numbering()
    for number in (0, 2, 4, 6, 8):
        counting.take(number, 100 + number)
    found = list(counting.losses("file", "events"))
    assert [(loss.count, loss.from_ns, loss.to_ns) for loss in found] == [(1, 100, 102), (3, 102, 108)]


def test_publishers_beyond_the_limit_keep_their_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_PUBLISHERS", 2)
    counting = Numbering()
    for time_ns, number in enumerate((0, 2, 0, 0, 0, 0), start=1):
        counting.take(number, time_ns)
    assert len(counting.counts) == 2
    assert sum(loss.count for loss in counting.losses("file", "events")) == 1


def test_copies_beyond_the_memory_are_not_told_from_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "REMEMBERED", 3)
    counting = Numbering()
    for number in range(5):
        counting.take(number, 100 + number)
    assert not counting.take(4, 104)
    assert counting.take(0, 100)
