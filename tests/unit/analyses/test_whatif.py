"""What a change would take off the time to the first token: literal rows, one rule a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kvtrace.analyses.exposure.cache import prepare
from kvtrace.analyses.whatif import COLUMNS, whatif
from kvtrace.analyses.whatif.asked import BETTER, EAGER, FAILURES, FREED
from kvtrace.analyses.whatif.changes import Shorter, hop_of
from kvtrace.analyses.whatif.quantiles import interval, quantile, spread
from kvtrace.analyses.whatif.replay import HIGH, LOW, PREDICTED, replay
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.break_even_rows import MS, copied, loading, others, took, world
from tests.unit.analyses.exposure.drawing import drawn, load, request, scheduler, step, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
INF = float("inf")


def median(run: Run, **options: Any) -> Row:
    """The row of the median of the one change that was asked for."""
    (row,) = whatif(run, **options).filter(quantile=0.5).to_dicts()
    return row


def predicted(run: Run, path: str = "host:gpu", factor: float = 2.0, **options: Any) -> int:
    """The predicted median with a path so much faster."""
    found: int = median(run, path=path, bandwidth_factor=factor, **options)["predicted_ns"]
    return found


def saved(run: Run, change: Shorter | None = None, name: str = "r0") -> tuple[int, int, int]:
    """(low, predicted, high): what each replay takes off one request's ttft; host->gpu at twice its speed."""
    prepared = prepare(run)
    twice = Shorter(name="", assumption="", copies=True, hop=hop_of("host", "gpu"), factor=2.0)
    (found,) = replay(prepared, [change or twice])
    at = prepared.table["request_id"].to_list().index(name)
    return tuple(int(found.ns[mode, at]) for mode in (LOW, PREDICTED, HIGH))  # type: ignore[return-value]


def example(tmp_path: Path) -> Run:
    """The worked example of docs/exposure.md: its ttft is 100."""
    return drawn(
        tmp_path, request(0, 100, 100), scheduler("queue", 0, 20, reason="capacity"),
        scheduler("lookup", 5, 12), load(10, 50, "disk->host"), load(30, 62, submit_ns=9, usable_ns=68),
        step(70, 100), wait(70, 75),
    )  # fmt: skip


def test_a_copy_that_is_exposed_alone_gives_what_it_became_shorter(tmp_path: Path) -> None:
    """Load [10, 50) to [10, 30): 20 of 100."""
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), step(60, 100))
    assert median(run, path="host:gpu", bandwidth_factor=2)["ttft_ns"] == 100
    assert predicted(run) == 80
    assert predicted(run, factor=INF) == 60


def test_twice_the_bandwidth_is_what_a_path_alone_means(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), step(60, 100))
    row = median(run, path="host->gpu")
    assert (row["change"], row["predicted_ns"], row["evidence"]) == (
        "host->gpu: bandwidth x2", 80, "predicted",
    )  # fmt: skip


def test_a_latency_is_taken_off_every_copy_down_to_none(tmp_path: Path) -> None:
    """Copies of 20 and 5: 8 less is 12 and 0."""
    run = drawn(tmp_path, request(0, 120, 100), load(10, 30), load(40, 45), step(60, 100))
    assert median(run, path="host:gpu", latency_ns=-8)["predicted_ns"] == 100 - 8 - 5


def test_the_latency_that_was_measured_stays(tmp_path: Path) -> None:
    """Copies take 10 + bytes: twice the bandwidth halves what is beyond 10."""
    loads = [load(at, at + 10 + size, bytes=size, component="c", outcome="ok")
             for at, size in ((10, 10), (50, 20), (100, 40))]  # fmt: skip
    run = drawn(tmp_path, request(0, 300, 200), *loads, step(160, 200))
    row = median(run, path="host:gpu", bandwidth_factor=2)
    assert row["predicted_ns"] == 200 - 5 - 10 - 20
    assert "its latency (1e-05 ms, as measured) and 1/2 of what it took beyond" in row["assumption"]


