"""Two runs side by side: what storing later saves, what it costs, and which runs may not be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.eager_vs_lazy import COLUMNS, MEASURES, eager_vs_lazy
from kvtrace.analyses.eager_vs_lazy.comparable import require_comparable
from kvtrace.analyses.eager_vs_lazy.measures import NO_DROPS, Found, measured
from kvtrace.analyses.store_lag import store_lag
from kvtrace.cli import main
from kvtrace.errors import NotComparableError, UsageError
from tests.rows import write_run
from tests.unit.analyses import test_beyond_64_bits as beyond
from tests.unit.analyses import test_impossible_times
from tests.unit.analyses.exposure.drawing import request, scheduler, step, store, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
SHIM = {"evidence": "shim", "tokens": 16}
YEAR = 1_790_000_000 * 10**9
SPACE = "lmcache:unknown:m"
EAGER_SETTINGS = {"kv_connector": "LMCacheMPConnector", "block_size": "128"}
LAZY_SETTINGS = EAGER_SETTINGS | {"kv_connector.lmcache.mp.lazy_offload": "true"}


def named(name: str, *rows: Row) -> list[Row]:
    return [row | {"request_id": name} for row in rows]


def drawn(
    folder: Path, name: str, *spans: Row, settings: dict[str, str] | None = None, **tables: list[Row]
) -> Run:
    rows = [{"span_id": number, **row} for number, row in enumerate(spans, 1)]
    meta = None if settings is None else {"engines": {"e0": {"product": "vllm", **settings}}}
    return write_run(folder / name, meta, span=rows, **tables)


def eager(folder: Path, **more: Any) -> Run:
    """Two requests, each stored before it ends; the second waits 5 in a step for its own store.

    r0 |0----------100|  store [60, 80)
    r1 |100--------200|  store [150, 170), wait [150, 155) in its step      last record 300
    """
    return drawn(
        folder, "eager", request(0, 100), step(0, 100), store(60, 80, **SHIM),
        *named("r1", request(100, 200), store(150, 170, **SHIM), wait(150, 155, "store")),
        step(100, 200, "r1"), scheduler("health", 0, 300, reason="healthy", request_id=None), **more,
    )  # fmt: skip


def lazy(folder: Path, **more: Any) -> Run:
    """The same requests: r0 stored 60 after its end, r1 stale."""
    stale = scheduler("drop", 250, 250, reason="stale", queued_ns=180, **SHIM) | {"request_id": "r1"}
    return drawn(
        folder, "lazy", request(0, 100), step(0, 100), store(140, 160, queued_ns=90, **SHIM), stale,
        *named("r1", request(100, 200)), wait(140, 145, "store", "r0"), step(100, 200, "r1"),
        scheduler("health", 0, 300, reason="healthy", request_id=None),
        scheduler("hold", 140, 160, reason="store", blocks=3), **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder = tmp_path_factory.mktemp("both")
    return rows(eager(folder), lazy(folder))


def one(run: Run, measure: str, horizon_ns: int = 300) -> Found:
    return measured(run, horizon_ns)[measure]


def rows(first: Run, second: Run) -> dict[str, Row]:
    return {row["measure"]: row for row in eager_vs_lazy(first, second).to_dicts()}


def values(found: dict[str, Row], measure: str) -> tuple[float | None, ...]:
    return tuple(found[measure][side] for side in ("eager", "lazy", "difference"))


def test_every_measure_by_hand(both: dict[str, Row]) -> None:
    found = both
    assert list(found) == list(MEASURES)
    assert values(found, "writes_per_request") == (1.0, 0.5, -0.5)
    assert values(found, "writes_per_s") == pytest.approx((2 / 300e-9, 1 / 300e-9, -1 / 300e-9))
    assert values(found, "tokens_per_write") == (16.0, 16.0, 0.0)
    assert values(found, "wait_store_ns") == (2.5, 2.5, 0.0)
    assert values(found, "reuse_delay_p50_ns") == (-30.0, 60.0, 90.0)
    assert values(found, "reuse_delay_p90_ns") == (-20.0, 60.0, 80.0)
    assert values(found, "stale_ratio") == (0.0, 0.5, 0.5)
    assert values(found, "never_stored_ratio") == (0.0, 0.5, 0.5)
    assert [found["stale_ratio"][side] for side in ("eager_rows", "lazy_rows")] == [2, 2]
    assert [found["reuse_delay_p50_ns"][side] for side in ("eager_rows", "lazy_rows")] == [2, 1]


def test_time_reusable_is_of_the_time_after_the_finish(both: dict[str, Row]) -> None:
    """Windows [100, 300) and [200, 300). Lazily r0 is reusable from 160 on, r1 never: 140 of 300."""
    share = values(both, "reusable_time_ratio")
    assert share == pytest.approx((1.0, 140 / 300, 140 / 300 - 1))


def test_time_reusable_ends_when_the_last_copy_of_the_first_key_is_gone(tmp_path: Path) -> None:
    """r0's first key leaves host at 200 and disk at 250: 150 of its 200, and all 100 of r1."""

    def event(word: str, at: int, tier: str) -> Row:
        return {"event": word, "time_ns": at, "tier": tier, "key": "a", "key_space": SPACE, "engine": "e0"}

    block = [
        event("stored", 80, "host"), event("stored", 90, "disk"),
        event("removed", 200, "host"), event("removed", 250, "disk"),
    ]  # fmt: skip
    asked = [
        {"request_id": "r0", "position": n, "key": key, "key_space": SPACE} for n, key in enumerate("ab")
    ]
    found = one(eager(tmp_path, block=block, request_key=asked), "reusable_time_ratio")
    assert found.value == pytest.approx(250 / 300)
    assert "removals were recorded for 1 of 2 requests" in (found.remark or "")


