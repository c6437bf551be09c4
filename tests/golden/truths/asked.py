"""What the questions must answer of every recording of vLLM with LMCache, by other rows, files and clocks."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
from tests.golden.truths.recording import CHUNK_TOKENS, KV_BYTES_PER_TOKEN, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_LOADS = ("load", "load_wait", "lookup", "lock", "wait_load", "wait_lookup", "wait_lock")
"""Classes of the partition that a load is waited for in (questions.md, break_even)."""


def rows_of(recording: Recording, question: str, **options: Any) -> list[dict[str, Any]]:
    """The answer to a question, row by row."""
    return kvtrace.analyze(recording.run, question, **options).to_dicts()


def the_critical_path_is_the_partition_in_order(recording: Recording) -> None:
    """Without a gap from arrival to finish, and class by class as long as in `exposure`."""
    path = kvtrace.analyze(recording.run, "critical_path")
    lives = recording.run.sql("SELECT request_id, start_ns AS s, end_ns AS e FROM request")
    ends = path.group_by("request_id").agg(
        s=pl.col("start_ns").min(), e=pl.col("end_ns").max(),
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
    )  # fmt: skip
    both = ends.join(lives, on=["request_id", "s", "e"])
    assert both.height == lives.height == path["request_id"].n_unique()
    assert both["ns"].equals(both["e"] - both["s"], check_names=False)
    whole = kvtrace.analyze(recording.run, "exposure", window="e2e")
    names = ["request_id", "class", "hop"]
    told = whole.group_by(names).agg(ns=pl.col("exposed_ns").sum()).filter(pl.col("ns") > 0)
    walked = path.group_by(names).agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    assert walked.sort(names).equals(told.sort(names))


def the_ledger_says_what_the_funnel_and_fallbacks_say(recording: Recording) -> None:
    ledger = {row["request_id"]: row for row in rows_of(recording, "ledger")}
    funnel = {row["request_id"]: row for row in rows_of(recording, "hit_funnel")}
    fates = {row["request_id"]: row["verdict"] for row in rows_of(recording, "fallbacks")}
    assert ledger.keys() == funnel.keys()
    for name, row in ledger.items():
        assert row["gpu_hit_tokens"] == funnel[name]["gpu_hit_tokens"], name
        assert row["external_hit_tokens"] == funnel[name]["loaded_tokens"], name
        assert row["recomputed_tokens"] == funnel[name]["recomputed_tokens"], name
        assert row["verdict"] == fates.get(name), name


def residency_counts_whole_chunks_of_the_models_bytes(recording: Recording) -> None:
    """What lies in LMCache's tiers at any time: keys of 256 tokens each, from none upwards."""
    rows = [
        row for row in rows_of(recording, "residency") if (row["component"] or "").startswith("lmcache.l")
    ]
    assert rows
    for row in rows:
        assert row["keys"] >= 0
        assert row["bytes"] in (None, row["keys"] * CHUNK_TOKENS * KV_BYTES_PER_TOKEN), row


def the_share_held_is_what_the_holds_hold(recording: Recording) -> None:
    """The area under `held_share` are the block-seconds of `hold`."""
    shares, holds = rows_of(recording, "held_share"), rows_of(recording, "hold")
    for row in shares:
        assert 0 <= row["share"] <= 1
        assert abs(row["share"] - row["blocks"] / row["pool_blocks"]) < 1e-12
    area = sum(row["blocks"] * (after["time_ns"] - row["time_ns"]) for row, after in pairwise(shares))
    last = sum(row["blocks"] * (row["end_ns"] - row["start_ns"]) for row in holds)
    assert abs(area - last) <= 1_000 * max(1, len(holds))


def the_paths_carry_the_bytes_of_the_copies(recording: Recording) -> None:
    """Of every pair of tiers `bandwidth` has the bytes of the transfers that say their bytes and times."""
    paths = (
        kvtrace.analyze(recording.run, "bandwidth")
        .group_by("tier_from", "tier_to")
        .agg(pl.col("bytes").sum())
    )
    moved = recording.rows(
        "SELECT tier_from, tier_to, sum(bytes)::BIGINT FROM transfer WHERE bytes > 0 AND end_ns > start_ns "
        "AND op IN ('load', 'store') AND coalesce(outcome, 'ok') IN ('ok', 'partial') GROUP BY ALL"
    )
    assert sorted(paths.rows()) == sorted(moved)


def a_load_is_worth_what_its_partition_says(recording: Recording) -> None:
    """Its cost is the exposed time of its classes until the first token; the hit's verdict is its own."""
    rows = rows_of(recording, "break_even")
    whole = kvtrace.analyze(recording.run, "exposure", window="ttft").filter(pl.col("class").is_in(OF_LOADS))
    exposed = dict(whole.group_by("request_id").agg(pl.col("exposed_ns").sum()).iter_rows())
    hits = {row["request_id"]: row for row in rows_of(recording, "verdict")}
    words = {"worth": "yes", "not_worth": "no", "unclear": "unclear"}
    for row in rows:
        name = row["request_id"]
        assert row["cost_ns"] == exposed[name], name
        assert hits[name]["worth_it"] == words[row["verdict"]], name
        assert row["useful_bytes"] is None or row["useful_bytes"] <= row["moved_bytes"], name