def test_a_hop_that_another_hides_gives_nothing(tmp_path: Path) -> None:
    """disk->host [10, 50) under host->gpu [30, 62): its second half was hidden."""
    assert predicted(example(tmp_path), "disk:host") == 100


def test_a_shortened_hop_exposes_what_it_hid(tmp_path: Path) -> None:
    """host->gpu [30, 62) gone: disk->host still copies until 50, [50, 62) is left."""
    assert predicted(example(tmp_path), "host:gpu", INF) == 88


def test_time_that_the_queue_for_capacity_hides_gives_nothing(tmp_path: Path) -> None:
    assert median(example(tmp_path), lookup_ns=0)["predicted_ns"] == 100


def test_time_that_computing_hides_gives_nothing(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), step(5, 100))
    assert predicted(run, factor=INF) == 100


def test_a_lookup_that_takes_less_brings_all_forward(tmp_path: Path) -> None:
    """Lookup [10, 40) to 4 at most."""
    run = drawn(tmp_path, request(0, 120, 100), scheduler("lookup", 10, 40), step(60, 100))
    assert median(run, lookup_ns=4)["predicted_ns"] == 74
    assert median(run, lookup_ns=30)["predicted_ns"] == 100
    assert median(run, lookup_ns=31)["predicted_ns"] == 100


@pytest.mark.parametrize(("reason", "expected"), [
    ("remote_kv", 80), ("lookup", 80), ("unknown", 80), ("policy", 100), ("capacity", 100),
])  # fmt: skip
def test_a_queue_holds_the_time_only_for_a_reason_of_its_own(
    tmp_path: Path, reason: str, expected: int
) -> None:
    """An undifferentiated queue time contains the load: it does not hide it."""
    queue = scheduler("queue", 5, 60, reason=reason)
    run = drawn(tmp_path, request(0, 120, 100), queue, load(10, 50), step(60, 100))
    assert predicted(run) == expected


@pytest.mark.parametrize("name", ["r0", None])
def test_a_wait_for_the_load_in_a_step_goes_with_it(tmp_path: Path, name: str | None) -> None:
    """The step stands still in [50, 70); the load [40, 70) becomes [40, 55)."""
    run = drawn(tmp_path, request(0, 120, 100), load(40, 70), step(45, 100), wait(50, 70, "load", name))
    assert predicted(run) == 85


def test_a_wait_for_something_else_holds_the_time(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(40, 70), step(45, 100), wait(50, 70, "store"))
    assert predicted(run) == 100


#  load            |10 -------- 40)      halved [10, 25)
#  step of r1         |20 ------------- 60)
#  step of r0                              |60 --- 80)
def test_nobody_is_admitted_in_the_middle_of_a_step_of_others(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, request(0, 100, 80), load(10, 40, usable_ns=60), step(20, 60, "r1"), step(60, 80),
        request(0, 100, 60, request_id="r1"),
    )  # fmt: skip
    assert saved(run) == (15, 0, 0)


def test_before_a_step_of_others_it_is_admitted_at_once(tmp_path: Path) -> None:
    """The load ends at 10 instead of 40, and no step was under way by then."""
    run = drawn(
        tmp_path, request(0, 100, 80), load(10, 40), step(30, 38, "r1"), step(40, 80),
        request(0, 100, 38, request_id="r1"),
    )  # fmt: skip
    none = Shorter(name="", assumption="", copies=True, hop=hop_of("host", "gpu"), factor=INF)
    assert saved(run, none) == (30, 30, 30)


def test_a_lookup_around_the_load_waits_for_it_unless_nothing_but_its_name_counts(tmp_path: Path) -> None:
    asked = scheduler("lookup", 5, 60)
    run = drawn(tmp_path, request(0, 120, 100), asked, load(10, 50), step(60, 100))
    assert saved(run) == (20, 20, 0)


def test_a_lookup_that_ends_before_the_load_does_not_wait_for_it(tmp_path: Path) -> None:
    """Load [10, 50) halved; the lookup lasts until 45: only [45, 50) is left."""
    asked = scheduler("lookup", 5, 45)
    run = drawn(tmp_path, request(0, 120, 100), asked, load(10, 50), step(60, 100))
    assert saved(run) == (5, 5, 5)


