"""engine_numbers against vLLM's way of counting, in plain loops, on drawn requests."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.engine_numbers import engine_numbers
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
MS = 1_000_000
PROMPT, BLOCK = 256, 16
HITS = "vllm:external_prefix_cache_hits_total"
QUERIES = "vllm:external_prefix_cache_queries_total"
LOCAL = "vllm:prefix_cache_queries_total"
ON_GPU = "vllm:prefix_cache_hits_total"
QUEUE = "vllm:request_queue_time_seconds_sum"
SOURCE = "vllm:prompt_tokens_by_source_total"
LOADED = f'{SOURCE}{{source="external_kv_transfer"}}'
COMPUTED = f'{SOURCE}{{source="local_compute"}}'
TOKENS = (HITS, QUERIES, LOCAL, ON_GPU, LOADED, COMPUTED)


@dataclass(frozen=True)
class Served:
    """Blocks that the GPU had, that were selected, and that arrived; how long it queued and loaded, ms."""

    gpu: int
    selected: int
    arrived: int
    queued: int
    loading: int

    @property
    def again(self) -> bool:
        """Nothing arrived of an asynchronous load: it is admitted anew."""
        return self.selected > 0 and self.arrived == 0


@st.composite
def requests(draw: st.DrawFn) -> Served:
    gpu = draw(st.integers(0, 6))
    selected = draw(st.integers(0, 8))
    arrived = draw(st.one_of(st.just(selected), st.integers(0, selected)))
    return Served(gpu, selected, arrived, draw(st.integers(0, 9)), draw(st.integers(5, 20)))


def rows(number: int, one: Served, shift_ns: int) -> list[Row]:
    """Queue, lookup, load and the step, one after the other."""
    name = f"r{number}"
    start = shift_ns + number * 1_000 * MS
    own = {"request_id": name, "engine": "e", "process": "e/s", "observer": "scheduler"}
    loaded_ns = start + (one.queued + one.loading) * MS
    member = {
        "request_id": name, "phase": "prefill", "output_tokens": 1,
        "computed_before": (one.gpu + one.arrived) * BLOCK,
        "scheduled_tokens": PROMPT - (one.gpu + one.arrived) * BLOCK,
    }  # fmt: skip
    found = [
        {
            **own, "op": "request", "start_ns": start, "end_ns": loaded_ns + 90 * MS, "status": "ok",
            "prompt_tokens": PROMPT, "gpu_hit_tokens": one.gpu * BLOCK, "output_tokens": 1,
            "selected_tokens": one.selected * BLOCK,
        },
        {
            **own, "op": "queue", "start_ns": start, "end_ns": start + one.queued * MS, "reason": "policy",
        },
        inquiry(own, start + one.queued * MS, one.gpu, one.selected, 1),
        {
            **own, "op": "step", "request_id": None, "start_ns": loaded_ns, "end_ns": loaded_ns + 20 * MS,
            "members": [member],
        },
    ]  # fmt: skip
    if one.selected:
        outcome = "ok" if one.arrived == one.selected else "partial" if one.arrived else "failed"
        times = {"start_ns": start + one.queued * MS, "end_ns": loaded_ns}
        usable = {"usable_tokens": str(one.arrived * BLOCK)}
        found += [
            {**own, **times, "op": "queue", "reason": "remote_kv"},
            {
                **own, **times, "op": "load", "tier_from": "host", "tier_to": "gpu", "outcome": outcome,
                "tokens": one.selected * BLOCK, "attributes": usable, "component": "c",
            },
        ]  # fmt: skip
    if one.again:
        found.append(inquiry(own, loaded_ns - MS, one.gpu, 0, 2))
    return found


def inquiry(own: Row, at_ns: int, gpu: int, returned: int, attempt: int) -> Row:
    told = {"asked_from_tokens": str(gpu * BLOCK), "returned_tokens": str(returned * BLOCK)}
    found = {"found_tokens": (gpu + returned) * BLOCK, "outcome": "ok" if returned else "miss"}
    return {
        **own, **found, "op": "lookup", "start_ns": at_ns, "end_ns": at_ns, "attributes": told,
        "attempt": attempt, "component": "c",
    }  # fmt: skip


def counted(served: list[Served]) -> dict[str, float]:
    """What vLLM 0.32 counts of them: at each admission, and by source when a prefill is over."""
    found = dict.fromkeys((*TOKENS, QUEUE), 0.0)
    for one in served:
        for returned in (one.selected, 0) if one.again else (one.selected,):
            found[HITS] += returned * BLOCK
            found[QUERIES] += PROMPT - one.gpu * BLOCK
            found[LOCAL] += PROMPT
            found[ON_GPU] += one.gpu * BLOCK
        cached = 0 if one.again else one.selected * BLOCK
        found[LOADED] += cached
        found[COMPUTED] += PROMPT - one.gpu * BLOCK - cached
        found[QUEUE] += (one.queued + (one.loading if one.selected else 0)) / 1e3
    return found


def answer(served: list[Served], reported: dict[str, float | None], shift_ns: int = 0) -> dict[str, Row]:
    """Number -> its row."""
    spans = [row for number, one in enumerate(served) for row in rows(number, one, shift_ns)]
    spans = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    metrics: list[Row] = []
    for name, value in reported.items():
        base, _, source = name.removesuffix('"}').partition('{source="')
        labels = {"source": source} if source else {}
        for page, shown in enumerate((0.0, value)):
            if shown is not None:
                metrics.append(sample(base, shown, page, labels))
                if base.endswith("_sum"):
                    metrics.append(sample(base.replace("_sum", "_count"), page, page, labels))
    identity = [{"run_id": "r", "identity_id": "e", "field": "block_size", "value": str(BLOCK)}]
    process = [{"process": "e/s", "engine": "e", "product": "vllm"}]
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", span=spans, metric=metrics, identity=identity, process=process)
        return {row["number"]: row for row in engine_numbers(run).to_dicts()}


def sample(name: str, value: float, page: int, labels: dict[str, str]) -> Row:
    kind = "histogram" if name.endswith(("_sum", "_count")) else "counter"
    own = {**labels, "kvtrace.source": "p.txt", "kvtrace.page": str(page)}
    return {"run_id": "r", "name": name, "kind": kind, "value": float(value), "labels": own}


worlds = st.lists(requests(), min_size=1, max_size=4)


@cases(12)
@given(worlds)
def test_what_vllm_counts_is_explained_to_the_token(served: list[Served]) -> None:
    reported = counted(served)
    found = answer(served, reported)
    for name, value in reported.items():
        row = found[name]
        assert row["reported"] == round(value * (1e9 if name == QUEUE else 1))
        assert "unexplained" not in (row["reason"] or ""), row
    once = [one for one in served if not one.again]
    assert found[HITS]["measured"] == sum(one.arrived for one in served) * BLOCK
    assert found[HITS]["difference"] == sum(one.selected - one.arrived for one in served) * BLOCK
    assert found[LOADED]["difference"] == sum(one.selected - one.arrived for one in once) * BLOCK
    assert found[COMPUTED]["difference"] == -found[LOADED]["difference"]
    assert found[QUERIES]["measured"] == sum(PROMPT - one.gpu * BLOCK for one in served)
    assert found[QUEUE]["measured"] == sum(one.queued for one in served) * MS


@cases(8)
@given(worlds)
def test_without_failures_all_tokens_agree(served: list[Served]) -> None:
    whole = [Served(one.gpu, one.selected, one.selected, one.queued, one.loading) for one in served]
    found = answer(whole, counted(whole))
    for name in TOKENS:
        assert (found[name]["agrees"], found[name]["reason"], found[name]["difference"]) == (True, None, 0)


@cases(12)
@given(worlds, st.dictionaries(st.sampled_from(TOKENS), st.one_of(st.none(), st.integers(0, 3000))))
def test_a_row_is_two_sides_their_difference_and_why(
    served: list[Served], told: dict[str, float | None]
) -> None:
    found = answer(served, {**counted(served), **told})
    for row in found.values():
        sides = (row["reported"], row["measured"])
        if None in sides:
            assert (row["difference"], row["agrees"], row["reason"]) == (None, None, None)
            assert "was not" in row["basis"] or "were not" in row["basis"]
            continue
        assert row["difference"] == row["reported"] - row["measured"]
        assert (row["reason"] is None) == row["agrees"]
        assert row["agrees"] == (row["difference"] == 0) or row["unit"] == "ns"
        assert row["reason"] != ""
    for name, value in told.items():
        assert found[name]["reported"] == value


@cases(5)
@given(worlds, st.integers(1, 10**15))
def test_when_it_was_changes_nothing(served: list[Served], shift_ns: int) -> None:
    reported = counted(served)
    here, there = answer(served, reported), answer(served, reported, shift_ns)
    assert pl.DataFrame(list(here.values())).equals(pl.DataFrame(list(there.values())))
