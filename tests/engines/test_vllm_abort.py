"""Clients that leave while the state of their request is copied: what a real engine does, and what is seen.

    client        ask ─────────── hangs up
    request       [==============) aborted                  nothing is computed, or no more
    load          submit [== copy, 0.5 s, goes on ====)      cancelled: nobody may use it
    hold                          [==================)       its blocks, until the copy has ended

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.run import Run, open_run
from tests.engines import model, native
from tests.engines.configuration import GPU_BLOCKS
from tests.engines.leaving import OUTPUT_TOKENS

if TYPE_CHECKING:
    from tests.engines.native import Played

pytestmark = pytest.mark.engine
LEFT = (native.LEFT_LOADING, native.LEFT_STORING)


@pytest.fixture
def run(slow: Played) -> Run:
    return open_run(slow.run)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def _id(run: Run, name: str) -> str:
    ((found,),) = (
        run.connection()
        .sql(f"SELECT request_id FROM alias WHERE kind = 'client' AND alias = '{name}'")
        .fetchall()
    )
    return str(found)


def _of(run: Run, name: str, what: str) -> dict[str, Any]:
    """The one row of a request that is like this."""
    (row,) = _rows(run, f"SELECT * FROM span WHERE request_id = '{_id(run, name)}' AND {what}")
    return row


@pytest.mark.parametrize("observer", ["api", "scheduler"])
@pytest.mark.parametrize("name", LEFT)
def test_a_request_whose_client_left_is_aborted(run: Run, name: str, observer: str) -> None:
    row = _of(run, name, f"op = 'request' AND observer = '{observer}'")
    assert (row["status"], dict(row["attributes"])["finish_reason"]) == ("aborted", "abort")
    assert row["end_ns"] is not None


@pytest.mark.parametrize("name", LEFT)
def test_nothing_of_it_stays_open(run: Run, name: str) -> None:
    left = _rows(run, f"SELECT op FROM span WHERE request_id = '{_id(run, name)}' AND end_ns IS NULL")
    assert left == []


def test_its_load_is_cancelled_when_the_copy_that_nobody_stops_is_over(slow: Played, run: Run) -> None:
    """VLLM lets it end: the bytes are moved, and of no use."""
    copy = _of(run, native.LEFT_LOADING, "op = 'load' AND observer = 'worker'")
    load = _of(run, native.LEFT_LOADING, "op = 'load' AND observer = 'scheduler'")
    ended = _of(run, native.LEFT_LOADING, "op = 'request' AND observer = 'scheduler'")
    assert (load["outcome"], load["usable_ns"], load["attempt"]) == ("cancelled", None, 1)
    assert (copy["outcome"], copy["bytes"]) == ("ok", load["tokens"] * model.KV_BYTES_PER_TOKEN)
    assert load["transfer_id"] == copy["transfer_id"]
    (own,) = [each for each in slow.times if str(each["job"]) == dict(copy["attributes"])["job"]]
    assert load["submit_ns"] < ended["end_ns"] < own["end_ns"] <= own["reported_ns"] < load["end_ns"]
    (seen,) = _rows(run, f"SELECT * FROM transfer WHERE op = 'load' AND request_id = '{ended['request_id']}'")
    assert (seen["observer"], seen["outcome"], seen["usable_ns"]) == ("worker", "ok", None)


def test_its_blocks_are_held_from_the_abort_until_its_load_has_ended(run: Run) -> None:
    hold = _of(run, native.LEFT_LOADING, "op = 'hold'")
    load = _of(run, native.LEFT_LOADING, "op = 'load' AND observer = 'scheduler'")
    ended = _of(run, native.LEFT_LOADING, "op = 'request' AND observer = 'scheduler'")
    assert (hold["reason"], hold["blocks"]) == ("load", load["blocks"])
    assert hold["start_ns"] == ended["end_ns"]
    between = f"start_ns BETWEEN {load['end_ns']} AND {hold['end_ns']}"
    assert load["end_ns"] <= hold["end_ns"]
    assert _rows(run, f"SELECT op FROM span WHERE {between}") == [], "freed with the report that it has ended"
    assert hold["outcome"] == "ok"


def test_what_was_held_is_its_share_of_the_pool_as_long_as_it_was_held(run: Run) -> None:
    """Nothing else is held by native offloading: from the abort to the end of its load, and nothing after."""
    (own,) = kvtrace.analyze(run, "hold").to_dicts()
    assert own["request_id"] == _id(run, native.LEFT_LOADING)
    took = own["end_ns"] - own["start_ns"]
    assert own["block_seconds"] == pytest.approx(own["blocks"] * took / 1e9)
    began, ended = kvtrace.analyze(run, "held_share").to_dicts()
    assert (began["time_ns"], ended["time_ns"]) == (own["start_ns"], own["end_ns"])
    assert (began["blocks"], ended["blocks"]) == (own["blocks"], 0)
    assert began["pool_blocks"] == GPU_BLOCKS
    assert began["share"] == pytest.approx(own["blocks"] / GPU_BLOCKS)


def test_it_waited_for_its_load_until_it_left_and_computed_nothing(run: Run) -> None:
    queue = _rows(
        run, f"SELECT * FROM queue WHERE request_id = '{_id(run, native.LEFT_LOADING)}' ORDER BY start_ns"
    )
    ended = _of(run, native.LEFT_LOADING, "op = 'request' AND observer = 'scheduler'")
    assert (queue[-1]["reason"], queue[-1]["end_ns"]) == ("remote_kv", ended["end_ns"])
    steps = f"SELECT * FROM member WHERE request_id = '{ended['request_id']}' AND op = 'step'"
    assert _rows(run, steps) == []
    assert ended["output_tokens"] == 0


def test_a_store_goes_on_after_its_request_and_holds_nothing(slow: Played, run: Run) -> None:
    """Native offloading delays no free: who wants the blocks waits for the store (handle_preemptions)."""
    store = _of(run, native.LEFT_STORING, "op = 'store'")
    ended = _of(run, native.LEFT_STORING, "op = 'request' AND observer = 'scheduler'")
    (own,) = [each for each in slow.times if str(each["job"]) == dict(store["attributes"])["job"]]
    assert own["submit_ns"] < ended["end_ns"] < own["end_ns"]
    assert store["start_ns"] < ended["end_ns"] < store["end_ns"]
    assert store["outcome"] == "ok"
    held = f"SELECT * FROM hold WHERE request_id = '{ended['request_id']}'"
    assert _rows(run, held) == []


def test_what_it_computed_before_it_left_adds_up(run: Run) -> None:
    """Its steps follow each other token by token; the one that it did not live to see put nothing out."""
    ended = _of(run, native.LEFT_STORING, "op = 'request' AND observer = 'scheduler'")
    steps = _rows(
        run,
        f"SELECT * FROM member WHERE request_id = '{ended['request_id']}' AND op = 'step' ORDER BY start_ns",
    )
    had = 0
    for step in steps:
        assert step["computed_before"] == had
        had += step["scheduled_tokens"]
    assert had >= ended["prompt_tokens"]
    assert sum(step["output_tokens"] for step in steps) == ended["output_tokens"] < OUTPUT_TOKENS


@pytest.mark.parametrize("name", LEFT)
def test_its_verdict_is_cancelled_and_its_time_is_known_to_the_end(run: Run, name: str) -> None:
    own = pl.col("request_id") == _id(run, name)
    assert kvtrace.analyze(run, "fallbacks").filter(own)["verdict"].to_list() == ["cancelled"]
    partition = kvtrace.analyze(run, "exposure", window="e2e").filter(own)
    assert set(partition["bound"]) == {"exact"}
    (row,) = _rows(
        run, f"SELECT end_ns - start_ns AS took_ns FROM request WHERE request_id = '{_id(run, name)}'"
    )
    assert partition["exposed_ns"].sum() == row["took_ns"]