def test_who_waited_behind_a_copy_of_another_moves_with_it_in_the_lowest_replay_alone(tmp_path: Path) -> None:
    """r1 copies [10, 30), r0 asked at 12 and copies [30, 50): both halved, 10 of its own and 10 behind."""
    run = drawn(
        tmp_path, request(0, 120, 100), request(0, 120, 100, request_id="r1"),
        load(10, 30, request_id="r1"), load(30, 50, submit_ns=12), step(60, 100, "r0", "r1"),
    )  # fmt: skip
    assert saved(run) == (20, 10, 10)


@pytest.mark.parametrize("held", [
    scheduler("queue", 12, 30, reason="capacity"), wait(12, 30, "load", "r1"),
])  # fmt: skip
def test_who_lacked_blocks_or_was_disturbed_meanwhile_may_move_with_it_too(tmp_path: Path, held: Row) -> None:
    """r1 copies [10, 30), halved to [10, 20)."""
    run = drawn(
        tmp_path, request(0, 120, 100), request(0, 120, 100, request_id="r1"),
        load(10, 30, request_id="r1"), held, step(60, 100, "r0", "r1"),
    )  # fmt: skip
    assert saved(run) == (10, 0, 0)


def test_a_load_whose_end_nobody_saw_stays(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, None), load(20, 40), step(60, 100))
    assert saved(run) == (0, 0, 0)


def test_a_load_after_the_first_token_is_in_no_ttft(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 300, 100), load(120, 180), step(60, 100), step(200, 220))
    row = median(run, path="host:gpu")
    assert (row["changed"], row["predicted_ns"]) == (1, 100)


def test_a_lookup_that_timed_out_answers_like_the_others(tmp_path: Path) -> None:
    """Others take 4; the load that failed takes no time."""
    lookups = [scheduler("lookup", at, at + 4, request_id="r1", outcome="ok") for at in (0, 10, 20)]
    gone = scheduler("lookup", 0, 50, outcome="timeout")
    failed = load(60, 70, outcome="failed")
    good = load(70, 80, outcome="ok")
    run = drawn(
        tmp_path, request(0, 120, 100), request(0, 120, 100, request_id="r1"), *lookups, gone, failed, good,
        step(80, 100, "r0", "r1"),
    )  # fmt: skip
    row = median(run, without="failures", requests=("r0",))
    assert (row["change"], row["predicted_ns"]) == (FAILURES, 100 - 46 - 10)


def test_freed_holds_give_the_queue_time_that_they_are_to_blame_for(tmp_path: Path) -> None:
    """Needs 11, free 1; r1's hold keeps 10 in [0, 40) of the queue [0, 50); a lookup of 5 was behind it."""
    lack = scheduler("queue", 0, 50, reason="capacity", blocks=11, free_blocks=1)
    held = scheduler("hold", 0, 40, request_id="r1", blocks=10, reason="store")
    behind = scheduler("lookup", 10, 15)
    run = drawn(tmp_path, request(0, 120, 100), lack, held, behind, step(60, 100))
    row = median(run, holds="freed")
    assert (row["change"], row["predicted_ns"], row["changed"]) == (FREED, 100 - 40 + 5, 1)


def test_a_load_that_costs_more_than_computing_is_not_made(tmp_path: Path) -> None:
    """4 GiB in 160 ms; computing 1000 tokens more takes 100 ms: 60 ms less, where the answer is sure."""
    run = world(tmp_path, *loading(1000, copied(1000, 2**32), token=200), *others())
    row = median(run, choose="better")
    assert (row["change"], row["ttft_ns"]) == (BETTER, 200 * MS)
    assert row["predicted_ns"] == pytest.approx(140 * MS, abs=MS)


