"""Six sentences about a request: what they say, whom they mean, what they leave open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.explain import COLUMNS, explain
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses import killed
from tests.unit.analyses.exposure.drawing import load, request, scheduler, step, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

HOSTILE = "::set-env name=x::\x1b[31m\u202e<b>\n2. forged"


@pytest.fixture(scope="module")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("killed") / "run", killed.POOL, **killed.tables())


def said(run: Run, name: str) -> list[str]:
    return explain(run, requests=(name,))["sentence"].to_list()


def test_the_fourth_request_after_the_kill_waited_for_three_finished_ones(kill: Run) -> None:
    what, where, tokens, whom, offer, unseen = said(kill, "req-3")
    assert what == (
        "cmpl-r3-0-dd (client id req-3) arrived at 2025-11-29 07:06:46.510 UTC on vllm-7 with a prompt of "
        "1,500 tokens; its first token came after 13.7 s, and it ended after 14.0 s with 2 tokens put out "
        "(status ok)."
    )
    assert where == (
        "Of the 13.7 s to its first token, 13.5 s (98.2 %) went into “queue: no capacity” and 250 ms (1.8 %) "
        "went into “compute”; of the 14.0 s to its end, 13.5 s (96.4 %) went into “queue: no capacity” and "
        "500 ms (3.6 %) went into “compute”."
    )
    assert tokens == (
        "Of its 1,500 prompt tokens: in the GPU before 0, found by the cache not observed, selected to be "
        "loaded 0, loaded 0, computed 1,500."
    )
    assert whom.startswith(
        "For 13.5 s it waited for GPU blocks (needed 13, free 4) that 3 requests held for stores"
    )
    assert all(f"{name} 4.50 s" in whom for name in ("cmpl-r0-0-aa", "cmpl-r1-0-bb", "cmpl-r2-0-cc"))
    assert whom.endswith("its engine saw the cache as down for all its life.")
    assert offer == (
        "It was admitted while its engine saw the cache as down, so that the cache was not reached; "
        "everything was recomputed."
    )
    assert unseen.startswith("Not seen: what the cache had, waits of its engine, ")


def test_the_first_request_after_the_kill_waited_for_its_lookup(kill: Run) -> None:
    sentences = said(kill, "cmpl-r0-0-aa")
    assert sentences[1].startswith("Of the 5.25 s to its first token, 5 s (95.2 %) went into “lookup”")
    assert sentences[3] == "Its engine saw the cache as down for 500 ms of it."
    assert sentences[4] == (
        "Its lookup waited 5 s and timed out; everything was recomputed (also: recompute degraded)."
    )


def test_every_sentence_names_what_it_stands_on(kill: Run) -> None:
    rows = explain(kill, requests=("req-0",)).to_dicts()
    assert [row["position"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["evidence"] for row in rows] == [
        "request cmpl-r0-0-aa",
        "exposure, windows ttft and e2e",
        "lookup 0000000000000003",
        "blockers, window e2e; health",
        "fallbacks: recompute_after_timeout",
        "coverage, loss, exposure.bound",
    ]


def test_the_worst_waited_longest_for_their_first_token(kill: Run) -> None:
    worst = explain(kill, worst=2)["request_id"].unique(maintain_order=True).to_list()
    assert worst == ["cmpl-r3-0-dd", "cmpl-r0-0-aa"]


def test_one_that_never_got_a_first_token_counts_with_its_time_to_the_last_record(tmp_path: Path) -> None:
    rows = [request(0, 100, 60), request(10, None, request_id="r1"), request(5, 40, request_id="r2")]
    run = write_run(tmp_path / "run", span=rows)
    assert explain(run, worst=3)["request_id"].unique(maintain_order=True).to_list() == ["r1", "r0", "r2"]


def test_what_is_only_predicted_is_not_among_the_worst_of_those_that_happened(tmp_path: Path) -> None:
    """A workload trace beside a recording: its arrivals lie in 1970, and nobody served them."""
    now = 1_796_030_371_000_000_000
    traced = request(1_000_000_000, None, request_id="trace:1", evidence="predicted")
    real = [request(now, now + 9), request(now + 1, now + 3, request_id="r1")]
    both = write_run(tmp_path / "both", span=[traced, *real])
    assert explain(both, worst=3)["request_id"].unique(maintain_order=True).to_list() == ["r0", "r1"]
    alone = write_run(tmp_path / "alone", span=[traced])
    assert explain(alone)["request_id"].unique().to_list() == ["trace:1"]


def test_the_last_record_of_a_clock_without_a_date_is_one_of_that_clock(tmp_path: Path) -> None:
    now = 1_796_030_371_000_000_000
    open_in_1970 = request(1_000_000_000, None, request_id="old")
    run = write_run(tmp_path / "run", span=[open_in_1970, request(now, now + 9)])
    assert explain(run, worst=1)["request_id"].unique().to_list() == ["r0"]


def test_a_name_of_several_requests_is_refused_with_their_ids(kill: Run) -> None:
    with pytest.raises(UsageError, match="twice names 2 requests: cmpl-r0-0-aa and cmpl-r1-0-bb"):
        explain(kill, requests=("twice",))


def test_an_id_goes_before_another_request_s_alias(tmp_path: Path) -> None:
    aliases = [{"alias": "r1", "kind": "external", "request_id": "r0"}]
    spans = [request(0, 100), request(0, 90, request_id="r1")]
    run = write_run(tmp_path / "run", span=spans, alias=aliases)
    assert explain(run, requests=("r1",))["request_id"].unique().to_list() == ["r1"]


def test_an_unknown_name_is_refused_with_the_nearest_one(kill: Run) -> None:
    with pytest.raises(
        UsageError, match=r"no request of this run has the id or alias req-7. Did you mean req-"
    ):
        explain(kill, requests=("req-7",))


@pytest.mark.parametrize("worst", [0, -1, 101])
def test_a_number_of_requests_nobody_could_read_is_refused(kill: Run, worst: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 100"):
        explain(kill, worst=worst)


def test_an_upper_bound_says_so_with_every_number(tmp_path: Path) -> None:
    """No step is there: all of it may hold compute."""
    run = write_run(tmp_path / "run", span=[request(0, 100, 60), load(10, 50, outcome="ok")])
    sentences = said(run, "r0")
    assert "<= 40 ns (<= 66.7 %) went into “load”" in sentences[1]
    assert "upper bounds: nobody saw when it computed" in sentences[1]
    assert sentences[5].startswith("Not seen: when it computed, so that every <= is a bound and no measure, ")


def test_what_nobody_recorded_reads_not_observed(tmp_path: Path) -> None:
    known = {"engine": None, "observer": None, "process": None}
    run = write_run(tmp_path / "run", span=[request(0, None, **known)])
    what, where, tokens, whom, offer, unseen = said(run, "r0")
    assert (
        "on not observed with a prompt of unknown length; its first token was not observed, and it has no end"
        in what
    )
    assert where == "Where its time went cannot be told: its window is empty."
    assert tokens.startswith(
        "Of its prompt tokens: in the GPU before not observed, found by the cache not observed"
    )
    assert whom.startswith("Whom it waited for was not observed")
    assert offer == "No external cache is recorded for its engine, so there was no offer."
    assert "its first token, its end, its status" in unseen


def test_waits_of_others_are_said_with_their_names(tmp_path: Path) -> None:
    rows = [request(0, 100, 60), step(40, 60), wait(0, 30, name="r1"), wait(45, 50, "store", name="r2")]
    run = write_run(tmp_path / "run", span=rows)
    assert said(run, "r0")[3] == (
        "For 35 ns its engine was blocked on others: r1 (load) 30 ns and r2 (store) 5 ns."
    )


def test_where_waits_are_recorded_and_none_matters_nobody_held_it_up(tmp_path: Path) -> None:
    rows = [request(0, 100, 60), step(40, 60), wait(200, 230, name="r1")]
    assert said(write_run(tmp_path / "run", span=rows), "r0")[3] == (
        "No wait of an engine of another request is recorded to have held it up."
    )


@pytest.mark.parametrize(
    ("needed", "blocks", "words"),
    [
        (None, 9, "while it waited for capacity 1 request held GPU blocks for up to 40 ns; which part"),
        (
            20,
            9,
            "while it waited for capacity 1 request held GPU blocks (needed 20, free 0), too few to be why",
        ),
    ],
)
def test_holds_that_nobody_can_blame_are_told_apart(
    tmp_path: Path, needed: int | None, blocks: int, words: str
) -> None:
    lack: dict[str, Any] = {"reason": "capacity", "blocks": needed, "free_blocks": 0}
    rows = [request(0, 100, 60), scheduler("queue", 0, 40, **lack), step(40, 60)]
    rows.append(scheduler("hold", 0, 80, request_id="a", blocks=blocks, reason="store"))
    whom = said(write_run(tmp_path / "run", span=rows), "r0")[3]
    assert words.lower() in whom.lower()


def test_a_loss_of_its_time_is_said(tmp_path: Path) -> None:
    losses = [
        {"source": "s", "cause": "dropped", "op": "lookup", "count": 3, "from_ns": 50, "to_ns": 70},
        {"source": "s", "cause": "dropped", "op": "load", "count": 4, "from_ns": 500, "to_ns": 700},
        {"source": "s", "cause": "duplicate", "op": "load", "count": 9},
    ]
    run = write_run(tmp_path / "run", span=[request(0, 100, 60)], loss=losses)
    assert said(run, "r0")[5].endswith("Lost, and maybe of its time: 3 records (lookup).")


def test_a_hostile_id_cannot_forge_a_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[request(0, 100, 60, request_id=HOSTILE)])
    rows = explain(run, requests=(HOSTILE,)).to_dicts()
    assert {row["request_id"] for row in rows} == {HOSTILE}
    assert all(row["sentence"].isprintable() for row in rows)


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    frame = explain(write_run(tmp_path / "run"))
    assert (frame.height, frame.schema) == (0, COLUMNS)
