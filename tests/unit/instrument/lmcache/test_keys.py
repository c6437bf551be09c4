"""A key that is met again is the same text, and no two keys are one."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache import keys as ours
from kvtrace.instrument.lmcache.keys import all_named, hashes, named
from tests.unit.instrument.lmcache.literal import Key

if TYPE_CHECKING:
    import pytest


def test_a_key_that_is_met_again_is_one_object() -> None:
    first, again = (Key(bytes([1, 2, 3])) for _ in range(2))
    assert named(first) is named(again)
    assert next(hashes([bytes([1, 2, 3])])) is named(first)[1]


def test_keys_that_differ_in_one_part_alone_are_told_apart() -> None:
    parts = product((b"\x01", b"\x02"), ("m", "n"), (0x02000200, 0x02010201), (0, 1))
    every = [Key(*each) for each in parts]
    assert list(all_named(every)) == [named(key) for key in every]
    assert len(set(all_named(every))) == len(every) == 16


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MOST_KEPT", 8)
    for _ in range(2):
        found = [named(Key(bytes([0, number])))[1] for number in range(40)]
        assert found == [f"00{number:02x}" for number in range(40)]
        assert len(ours._names) <= 8
        assert len(ours._hashes) <= 8


def test_no_keys_are_no_rows() -> None:
    assert list(all_named(None)) == list(all_named([])) == list(hashes(None)) == []
