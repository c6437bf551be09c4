"""What loads must restore for groups of layers, against positions one by one, on drawn loads; many a run."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.lock_contract import lock_contract
from kvtrace.analyses.lock_contract._findings import Asked
from kvtrace.analyses.lock_contract._retained import retained
from tests.property.oracle_retained import Group, lacking, needed, verdict
from tests.property.test_exposure import cases
from tests.rows import write_run
from tests.unit.analyses.retained_rows import VLLM, load, need, restored

Row = dict[str, Any]
LOADS = 30
KINDS = ("full", "window", "chunked", "recurrent")
OUTCOMES = ("ok", "ok", "ok", "ok", "ok", "failed", "partial", "cancelled", "unknown", None)
QUERY = "SELECT transfer_id, number, rank, verdict, needed::BIGINT, lacking::BIGINT FROM retained"


@st.composite
def ranges(draw: st.DrawFn, blocks: int) -> tuple[tuple[int, int], ...]:
    """Some runs of blocks, mostly at the end, where they are needed; they may overlap."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        low = draw(st.integers(0, blocks))
        found.append((low, draw(st.sampled_from((blocks, blocks, min(blocks, low + 1), low)))))
    return tuple(found)


@st.composite
def one_load(draw: st.DrawFn) -> tuple[str | None, dict[tuple[int, int], Group]]:
    """Its outcome, and what became of each group on each rank; the GPU has the same on all ranks."""
    first, found = draw(st.integers(1, 24)), {}
    for number in range(draw(st.integers(1, 3))):
        block = draw(st.sampled_from((1, 2, 4, 8)))
        blocks = -(-first // block)
        kind, span = draw(st.sampled_from(KINDS)), draw(st.integers(2, 12))
        cached = draw(ranges(blocks))
        for rank in range(2):
            given_ = None if draw(st.integers(0, 9)) == 0 else draw(ranges(blocks))
            found[number, rank] = Group(kind, span, first, block, cached, given_)
    return draw(st.sampled_from(OUTCOMES)), found


def rows_of(name: str, outcome: str | None, groups: dict[tuple[int, int], Group]) -> list[Row]:
    found = [load(name, outcome)]
    for (number, rank), group in groups.items():
        if rank == 0:
            cached = " ".join(f"{low * group.block}-{high * group.block}" for low, high in group.cached)
            low = min(needed(group), default=group.first)
            found.append(
                need(number, group.kind, low, group.first, request=name, on_gpu=cached, span=group.span,
                     groups=3, block=group.block)
            )  # fmt: skip
        if group.restored is not None:
            pieces = group.restored or ((0, 0),)
            found += [
                restored(number, low * group.block, high * group.block, request=name, rank=rank)
                for low, high in pieces
            ]
    return found


@given(st.lists(one_load(), min_size=LOADS, max_size=LOADS))
@cases(8)
def test_every_group_of_every_load_is_judged_as_its_positions_say(
    loads: list[tuple[str | None, dict[tuple[int, int], Group]]],
) -> None:
    rows, expected = [], {}
    heard = {rank for _, groups in loads for (_, rank), group in groups.items() if group.restored is not None}
    for place, (outcome, groups) in enumerate(loads):
        name = f"r{place:02d}"
        rows += rows_of(name, outcome, groups)
        speaking = any(group.restored is not None for group in groups.values())
        for (number, rank), group in groups.items():
            if rank in (heard if speaking else {0}):
                key = (f"{name}/load/1", number, rank if speaking else None)
                expected[key] = (verdict(group, outcome), len(needed(group)), group)
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", span=rows, process=[VLLM])
        found = {tuple(row[:3]): (*row[3:5], row[5]) for row in retained(Asked(run, 1)).sql(QUERY).fetchall()}
        answer = lock_contract(run, only=("retained_state_covered",))
        whole = lock_contract(run, only=("restored_completely",))
    assert {key: row[:2] for key, row in found.items()} == {key: row[:2] for key, row in expected.items()}
    for key, (word, _, short) in found.items():
        if word in ("lacking", "covered"):
            assert short == lacking(expected[key][2]), key
    words = Counter(word for word, *_ in expected.values())
    if words["lacking"]:
        assert answer["status"].to_list() == ["violated"] * words["lacking"]
    else:
        assert set(answer["status"]) <= {"pass", "inconclusive", "unobserved"}
        assert (answer["status"].to_list() == ["pass"]) == (
            words["covered"] > 0 and not words["open"] and not words["untold"]
        )
    bad = {key[0].split("/")[0] for key, (word, *_) in expected.items() if word == "lacking"}
    assert set(whole.filter(status="violated")["request_id"]) == bad
