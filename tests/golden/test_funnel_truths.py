"""The funnel, hit ratios and ledger of the real recordings: what the client, engine and cache say agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.hit_funnel import LOST, hit_funnel
from kvtrace.analyses.hit_ratio import hit_ratio
from kvtrace.analyses.ledger import ledger
from tests.golden.conftest import SAMPLES
from tests.golden.truths import SECOND, TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

NATIVE = ("concurrent", "l1-reuse", "l2-loads", "server-killed", "stores-dropped")
"""vLLM with LMCache, recorded from inside as well."""
RECORDED = tuple(sorted(path.parent.name for path in SAMPLES.glob("*/raw")))


def total(frame: pl.DataFrame, *names: str) -> list[Any]:
    return list(frame.select(pl.col(names).sum()).row(0))


def test_found_moved_and_loaded_are_three_numbers(sample: Callable[[str], Run]) -> None:
    """The GPU held a part of what was found; chunks are moved whole."""
    rows = hit_funnel(sample("l1-reuse"))
    found, moved, loaded = total(rows, "found_tokens", "moved_tokens", "loaded_tokens")
    assert (found, moved, loaded) == (11_520, 5_888, 5_632)
    assert found > moved > loaded


@pytest.mark.parametrize("name", RECORDED)
def test_gpu_hit_loaded_and_computed_are_the_prompt(sample: Callable[[str], Run], name: str) -> None:
    names = ("gpu_hit_tokens", "loaded_tokens", "computed_tokens", "prompt_tokens")
    rows = hit_funnel(sample(name)).drop_nulls(names)
    assert (rows.height > 0) == (name in (*NATIVE, "native-offload"))
    assert (rows.select(pl.sum_horizontal(names[:3]) == pl.col("prompt_tokens")).to_series()).all()


@pytest.mark.parametrize("name", NATIVE)
def test_nothing_is_unexplained(sample: Callable[[str], Run], name: str) -> None:
    rows = hit_funnel(sample(name))
    assert rows["lost_unexplained"].to_list() == [0] * rows.height


@pytest.mark.parametrize("name", NATIVE)
def test_the_tokens_are_those_that_the_client_was_told(sample: Callable[[str], Run], name: str) -> None:
    """usage.cached_tokens = the GPU's and the cache's, of requests whose loads went well."""
    told = sample(name).connection().sql(TOKENS).pl()
    ids = (
        sample(name)
        .connection()
        .sql("SELECT alias AS client_id, request_id FROM alias WHERE kind = 'client'")
    )
    rows = hit_funnel(sample(name)).join(ids.pl(), on="request_id").join(told, on="client_id")
    assert rows.height == told.height
    assert (rows["gpu_hit_tokens"] + rows["loaded_tokens"]).equals(rows["reported_cached_tokens"])
    assert rows["computed_tokens"].equals(rows["computed_tokens_right"])


def test_a_gpu_hit_that_covers_the_find_is_shadowed(sample: Callable[[str], Run]) -> None:
    run = sample("l1-reuse")
    covered = pl.col("found_tokens") > 0, pl.col("found_tokens") <= pl.col("gpu_hit_tokens")
    rows = hit_funnel(run).filter(*covered)
    assert rows.height == 4
    assert rows["lost_shadowed"].equals(rows["found_tokens"])
    verdicts = fallbacks(run, requests=tuple(rows["request_id"]))
    assert set(verdicts["verdict"]) == {"shadowed"}


@pytest.mark.parametrize("name", NATIVE)
def test_the_ratios_add_up_to_the_funnel(sample: Callable[[str], Run], name: str) -> None:
    rows, funnel = hit_ratio(sample(name)), hit_funnel(sample(name))
    gpu, rest = rows.filter(tier="gpu"), rows.filter(pl.col("tier") != "gpu")
    assert total(gpu, "loaded_tokens", "found_tokens") == 2 * total(funnel, "gpu_hit_tokens")
    assert total(rest, "found_tokens") == total(funnel, "found_tokens")
    assert rest["loaded_tokens"].null_count() == 0
    assert total(rest, "loaded_tokens") == total(funnel, "loaded_tokens")


def test_after_the_kill_the_ledger_has_the_timeout_and_the_blocks_held(sample: Callable[[str], Run]) -> None:
    rows = ledger(sample("server-killed"))
    (timeout,) = rows.filter(verdict="recompute_after_timeout").to_dicts()
    assert 4.9 * SECOND < timeout["lookup_wait_ns"] < 5.2 * SECOND < 2 * timeout["ttft_ns"]
    assert timeout["external_hit_tokens"] == 0
    assert rows.filter(pl.col("block_hold_ns") > 5 * SECOND)["verdict"].to_list() == [
        "recompute_after_timeout", "recompute_degraded", "recompute_degraded",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_the_ledger_agrees_with_the_window_and_the_transfers(sample: Callable[[str], Run], name: str) -> None:
    run = sample(name)
    rows = ledger(run)
    windows = exposure(run, window="ttft").group_by("request_id").agg(window_ns=pl.col("exposed_ns").sum())
    both = rows.join(windows, on="request_id")
    assert both.height == rows.height
    assert both["ttft_ns"].equals(both["window_ns"])
    loads = "SELECT sum(bytes)::BIGINT FROM transfer WHERE op = 'load' AND tier_to = 'gpu'"
    moved = run.sql(loads).item()  # what came from L2 went to the host first, and counts once
    assert total(rows, "loaded_bytes") == [moved]
    assert rows["lock_wait_ns"].null_count() == rows.height
    below_the_host = [0] * rows.height if name == "l2-loads" else [None] * rows.height
    assert rows["network_ns"].to_list() == below_the_host


def test_the_client_measures_about_the_same_time_between_tokens(sample: Callable[[str], Run]) -> None:
    """Twelve tokens: the steps' median times eleven is about what passes between first and last token."""
    run = sample("l1-reuse")
    life = run.sql("SELECT request_id, end_ns - first_token_ns AS decode_ns FROM request")
    rows = ledger(run).join(life, on="request_id")
    ratio = rows.select((pl.col("itl_p50_ns") * 11 / pl.col("decode_ns")).median()).item()
    assert 0.6 < ratio < 1.1


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_not_observed_is_null(sample: Callable[[str], Run], name: str) -> None:
    """Without a router nothing was visible; without steps nothing is known to have been loaded."""
    run = sample(name)
    rows = hit_funnel(run)
    ops = set(run.sql("SELECT DISTINCT op FROM span WHERE op IS NOT NULL")["op"])
    if "route" not in ops:
        assert rows["visible_tokens"].null_count() == rows.height
    if "step" not in ops:
        unknown = ("loaded_tokens", "computed_tokens", "recomputed_tokens", *LOST[3:9])
        assert all(rows[column].null_count() == rows.height for column in unknown)