def test_a_load_of_which_a_part_may_be_lost_is_left_out(tmp_path: Path) -> None:
    """What it cost has no upper end: what it would save is not known."""
    gone = [{"source": "s", "process": "e0/worker", "op": "load", "cause": "dropped", "count": 1}]
    run = world(tmp_path, *loading(1000, copied(1000, 2**32), token=200), *others(), loss=gone)
    row = median(run, choose="better")
    assert (row["changed"], row["predicted_ns"]) == (0, None)


def test_a_load_that_is_worth_it_stays(tmp_path: Path) -> None:
    run = world(tmp_path, *loading(9000, copied(9000, 2**32), token=200), *others())
    assert median(run, choose="better")["predicted_ns"] == 200 * MS


def test_eager_stores_turn_what_was_missed_by_lag_into_a_load(tmp_path: Path) -> None:
    """The store of 1000 tokens was decided at 0, begun at 900 ms and over at 910; the lookup came at 905."""
    keys = [{"request_id": name, "position": 0, "key": "k", "key_space": "a:b:c", "tokens": 1000}
            for name in ("late", "first")]  # fmt: skip
    stored = {
        **copied(1000, 2**20, 900, 10, "gpu->host"), "op": "store", "request_id": "first",
        "queued_ns": 0, "submit_ns": 900 * MS,
    }  # fmt: skip
    step_ms = took(1100)
    late = [
        request(905 * MS, 2000 * MS, round((910 + step_ms) * MS), request_id="late", gpu_hit_tokens=0),
        {**scheduler("lookup", 905 * MS, 906 * MS, request_id="late"), "found_tokens": 0, "outcome": "ok"},
        step(910 * MS, round((910 + step_ms) * MS), "late", tokens=1100),
    ]
    asked = request(-10 * MS + 10 * MS, 890 * MS, 50 * MS, request_id="first")
    base = loading(1000, copied(1000, 2**30, took_ms=20), token=200)
    run = world(tmp_path, *base, *others(), asked, stored, *late, request_key=keys)
    row = median(run, stores="eager", requests=("late",))
    assert (row["change"], row["changed"]) == (EAGER, 1)
    assert row["ttft_ns"] - row["predicted_ns"] == pytest.approx((100 - 20) * MS, abs=MS)


def test_only_exact_partitions_with_a_first_token_are_replayed(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, request(0, 120, 100), load(10, 50), step(60, 100),
        request(0, 500, None, request_id="r1"), request(0, 500, 400, request_id="r2"),
    )  # fmt: skip
    row = median(run, path="host:gpu")
    assert (row["requests"], row["left_out"], row["ttft_ns"]) == (1, 2, 100)
    assert row["left_out_why"].startswith("1 without a first token; 1 with bound upper")


def test_what_was_not_recorded_is_null_and_says_what_would_record_it(tmp_path: Path) -> None:
    rows = whatif(drawn(tmp_path, request(0, 120, 100), step(60, 100)))
    assert rows["predicted_ns"].null_count() == rows.height > 0
    assert rows["ttft_ns"].to_list() == [100] * rows.height
    assert all(text.startswith("Cannot be said: n") for text in rows["assumption"])
    assert "LMCache --enable-tracing would show it" in rows.filter(change=BETTER)["assumption"][0]


def test_a_path_that_nobody_used_cannot_be_said(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), step(60, 100))
    row = median(run, path="disk:host")
    assert (row["predicted_ns"], row["low_ns"]) == (None, None)
    assert "no load disk->host" in row["assumption"]


def test_fewer_than_six_requests_have_no_interval(tmp_path: Path) -> None:
    def some(many: int) -> Run:
        names = [f"r{number}" for number in range(many)]
        rows = [row for name in names for row in (request(0, 120, 100, request_id=name),
                                                  load(10, 50, request_id=name))]  # fmt: skip
        return drawn(tmp_path / str(many), *rows, step(60, 100, *names))

    assert median(some(5), path="host:gpu")["low_ns"] is None
    row = median(some(6), path="host:gpu")
    assert (row["low_ns"], row["predicted_ns"], row["high_ns"]) == (80, 80, 80)