def test_windows_are_no_longer_than_the_shorter_run_lasted(tmp_path: Path) -> None:
    """The lazy run goes on to 10000, the eager one lasted 300: r0's window ends at 100 + 300."""
    late = scheduler("health", 300, 10_000, reason="healthy", request_id=None)
    long = drawn(tmp_path, "long", request(0, 100), store(190, 200, **SHIM), late)
    assert values(rows(eager(tmp_path), long), "reusable_time_ratio")[1] == pytest.approx(200 / 300)


def test_blocks_held_for_stores_are_counted(both: dict[str, Row]) -> None:
    found = both["block_seconds_per_request"]
    assert (found["eager"], found["lazy"], found["difference"]) == (None, pytest.approx(3 * 20e-9 / 2), None)
    assert (
        "eager: no hold of GPU blocks was recorded (kvtrace run; some connectors keep none)" in found["basis"]
    )


def test_interference_is_the_others_waits_for_stores(tmp_path: Path) -> None:
    """R1 is not served while the engine waits 10 for a store of r0, and 7 for a load: only the 10 count."""
    busy = drawn(
        tmp_path, "busy", request(0, 100), step(0, 50), store(60, 80, **SHIM), wait(60, 70, "store", "r0"),
        wait(80, 87, "load", "r0"), *named("r1", request(0, 200)), step(100, 200, "r1"),
    )  # fmt: skip
    assert one(busy, "interference_ns") == Found(5.0, 2)


def test_what_nobody_recorded_is_null_and_says_which_instrument_is_missing(tmp_path: Path) -> None:
    bare = drawn(tmp_path, "bare", request(), scheduler("lookup", 0, 5, found_tokens=0))
    found = measured(bare, 300)
    assert {measure for measure, each in found.items() if each.value is not None} == set()
    assert all(each.remark for each in found.values())
    assert "kvtrace run" in (found["wait_store_ns"].remark or "")


def test_a_run_that_only_exported_spans_cannot_say_that_nothing_was_stale(tmp_path: Path) -> None:
    native = drawn(tmp_path, "native", request(), store(60, 90, tokens=16, evidence="native"))
    assert one(native, "stale_ratio") == NO_DROPS


def test_what_was_there_already_is_no_stale_store(tmp_path: Path) -> None:
    there = scheduler("drop", 60, 60, reason="duplicate", **SHIM)
    run = drawn(tmp_path, "there", request(), there, store(60, 90, **SHIM))
    assert one(run, "stale_ratio") == Found(0.0, 1)


def unended(folder: Path, complete: int) -> Run:
    """Ten requests of 5, each stored 1 after its end; of the last ones the store is open at 1000."""
    spans = []
    for number in range(10):
        at, name = 10 * number, f"r{number}"
        end, outcome = (at + 8, "ok") if number < complete else (None, "open")
        stored = store(at + 6, end, queued_ns=at, **SHIM, outcome=outcome)
        spans += [*named(name, request(at, at + 5), stored), step(at, at + 5, name)]
    return drawn(folder, "lazy", *spans, scheduler("health", 0, 1000, reason="healthy", request_id=None))


