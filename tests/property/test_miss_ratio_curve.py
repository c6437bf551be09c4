"""The curve against caches that are played: an LRU of every size, request by request."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.ideal_hit_ratio import ideal_hit_ratio
from kvtrace.analyses.miss_ratio_curve import miss_ratio_curve
from kvtrace.analyses.miss_ratio_curve.distances import below
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
Prompt = tuple[str, str | None, str]
"""Key space, tenant, keys: a letter each, a dash is a place of which no key was recorded."""


@st.composite
def prompts(draw: st.DrawFn) -> list[Prompt]:
    """Few keys, so that prompts share beginnings, repeat keys and have gaps."""
    found = []
    for _ in range(draw(st.integers(0, 12))):
        keys = draw(st.text("abcdef-", min_size=1, max_size=7))
        if keys.strip("-"):
            found.append(
                (
                    draw(st.sampled_from(("s", "s", "t"))),
                    draw(st.sampled_from((None, None, "x"))),
                    keys,
                )
            )
    return found


def rows_of(found: list[Prompt]) -> tuple[list[Row], list[Row]]:
    """Request keys, and the lookups that name the tenants."""
    keys, lookups = [], []
    for turn, (space, tenant, prompt) in enumerate(found):
        name = f"r{turn:02}"
        keys += [
            {"request_id": name, "position": place, "key_space": space, "key": key, "time_ns": turn,
             "tokens": 10 + ord(key) % 3, "source": "drawn"}
            for place, key in enumerate(prompt) if key != "-"
        ]  # fmt: skip
        if tenant:
            row = {
                "op": "lookup",
                "request_id": name,
                "start_ns": turn,
                "identity_id": f"lmcache:salt:{tenant}",
            }
            lookups.append(row)
    return keys, lookups


def replayed(found: list[Prompt], space: str, room: int) -> dict[str | None, tuple[int, int]]:
    """Tenant -> (keys, tokens) of hits in one LRU that holds so many keys."""
    cache: OrderedDict[tuple[str | None, str], None] = OrderedDict()
    hits: dict[str | None, tuple[int, int]] = {}
    for own, tenant, prompt in found:
        if own != space:
            continue
        keys, tokens = hits.get(tenant, (0, 0))
        for key in prompt:
            if key == "-" or (tenant, key) not in cache:
                break
            keys, tokens = keys + 1, tokens + 10 + ord(key) % 3
        hits[tenant] = keys, tokens
        for key in reversed(prompt):
            if key != "-":
                cache[tenant, key] = None
                cache.move_to_end((tenant, key))
                if len(cache) > room:
                    cache.popitem(last=False)
    return hits


def ask(found: list[Prompt], points: int = 64) -> list[Row]:
    keys, lookups = rows_of(found)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", request_key=keys, span=lookups)
        rows = miss_ratio_curve(run, points=points).to_dicts()
        if not lookups:
            ideal = {row["key_space"]: row["hit_keys"] for row in ideal_hit_ratio(run).to_dicts()}
            assert ideal == {row["key_space"]: row["hit_keys"] for row in rows}, "the last row never evicts"
        return rows


@given(prompts(), st.sampled_from((64, 64, 3)))
@cases(40)
def test_every_row_is_what_an_lru_of_that_size_hits(found: list[Prompt], points: int) -> None:
    for row in ask(found, points):
        hits = replayed(found, row["key_space"], row["capacity_keys"])
        assert (row["hit_keys"], row["hit_tokens"]) == hits[row["tenant"]]


@given(prompts())
@cases(25)
def test_between_two_rows_nothing_changes(found: list[Prompt]) -> None:
    rows = ask(found)
    for space, tenant in {(row["key_space"], row["tenant"]) for row in rows}:
        mine = {
            r["capacity_keys"]: r["hit_keys"]
            for r in rows
            if (r["key_space"], r["tenant"]) == (space, tenant)
        }
        told = 0
        for room in range(1, max(mine) + 3):
            told = mine.get(room, told)
            assert replayed(found, space, room)[tenant][0] == told


@given(st.lists(st.integers(0, 40), max_size=30), st.data())
@cases(60)
def test_counting_in_many_stretches_at_once_is_counting_in_each(
    values: list[int], data: st.DataObject
) -> None:
    ends = st.integers(0, len(values))
    asked = data.draw(st.lists(st.tuples(ends, ends, st.integers(0, 70)), max_size=8))
    asked = [(min(a, b), max(a, b), bound) for a, b, bound in asked]
    low, high, bound = np.array(asked, np.int64).reshape(-1, 3).T
    counted = [sum(value < most for value in values[a:b]) for a, b, most in asked]
    assert below(np.array(values, np.int64), low, high, bound).tolist() == counted
