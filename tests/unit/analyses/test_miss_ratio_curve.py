"""What a cache would hit if it were larger, or smaller: keys in the order in which they were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.miss_ratio_curve import COLUMNS, miss_ratio_curve
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.test_ideal_hit_ratio import asked

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
EARLIER = ("abc", "xy", "abz")


def curve(folder: Path, *prompts: str, points: int = 64, **tables: list[Row]) -> list[Row]:
    keys = [row for turn, prompt in enumerate(prompts) for row in asked(f"r{turn}", prompt, turn)]
    return miss_ratio_curve(write_run(folder / "run", request_key=keys, **tables), points=points).to_dicts()


def held(key: str, tier: str, component: str, size: int | None, **more: Any) -> Row:
    return {"event": "stored", "time_ns": 1, "key_space": "s", "key": key, "tier": tier,
            "component": component, "bytes": size, **more}  # fmt: skip


def test_a_run_without_keys_has_the_columns(tmp_path: Path) -> None:
    frame = miss_ratio_curve(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_a_key_needs_the_room_of_all_that_were_used_since(tmp_path: Path) -> None:
    """Behind r1 lie, the latest first, x y a b c: a needs room for 3, b for 4; c is asked by nobody."""
    rows = curve(tmp_path, *EARLIER)
    assert [(row["capacity_keys"], row["hit_keys"], row["hit_tokens"]) for row in rows] == [
        (3, 1, 10), (4, 2, 20), (6, 2, 20),
    ]  # fmt: skip
    assert {(row["requests"], row["asked_keys"], row["asked_tokens"]) for row in rows} == {(3, 8, 80)}
    assert [row["miss_ratio"] for row in rows] == [1 - 10 / 80, 1 - 20 / 80, 1 - 20 / 80]


def test_a_prefix_that_misses_its_beginning_hits_nothing(tmp_path: Path) -> None:
    """r1 finds b and c, and a is the oldest: with room for 3 r2's end is there, its start is not."""
    rows = curve(tmp_path, "abc", "bcd", "abc")
    assert [(row["capacity_keys"], row["hit_keys"]) for row in rows] == [(2, 1), (3, 2), (4, 5)]


def test_each_tier_has_the_curve_in_its_own_bytes(tmp_path: Path) -> None:
    """On two ranks a key's bytes are those of both; on the disk nobody said any."""
    both = [held(key, "host", "l1", 4, rank=rank) for key in "ab" for rank in (0, 1)]
    rows = curve(tmp_path, *EARLIER, block=[*both, held("a", "disk", "l2", None)])
    found = {(row["tier"], row["component"], row["capacity_keys"]): row["capacity_bytes"] for row in rows}
    assert found == {
        ("disk", "l2", 3): None, ("disk", "l2", 4): None, ("disk", "l2", 6): None,
        ("host", "l1", 3): 24, ("host", "l1", 4): 32, ("host", "l1", 6): 48,
    }  # fmt: skip


def test_tenants_share_the_room_and_never_a_key(tmp_path: Path) -> None:
    """The same hash under two cache salts: r1 finds nothing of r0's, and takes its room."""
    lookups = [
        {"op": "lookup", "request_id": name, "start_ns": 1, "identity_id": f"lmcache:salt:{tenant}"}
        for name, tenant in (("r0", "x"), ("r1", "y"), ("r2", "x"))
    ]
    rows = curve(tmp_path, "ab", "ab", "ab", span=lookups)
    assert [(row["tenant"], row["capacity_keys"], row["hit_keys"]) for row in rows] == [
        ("x", 3, 1), ("x", 4, 2), ("y", 3, 0), ("y", 4, 0),
    ]  # fmt: skip


def test_keys_of_unknown_length_are_counted_and_have_no_tokens(tmp_path: Path) -> None:
    keys = [*asked("r0", "a", 1), *asked("r1", "ab", 2, size=None)]
    (row, _) = miss_ratio_curve(write_run(tmp_path / "run", request_key=keys)).to_dicts()
    assert (row["asked_keys"], row["hit_keys"]) == (3, 1)
    assert [row[name] for name in ("asked_tokens", "hit_tokens", "capacity_tokens", "miss_ratio")] == [
        None
    ] * 4


def test_sums_beyond_64_bits_are_null(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 1, size=2**63 - 1), *asked("r1", "ab", 2, size=2**63 - 1)]
    row = miss_ratio_curve(write_run(tmp_path / "run", request_key=keys)).to_dicts()[-1]
    assert (row["hit_keys"], row["hit_tokens"], row["asked_tokens"]) == (2, None, None)


def test_of_many_capacities_the_first_and_the_last_stay(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    every = curve(tmp_path / "every", letters, letters)
    few = curve(tmp_path / "few", letters, letters, points=4)
    assert [row["capacity_keys"] for row in every] == list(range(1, 27))
    assert [row["capacity_keys"] for row in few] == [1, 5, 26]
    with pytest.raises(UsageError, match="at least 2"):
        curve(tmp_path / "none", letters, points=1)
