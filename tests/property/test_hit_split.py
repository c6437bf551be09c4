"""What was used of a find in two tiers, against counting token by token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.hit_ratio import hit_ratio
from tests.property.test_exposure import cases
from tests.rows import write_run
from tests.unit.analyses.serving import PROMPT, Row, asked, lookup, prefill

Request = tuple[int, int, int, int]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Tokens that the GPU had, that L1 had from the first on, how much further L2 reached, and were used."""
    first, second = draw(st.integers(0, 900)), draw(st.integers(0, 600))
    hit = draw(st.integers(0, 1400))
    used = draw(st.integers(0, max(0, first + second - hit)))
    return hit, first, second, used


def rows(number: int, request: Request) -> list[Row]:
    """A request through LMCache, as the scheduler and its steps tell it."""
    hit, first, second, used = request
    name = f"r{number}"
    tiers = [("host", first), ("disk", second)]
    found: Row = {"component": "lmcache", "requested_tokens": PROMPT, "found_by_tier": tiers}
    step = prefill(hit + used, PROMPT - hit - used, name=name)
    return [asked(hit, used, name), lookup(first + second, request_id=name, **found), step]


def by_token(request: Request) -> tuple[int, int]:
    """Of each token that was used: does it lie in what L1 had?"""
    hit, first, _, used = request
    in_l1 = sum(token < first for token in range(hit, hit + used))
    return in_l1, used - in_l1


@given(st.lists(requests(), min_size=1, max_size=6))
@cases(12)
def test_every_used_token_is_credited_to_the_tier_it_lay_in(drawn: list[Request]) -> None:
    spans: list[dict[str, Any]] = [row for number, each in enumerate(drawn) for row in rows(number, each)]
    with tempfile.TemporaryDirectory() as folder:
        found = hit_ratio(write_run(Path(folder) / "run", span=spans))
    loaded = {row["tier"]: row["loaded_tokens"] for row in found.to_dicts()}
    splits = [by_token(each) for each in drawn]
    assert (loaded["host"], loaded["disk"]) == tuple(map(sum, zip(*splits, strict=True)))