def test_stores_that_are_open_at_the_end_are_later_than_all(tmp_path: Path) -> None:
    """One of ten is complete, 3 after its finish: neither the median nor the 90th percentile is known."""
    found = measured(unended(tmp_path, 1), 10**6)
    for measure in ("reuse_delay_p50_ns", "reuse_delay_p90_ns"):
        assert (found[measure].value, found[measure].rows) == (None, 10)
        assert "stores of 9 of 10 requests were open at the end" in (found[measure].remark or "")
    assert found["never_stored_ratio"] == Found(0.0, 1, "9 more whose stores were open at the end")
    windows = sum(1000 - 10 * number - 5 for number in range(10))
    share = found["reusable_time_ratio"]
    assert (share.value, share.rows) == (pytest.approx((1000 - 8) / windows), 10)


def test_a_quantile_below_the_open_stores_is_known(tmp_path: Path) -> None:
    """Nine of ten are complete: the 90th percentile of ten is the ninth."""
    found = measured(unended(tmp_path, 9), 10**6)
    assert [found[f"reuse_delay_p{percent}_ns"].value for percent in (50, 90)] == [3.0, 3.0]


def test_where_every_store_is_open_no_fate_is_known_and_the_count_is_said(tmp_path: Path) -> None:
    found = measured(unended(tmp_path, 0), 10**6)
    assert found["never_stored_ratio"].value is None
    assert "10 more whose stores were open at the end" in (found["never_stored_ratio"].remark or "")
    assert found["reusable_time_ratio"].value == 0.0


def test_a_request_with_one_store_of_two_open_is_not_reusable_yet(tmp_path: Path) -> None:
    run = drawn(tmp_path, "half", request(0, 100), store(60, 80, **SHIM), store(90, None, **SHIM),
                scheduler("health", 0, 300, reason="healthy", request_id=None))  # fmt: skip
    found = measured(run, 300)
    assert found["reuse_delay_p50_ns"].value is None
    assert found["never_stored_ratio"] == Found(0.0, 1)
    assert found["reusable_time_ratio"].value == 0.0


def stored_once(folder: Path, *more: Row) -> Run:
    """One request of a second in 2026, and its store."""
    own = [request(YEAR, YEAR + 10**9), store(YEAR + 6 * 10**8, YEAR + 8 * 10**8, **SHIM)]
    return drawn(folder, "dated", *own, *more)


@pytest.mark.parametrize("more", [
    request(5, 5 + 10**9, observer="worker", evidence="native"),
    request(5, 5 + 10**9, request_id="r1"),
    request(YEAR - 10**9, YEAR + 9 * 10**9, request_id="simulated", evidence="predicted"),
    request(5, 10**9, request_id="simulated", evidence="predicted"),
])  # fmt: skip
def test_a_run_lasts_from_its_first_dated_arrival_that_somebody_saw(tmp_path: Path, more: Row) -> None:
    """Another clock's view, another clock's request or a simulated one: still one write a second."""
    assert one(stored_once(tmp_path, more), "writes_per_s").value == 1.0


def test_requests_of_a_clock_without_a_date_last_as_long_as_its_rows(tmp_path: Path) -> None:
    late = scheduler("health", YEAR, YEAR + 10**9, reason="healthy", request_id=None)
    run = drawn(tmp_path, "dateless", request(5, 10**9 + 5), store(6, 8, **SHIM), late)
    assert one(run, "writes_per_s").value == 1.0


def test_a_simulated_request_is_none_of_those_that_store(tmp_path: Path) -> None:
    simulated = request(YEAR, YEAR + 10**9, request_id="simulated", evidence="predicted")
    found = measured(stored_once(tmp_path, simulated), 10**9)
    assert (found["writes_per_request"].value, found["never_stored_ratio"].value) == (1.0, 0.0)


@pytest.mark.parametrize(("first", "second"), [
    ({"rank": 0, "observer": "worker", "process": "e0/w0"},
     {"rank": 1, "observer": "worker", "process": "e0/w1"}),
    ({"observer": "client", "process": "c"}, {"observer": "server", "process": "s"}),
])  # fmt: skip
def test_a_drop_that_ranks_or_client_and_server_tell_is_one(tmp_path: Path, first: Row, second: Row) -> None:
    """16 tokens stale of 32, not 32 of 48."""
    stale = scheduler("drop", 250, 250, reason="stale", queued_ns=180, transfer_id="t1", **SHIM)
    drops = [{**stale, "request_id": "r1", **each} for each in (first, second)]
    run = drawn(tmp_path, "told", request(0, 100), store(60, 80, **SHIM), *drops,
                *named("r1", request(100, 200)))  # fmt: skip
    assert one(run, "stale_ratio").value == 0.5
    skipped = store_lag(run).filter(request_id="r1")
    assert skipped["skipped_tokens"].to_list() == [16]


