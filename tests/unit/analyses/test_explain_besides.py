"""What `explain` adds where there is something to say: targets, waste, broken contracts, other keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.compatibility import compatibility
from kvtrace.analyses.explain import explain
from kvtrace.analyses.lock_contract import broken, lock_contract
from kvtrace.analyses.slo import slo
from kvtrace.analyses.waste import parts, waste
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.break_even_rows import GIB, MS, copied, loading, others, world
from tests.unit.analyses.cache_rows import asked, event
from tests.unit.analyses.cache_rows import written as placed
from tests.unit.analyses.exposure.drawing import load, request, scheduler
from tests.unit.analyses.identity_rows import S

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
RETRIEVE: Row = {
    "op": "load", "name": "mp.retrieve", "request_id": "r0", "process": "l0", "observer": "server",
    "engine": "l0", "component": "lmcache.l1", "tier_from": "host", "tier_to": "gpu", "outcome": "failed",
    "span_id": 70, "start_ns": 14 * S, "end_ns": 16 * S,
}  # fmt: skip
NAMES = [{"request_id": "r0", "key_space": "lmcache:unknown:m", "key": "k", "position": 0, "tokens": 64}]


def told(run: Run, name: str = "r0", **targets: int | None) -> dict[int, tuple[str, str]]:
    """Position -> sentence and evidence."""
    rows = explain(run, requests=(name,), **targets).to_dicts()
    assert [row["position"] for row in rows] == [1, 2, 3, 4, 5, 6]
    return {row["position"]: (row["sentence"], row["evidence"]) for row in rows}


def first(path: Path, **more: Any) -> Run:
    """r0 |0 ------ 60 first token ------ 100| with five tokens."""
    step = {"request_id": "r0", "scheduled_tokens": 1, "output_tokens": 1}
    steps = [scheduler("step", at, at + 10, request_id=None, members=[step]) for at in (50, 60, 70, 80, 90)]
    return write_run(path / "run", span=[request(0, 100, 60, output_tokens=5, status="ok", **more), *steps])


def test_targets_are_missed_kept_or_not_known_with_their_numbers(tmp_path: Path) -> None:
    sentence, evidence = told(first(tmp_path), ttft_ns=59, itl_p99_ns=10, e2e_ns=100)[1]
    assert sentence.endswith(
        " Of its targets it missed 59 ns to its first token (60 ns); it kept 10 ns between its tokens at the "
        "99th percentile (10 ns) and 100 ns to its end (100 ns)."
    )
    assert evidence == "request r0; slo"
    aborted = write_run(tmp_path / "cut", span=[request(0, 50, status="aborted")])
    assert told(aborted, e2e_ns=60)[1][0].endswith(
        " Of its targets whether it kept the one to its end is not known."
    )


def test_a_target_is_kept_just_where_slo_counts_it(tmp_path: Path) -> None:
    rows = [request(0, 100 + 20 * n, 60 + 10 * n, request_id=f"r{n}", status="ok") for n in range(4)]
    run = write_run(tmp_path / "run", span=rows)
    said = explain(run, worst=4, ttft_ns=75).filter(position=1)["sentence"]
    kept = sum("it kept 75 ns to its first token" in sentence for sentence in said)
    assert slo(run, ttft_ns=75, itl_p99_ns=None)["attained"].to_list() == [kept] == [2]


@pytest.mark.parametrize("target", [-1, 2**63])
def test_a_target_that_is_no_time_is_refused(tmp_path: Path, target: int) -> None:
    with pytest.raises(UsageError, match="explain: no target may be below 0 ns or beyond 64 bits"):
        explain(first(tmp_path), ttft_ns=target)


def test_tokens_that_were_moved_in_vain_are_counted_with_their_bytes(tmp_path: Path) -> None:
    """1,100 tokens moved; 1,000 were wanted, and 900 of these used."""
    spans = loading(900, copied(1100, 1100 * 1024), selected_tokens=1000, prompt_tokens=1200, computed=300)
    run = world(tmp_path, *spans, *others())
    sentence, evidence = told(run)[5]
    assert sentence.endswith(
        " Of the 1,100 tokens moved for it 100 (100 KiB) were computed all the same and 100 (100 KiB) "
        "were there only because chunks are whole."
    )
    assert evidence.endswith("; waste")
    (row,), (whole,) = parts(run, ["r0"]).to_dicts(), waste(run).to_dicts()
    assert (row["recomputed"], row["rounding"]) == (whole["recomputed_tokens"], whole["rounding_tokens"])


def test_a_load_that_was_used_to_the_last_token_wasted_nothing_worth_a_word(tmp_path: Path) -> None:
    sentence, evidence = told(world(tmp_path, *loading(1000, copied(1000, GIB)), *others()))[5]
    assert "moved" not in sentence
    assert "waste" not in evidence


def expired(path: Path, *more: Row, **tables: list[Row]) -> Run:
    """A lock of 10 s at 1 s, a read at 15 s that comes too late."""
    blocks = [*placed(0.1), asked("locked", 1), event("locked", 1),
              event("failed", 15, reason="l1_retrieve:not_found"), event("removed", 14)]  # fmt: skip
    spans = [request(0, 20 * S, 17 * S, prompt_tokens=64, selected_tokens=64, gpu_hit_tokens=0), RETRIEVE,
             scheduler("lookup", S, S + 1, found_tokens=64, outcome="ok")]  # fmt: skip
    return write_run(path / "run", None, span=[*spans, *more], block=blocks, request_key=NAMES, **tables)


def test_protection_that_ran_out_is_said_once_with_its_numbers(tmp_path: Path) -> None:
    run = expired(tmp_path)
    assert "ttl_expired" in lock_contract(run, only=("read_within_ttl",))["detail"].item()
    sentence, evidence = told(run)[5]
    assert sentence.count("ran out") == 1
    assert (
        "The protection of what it had found ran out before it was read: 1 key gone when read, 14 s after "
        "the lock, whose time to live is 10 s."
    ) in sentence
    assert evidence.endswith("; verdict")


def test_protection_that_ran_out_is_said_where_there_was_no_offer_to_speak_of(tmp_path: Path) -> None:
    """A retrieve that failed, of a request whose engine records no lookup."""
    blocks = [*placed(0.1), asked("locked", 1), event("locked", 1),
              event("failed", 15, reason="l1_retrieve:not_found"), event("removed", 14)]  # fmt: skip
    spans = [request(0, 20 * S, 17 * S, prompt_tokens=64, status="ok"), RETRIEVE]
    run = write_run(tmp_path / "run", span=spans, block=blocks, request_key=NAMES)
    (found,) = lock_contract(run, only=("read_within_ttl",)).to_dicts()
    sentence, evidence = told(run)[5]
    assert sentence == (
        "No external cache is recorded for its engine, so there was no offer. A contract was broken: "
        f"{found['detail']} (read_within_ttl, a warning)."
    )
    assert evidence.endswith("; lock_contract")


def test_a_broken_contract_is_said_with_what_was_seen_and_how_often(tmp_path: Path) -> None:
    """Two loads that nobody ended for longer than a minute."""
    hung = [load(0, None, request_id="r0", transfer_id=f"t{n}", span_id=80 + n) for n in range(2)]
    later = request(200 * S, 201 * S, request_id="r1", process="w")
    run = write_run(
        tmp_path / "run", span=[request(0, None), *hung, later],
        process=[{"process": row["process"], "last_ns": 300 * S} for row in hung[:1]],
    )  # fmt: skip
    found = broken(run, ["r0"])
    assert found["invariant"].to_list() == ["completes_within_bound"] * 2
    sentence, evidence = told(run)[5]
    assert f" A contract was broken: {found['detail'][0]} (completes_within_bound, 2 times)." in sentence
    assert evidence.endswith("; lock_contract")


def test_what_the_contract_found_is_cached_and_read_for_each_request_alone(tmp_path: Path) -> None:
    run = expired(tmp_path)
    assert broken(run, ["r0"]).equals(broken(run, ["r0", "r9"]))
    assert broken(run, ["r9"]).is_empty()
    assert [path.name.partition("-")[0] for path in (run.path / ".derived").glob("broken-*")] == ["broken"]


OWN: Row = {"event": "stored", "tokens": 16, "token_digest": "d", "key_space": "vllm:sha256:m"}
DISK: Row = {"tier": "disk", "component": "vllm.offloading.fs"}
GPU: Row = {"tier": "gpu", "component": "vllm.gpu"}
SEEDS = [
    {"identity_id": name, "side": side, "field": "hash_seed", "value": seed}
    for name, seed in (("a", "1"), ("b", "2"))
    for side in ("writer", "reader")
]
ASKED = [{**NAMES[0], "key_space": "vllm:sha256:m", "key": "kb", "tokens": 16, "time_ns": 5}]


def missing(engine: str, name: str = "r0") -> list[Row]:
    """A request whose lookup found nothing."""
    counts = {"prompt_tokens": 20, "gpu_hit_tokens": 0, "selected_tokens": 0, "status": "ok"}
    own: Row = {"request_id": name, "engine": engine}
    return [request(0, 100, 60, **own, **counts),
            scheduler("lookup", 5, 6, found_tokens=0, outcome="miss", **own)]  # fmt: skip


def test_content_that_lay_there_under_another_key_is_told_with_what_differs(tmp_path: Path) -> None:
    """Engine a wrote it with one hash seed; r0 of b asked with another, and b computed it again."""
    blocks = [
        OWN | DISK | {"engine": "a", "key": "ka", "time_ns": 1},
        OWN | GPU | {"engine": "b", "key": "kb", "time_ns": 60},
        OWN | DISK | {"engine": "b", "key": "kb", "time_ns": 200 * MS},
    ]
    run = write_run(tmp_path / "run", span=missing("b"), block=blocks, identity=SEEDS, request_key=ASKED)
    sentences = told(run)
    assert sentences[1][0].endswith("(status ok)."), "without targets none is spoken of"
    assert sentences[5][0] == (
        "The cache gave it nothing: the same content lay there under another key (hash_seed: 1 written, 2 "
        "asked for)."
    )


def test_what_differs_for_another_request_is_not_told_of_this_one(tmp_path: Path) -> None:
    """r0 of b asked with seed 2 for what a wrote with seed 1; r1 is a's own and asks with seed 1."""
    other = OWN | {"token_digest": "d2"}
    blocks = [
        OWN | DISK | {"engine": "a", "key": "ka", "time_ns": 1},
        OWN | GPU | {"engine": "b", "key": "kb", "time_ns": 60},
        other | DISK | {"engine": "a", "key": "kd", "time_ns": 1},
        other | DISK | {"engine": "a", "key": "kc", "time_ns": 200 * MS},
    ]
    names = [*ASKED, {**ASKED[0], "request_id": "r1", "key": "kc"}]
    spans = [*missing("b"), *missing("a", "r1")]
    run = write_run(tmp_path / "run", span=spans, block=blocks, identity=SEEDS, request_key=names)
    found = compatibility(run).filter(invariant="written_can_be_asked", status="violated")
    assert set(found["request_id"]) == {"r0"}
    assert told(run, "r1")[5][0] == "The cache gave it nothing: the same content lay there under another key."