def of_one_engine_every_read_is_of_its_own_state(recording: Recording) -> None:
    """One engine, one server: nothing that was read is of another kind, and what was loaded was there."""
    found = {row["invariant"]: row["status"] for row in rows_of(recording, "compatibility")}
    assert "violated" not in found.values(), found
    loaded = {row["request_id"] for row in rows_of(recording, "fallbacks") if row["verdict"] == "loaded"}
    hits = {row["request_id"]: row for row in rows_of(recording, "verdict")}
    assert loaded <= hits.keys()
    assert {hits[name]["still_there"] for name in loaded} <= {"yes"}
    assert {row["same_state"] for row in hits.values()} <= {"yes", "unchecked"}


def chunks_are_whole_and_prompts_are_not(recording: Recording) -> None:
    """What a first admission moved and did not use, where every request is judged.

    A killed server's last record is lost, and with it how many bytes its last load had: null then.
    """
    untold = "SELECT 1 FROM transfer WHERE op = 'load' AND tier_to = 'gpu' AND bytes IS NULL"
    weight = None if recording.rows(untold) else KV_BYTES_PER_TOKEN
    host = [row for row in rows_of(recording, "waste") if row["component"] == "lmcache.l1"]
    funnel = [row for row in rows_of(recording, "hit_funnel") if row["moved_tokens"]]
    for row in host:
        if row["judged_requests"] == len(funnel) and not row["recomputed_tokens"] and not row["twice_tokens"]:
            spare = sum(each["moved_tokens"] - each["loaded_tokens"] for each in funnel)
            assert row["rounding_tokens"] == spare
            assert row["rounding_bytes"] == (spare * weight if weight else None)


def explain_speaks_of_waste_where_more_was_moved_than_used(recording: Recording) -> None:
    """Of each request that loaded, and of no other; with the tokens of its own funnel."""
    funnel = {row["request_id"]: row for row in rows_of(recording, "hit_funnel") if row["moved_tokens"]}
    if not funnel:
        return
    said = kvtrace.analyze(recording.run, "explain", requests=tuple(funnel)).filter(position=5)
    assert said.height == len(funnel)
    for name, sentence in said.select("request_id", "sentence").iter_rows():
        spare = funnel[name]["moved_tokens"] - funnel[name]["loaded_tokens"]
        told = f"Of the {funnel[name]['moved_tokens']:,} tokens moved for it {spare:,} ("
        assert (told in sentence) == ("moved for it" in sentence) == (spare > 0), sentence


def a_larger_cache_serves_what_a_list_of_its_keys_serves(recording: Recording) -> None:
    """All keys are in it once a request, and one without a limit serves whatever was asked for before."""
    rows = rows_of(recording, "miss_ratio_curve", points=1_000)
    asked = recording.rows(
        "SELECT request_id, key, tokens FROM request_key WHERE key IS NOT NULL "
        "AND key_space = (SELECT min(key_space) FROM request_key WHERE key_space LIKE 'lmcache%') "
        "ORDER BY min(time_ns) OVER (PARTITION BY request_id), request_id, position"
    )
    mine = [row for row in rows if row["key_space"].startswith("lmcache")]
    assert bool(mine) == bool(asked)
    for row in mine:
        assert row["asked_keys"] == len(asked)
        if row["capacity_keys"] >= len({key for _, key, _ in asked}):
            assert row["hit_tokens"] == sum(_prefix_hits(asked))


def whoever_the_client_saw_in_time_was_served_in_time(recording: Recording) -> None:
    """The engine's time lies within the client's: what is within a target for it is within for both."""
    waits = sorted(each["ended_ns"] - each["started_ns"] for each in recording.responses().values())
    for target in (waits[len(waits) // 2], waits[-1] + 50_000_000):
        (row,) = rows_of(recording, "slo", ttft_ns=None, itl_p99_ns=None, e2e_ns=target)
        assert row["requests"] + row["censored"] == len(waits)
        assert row["attained"] >= sum(wait <= target - 50_000_000 for wait in waits)
    assert (row["attained"], row["censored"]) == (len(waits), 0)


def _prefix_hits(asked: list[tuple[str, str, int]]) -> Iterator[int]:
    """Tokens of each request's keys that others asked for before, from the first key on without a gap."""
    by_request: OrderedDict[str, list[tuple[str, int]]] = OrderedDict()
    for request, key, tokens in asked:
        by_request.setdefault(request, []).append((key, tokens))
    seen: set[str] = set()
    for keys in by_request.values():
        for key, tokens in keys:
            if key not in seen:
                break
            yield tokens
        seen |= {key for key, _ in keys}


ASKED = (
    the_critical_path_is_the_partition_in_order,
    the_ledger_says_what_the_funnel_and_fallbacks_say,
    residency_counts_whole_chunks_of_the_models_bytes,
    the_share_held_is_what_the_holds_hold,
    the_paths_carry_the_bytes_of_the_copies,
    a_load_is_worth_what_its_partition_says,
    of_one_engine_every_read_is_of_its_own_state,
    chunks_are_whole_and_prompts_are_not,
    explain_speaks_of_waste_where_more_was_moved_than_used,
    a_larger_cache_serves_what_a_list_of_its_keys_serves,
    whoever_the_client_saw_in_time_was_served_in_time,
)
"""Hold of every recording of one engine and one cache server."""