def test_lost_records_of_stores_make_a_lower_bound(tmp_path: Path) -> None:
    lost = eager(tmp_path, loss=[{"source": "s", "cause": "dropped", "op": "store", "count": 3}])
    assert (
        "eager: records of stores were lost: at least" in rows(lost, lazy(tmp_path))["writes_per_s"]["basis"]
    )


def test_runs_without_a_request_have_no_row(tmp_path: Path) -> None:
    found = eager_vs_lazy(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert found.height == 0
    assert found.schema == COLUMNS


def test_a_run_beside_itself_does_not_differ(tmp_path: Path) -> None:
    run = lazy(tmp_path)
    found = rows(run, run)
    assert all(row["eager"] == row["lazy"] and row["difference"] in (None, 0.0) for row in found.values())
    assert found["held_wait_ns"]["difference"] == 0.0


def identity(field: str, value: str, source: str = "VllmConfig") -> Row:
    return {"identity_id": "e0", "side": "writer", "field": field, "value": value, "source": source}


@pytest.mark.parametrize(
    ("field", "mine", "theirs"),
    [("model", "a", "b"), ("block_size", "128", "16"), ("engine_version", "0.32.0", "0.33.0")],
)
def test_another_model_block_size_or_version_is_refused_by_its_name(
    tmp_path: Path, field: str, mine: str, theirs: str
) -> None:
    first = eager(tmp_path, identity=[identity(field, mine)])
    other = lazy(tmp_path, identity=[identity(field, theirs)])
    with pytest.raises(NotComparableError, match=rf"differ in {field} \({mine} in EAGER, {theirs} in LAZY\)"):
        eager_vs_lazy(first, other)


def test_another_engine_is_refused(tmp_path: Path) -> None:
    first = eager(tmp_path, process=[{"process": "e0/api", "engine": "e0", "product": "vllm"}])
    other = lazy(tmp_path, process=[{"process": "e0/api", "engine": "e0", "product": "sglang"}])
    with pytest.raises(NotComparableError, match=r"differ in engine \(vllm in EAGER, sglang in LAZY\)"):
        eager_vs_lazy(first, other)


def test_the_command_ends_with_3_where_runs_are_not_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = eager(tmp_path, identity=[identity("model", "a")])
    other = lazy(tmp_path, identity=[identity("model", "b")])
    assert main(["analyze", "eager_vs_lazy", str(first.path), str(other.path)]) == 3
    assert "differ in model" in capsys.readouterr().err
    assert main(["analyze", "eager_vs_lazy", str(first.path)]) == 2
    assert "LAZY requires an argument" in capsys.readouterr().err


def test_what_may_differ_or_is_told_by_another_source_is_not_compared(tmp_path: Path) -> None:
    first = eager(tmp_path, identity=[identity("hash_seed", "1"), identity("engine_version", "0.32.0")])
    other = lazy(
        tmp_path, identity=[identity("hash_seed", "2"), identity("engine_version", "0.5.5", "MPServerConfig")]
    )
    require_comparable(first, other)


def test_runs_the_wrong_way_round_are_refused(tmp_path: Path) -> None:
    first, other = eager(tmp_path, settings=EAGER_SETTINGS), lazy(tmp_path, settings=LAZY_SETTINGS)
    require_comparable(first, other)
    with pytest.raises(UsageError, match="stores lazily; give the runs the other way round"):
        eager_vs_lazy(other, first)
    with pytest.raises(UsageError, match="stores lazily; both do"):
        eager_vs_lazy(other, other)
    with pytest.raises(UsageError, match="given as LAZY, stores eagerly"):
        eager_vs_lazy(first, first)


def test_a_queue_of_parts_shows_a_lazy_run_whose_settings_nobody_told(tmp_path: Path) -> None:
    queued = {"name": "lmcache_lazy_queue", "request_id": "r0", "start_ns": 10, "end_ns": 20, "tokens": 16}
    run = drawn(tmp_path, "queued", request(), queued, store(60, 90, **SHIM))
    with pytest.raises(UsageError, match="stores lazily"):
        eager_vs_lazy(run, lazy(tmp_path))


@pytest.mark.parametrize("rows_of", ["times", "numbers"])
def test_numbers_beyond_64_bits_are_no_error(tmp_path: Path, rows_of: str) -> None:
    if rows_of == "times":
        run = drawn(tmp_path, "long", *test_impossible_times.ROWS)
    else:
        told = (beyond.ASKED, *beyond.STORES, beyond.LOOKUP, *beyond.STEPS)
        run = drawn(tmp_path, "huge", *told, request_key=beyond.KEYS, block=beyond.STORED)
    assert eager_vs_lazy(run, run).height == len(MEASURES)