def test_requests_that_are_named_are_the_ones_of_the_quantile(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, request(0, 120, 100), request(0, 300, 200, request_id="r1"), load(10, 50),
        step(60, 100), step(160, 200, "r1"),
    )  # fmt: skip
    row = median(run, path="host:gpu", requests=("r1",))
    assert (row["requests"], row["ttft_ns"], row["predicted_ns"], row["left_out"]) == (1, 200, 200, 0)


def test_no_change_named_is_the_default_set_and_every_named_one_is_by_itself(tmp_path: Path) -> None:
    run = example(tmp_path)
    assert whatif(run)["change"].unique(maintain_order=True).to_list() == [
        "disk->host: bandwidth x2", "host->gpu: bandwidth x2", "lookups: at most 0 ms", FAILURES, BETTER,
        FREED, EAGER,
    ]  # fmt: skip
    named = whatif(run, path="host:gpu", bandwidth_factor=3, latency_ns=-1_500_000, holds="freed")
    assert named["change"].unique(maintain_order=True).to_list() == [
        "host->gpu: bandwidth x3, -1.5 ms a copy", FREED,
    ]  # fmt: skip


@pytest.mark.parametrize(("options", "word"), [
    ({"bandwidth_factor": 2.0}, "name the path"),
    ({"path": "host"}, "is no path"),
    ({"path": "host:nowhere"}, "is no path"),
    ({"path": "host:gpu", "bandwidth_factor": 0.5}, "at least 1"),
    ({"path": "host:gpu", "bandwidth_factor": float("nan")}, "at least 1"),
    ({"path": "host:gpu", "latency_ns": 5}, "must not be above 0"),
    ({"lookup_ns": -1}, "at least 0"),
    ({"choose": "worse"}, "can only be better"),
    ({"confidence": 1.0}, "confidence"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, options: Row, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        whatif(example(tmp_path), **options)


def test_times_beyond_any_are_as_good_as_the_longest(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), step(60, 100))
    assert median(run, path="host:gpu", latency_ns=-(10**30))["predicted_ns"] == 60
    asked = drawn(tmp_path / "l", request(0, 120, 100), scheduler("lookup", 10, 40), step(60, 100))
    assert median(asked, lookup_ns=10**30)["predicted_ns"] == 100


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    found = whatif(write_run(tmp_path / "run"))
    assert (found.height, found.schema) == (0, COLUMNS)


def test_a_quantile_is_a_value_at_nearest_rank() -> None:
    values = np.array([10, 20, 30, 40])
    assert [quantile(values, share) for share in (0.25, 0.5, 0.51, 0.99)] == [10, 20, 30, 40]


def test_values_that_are_all_alike_have_no_spread_and_few_say_nothing() -> None:
    assert spread(np.full(6, 7), 0.5, 0.95) == 0
    assert spread(np.arange(5), 0.5, 0.95) is None


def test_a_quantile_beyond_which_no_value_lies_has_no_spread() -> None:
    assert spread(np.arange(99), 0.99, 0.95) is None
    assert spread(np.arange(100), 0.99, 0.95) is not None


def test_the_spread_is_that_of_two_drawn_repeats() -> None:
    """Against drawing: medians of 20,000 pairs of resamples."""
    values = np.sort(np.random.default_rng(1).lognormal(10, 1, 25).astype(np.int64))
    drawing = np.random.default_rng(2)
    repeats = np.sort(drawing.choice(values, (40_000, 25)), axis=1)[:, 12]
    apart = np.abs(repeats[:20_000] - repeats[20_000:])
    expected = np.quantile(apart, [0.93, 0.97])
    found = spread(values, 0.5, 0.95)
    assert found is not None
    assert expected[0] <= found <= expected[1]


def test_the_interval_is_the_outermost_replays_and_the_spread_of_the_predicted_ones() -> None:
    low, middle, high = np.full(6, 10), np.arange(100, 106), np.full(6, 300)
    width = spread(middle, 0.5, 0.95)
    assert width is not None
    assert width > 0
    assert interval(low, middle, high, 0.5, 0.95) == (10 - width if width < 10 else 0, 300 + width)
