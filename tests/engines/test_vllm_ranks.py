"""Two ranks of one engine: each copies its share of a block, and both copies are one transfer.

rank 0   |== half of the heads ==|            start = the first one's, end = the last one's,
rank 1      |== the other half ==|            tokens = the most of any rank, bytes = both together

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.engines import native
from tests.engines.model import KV_BYTES_PER_TOKEN
from tests.golden.truths import SECOND, TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.native import Played

pytestmark = pytest.mark.engine

RANKS = [0, 1]
LAST = "SELECT max(end_ns) AS last_ns FROM request"
PARTS = """
    SELECT transfer_id, op, list(rank ORDER BY rank) AS ranks, list(DISTINCT process) AS processes,
        min(start_ns) AS start_ns, max(end_ns) AS end_ns, min(submit_ns) AS submit_ns,
        max(tokens) AS tokens, sum(bytes)::BIGINT AS bytes,
        any_value(attributes['job'])::BIGINT AS job
    FROM span WHERE op IN ('load', 'store') AND observer = 'worker' GROUP BY ALL
"""


@pytest.fixture(scope="module")
def ranks(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """VLLM's native offloading with two workers."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    return native.play(native.RANKS, native.native_offload, python=python, out=out)


@pytest.fixture(scope="module")
def cached(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """LMCache with two workers, client and server recorded in one run."""
    folder = tmp_path_factory.mktemp("cached")
    played = native.play(native.RANKS_CACHED, native.native_offload, python=python, out=folder / "run")
    assert played.cache is not None
    return open_run(import_files([played.run, played.cache], folder / "both").run)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def test_two_ranks_copies_are_one_transfer(ranks: Played) -> None:
    run = open_run(ranks.run)
    parts = {row["transfer_id"]: row for row in _rows(run, PARTS)}
    transfers = _rows(run, "FROM transfer")
    assert {row["op"] for row in transfers} == {"load", "store"}
    assert {row["transfer_id"] for row in transfers} == set(parts)
    assert len(transfers) == len(parts)
    for row in transfers:
        part = parts[row["transfer_id"]]
        assert (part["ranks"], len(part["processes"]), row["ranks"]) == (RANKS, 2, 2)
        for name in ("start_ns", "end_ns", "tokens", "bytes"):
            assert row[name] == part[name], name


def test_bytes_of_both_ranks_are_those_of_the_tokens(ranks: Played) -> None:
    for row in _rows(open_run(ranks.run), "FROM transfer"):
        assert row["bytes"] == row["tokens"] * KV_BYTES_PER_TOKEN


def test_a_transfer_lasts_from_the_first_ranks_copy_to_the_last_ones(ranks: Played) -> None:
    """As both ranks measured it themselves; recorded is what a worker knew when it made its result."""
    told = pl.DataFrame(ranks.ranks_times).group_by("job").agg(
        pl.len(), pl.min("start_ns"), pl.max("end_ns"), pl.min("submit_ns"), pl.sum("bytes")
    )  # fmt: skip
    own = {row["job"]: row for row in told.to_dicts()}
    parts = _rows(open_run(ranks.run), PARTS)
    assert {row["job"] for row in parts} == set(own)
    for row in parts:
        measured = own[row["job"]]
        assert measured["len"] == 2
        assert row["bytes"] == measured["bytes"]
        assert row["submit_ns"] <= measured["start_ns"] < measured["end_ns"] <= row["end_ns"]
        assert row["end_ns"] - row["start_ns"] >= native.DELAY_S * SECOND


def test_each_rank_restored_its_share_of_what_the_loads_are_needed_for(ranks: Played) -> None:
    run = open_run(ranks.run)
    loads = len(_rows(run, "FROM transfer WHERE op = 'load'"))
    only = ("retained_state_covered", "restored_completely")
    covered, complete = kvtrace.analyze(run, "lock_contract", only=only).to_dicts()
    assert (covered["status"], complete["status"]) == ("pass", "pass")
    assert covered["detail"] == f"{loads} loads covered (kv {loads * len(RANKS)})"
    sums = "SELECT sum(bytes)::BIGINT AS bytes FROM"
    (restored,) = _rows(run, f"{sums} span WHERE name = 'restored_state'")
    assert [restored] == _rows(run, f"{sums} transfer WHERE op = 'load'")


def test_exposure_is_exact_and_the_work_of_both_ranks_is_told_apart(ranks: Played) -> None:
    run = open_run(ranks.run)
    partition = kvtrace.analyze(run, "exposure", window="ttft")
    assert set(partition["bound"]) == {"exact"}
    windows = {row["request_id"]: row["ttft_ns"] for row in _rows(run, "FROM request")}
    sums = dict(partition.group_by("request_id").agg(pl.sum("exposed_ns")).iter_rows())
    assert sums == windows
    loads = {row["request_id"]: row for row in _rows(run, "FROM transfer WHERE op = 'load'")}
    copying = partition.filter(pl.col("class") == "load")
    assert set(copying["request_id"]) == set(loads)
    for row in copying.to_dicts():
        load = loads[row["request_id"]]
        assert native.DELAY_S * SECOND <= row["total_ns"] <= load["end_ns"] - load["start_ns"]
        assert row["work_ns"] >= 2 * native.DELAY_S * SECOND


def test_tokens_and_counters_are_those_of_one_engine(ranks: Played) -> None:
    run = open_run(ranks.run)
    rows = _rows(run, TOKENS)
    assert len(rows) == len(ranks.client.responses)
    for row in rows:
        assert row["gpu_hit_tokens"] + row["loaded_tokens"] + row["computed_tokens"] == row["prompt_tokens"]
    loaded = ranks.counters["vllm:prompt_tokens_by_source_total:external_kv_transfer"]
    assert sum(row["loaded_tokens"] for row in rows) == loaded > 0
    ratios = kvtrace.analyze(run, "hit_ratio").filter(pl.col("tier") == "host")
    assert ratios["loaded_tokens"].sum() == loaded
    assert _rows(run, "SELECT DISTINCT engine FROM step")[0]["engine"] is not None
    assert len(_rows(run, "SELECT DISTINCT engine FROM span WHERE engine IS NOT NULL")) == 1


def test_nothing_was_lost_but_the_last_word_of_a_worker_whose_copies_were_over(ranks: Played) -> None:
    """With several ranks workers are processes, and one of them may go without its closing mark."""
    run = open_run(ranks.run)
    last_ns = _rows(run, "SELECT max(end_ns) AS last_ns FROM transfer")[0]["last_ns"]
    workers = {row["process"] for row in _rows(run, "FROM process WHERE role = 'worker'")}
    assert len(workers) == 2
    for row in _rows(run, "FROM loss WHERE cause <> 'duplicate'"):
        assert row["cause"] == "unclean_end"
        assert row["from_ns"] >= last_ns
        assert row["process"] in workers or row["from_ns"] >= _rows(run, LAST)[0]["last_ns"]


def test_lmcaches_transfers_of_two_ranks_are_one_each(cached: Run) -> None:
    """Its client tells each rank, its server numbers the ranks apart."""
    transfers = _rows(cached, "FROM transfer WHERE coalesce(outcome, 'ok') = 'ok'")
    given_up = _rows(cached, "FROM lookup WHERE outcome IN ('timeout', 'skipped')")
    # messages between processes may stall for a minute with two workers on two cores, without kvtrace as well
    wanted = {"store"} if given_up else {"load", "store"}
    assert {row["op"] for row in transfers} >= wanted
    for row in transfers:
        assert row["ranks"] == 2, row
        if row["bytes"] is not None:
            assert row["bytes"] == row["tokens"] * KV_BYTES_PER_TOKEN
    stored = [row for row in transfers if row["op"] == "store"]
    assert len({(row["request_id"], row["start_ns"]) for row in stored}) == len(stored)
    assert set(kvtrace.analyze(cached, "exposure", window="ttft")["bound"]) == {"exact"}
