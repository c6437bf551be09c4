"""What holds of every recording of vLLM with LMCache."""

from __future__ import annotations

import json

import kvtrace
import polars as pl
from tests.golden.truths.recording import KV_BYTES_PER_TOKEN, TOKENS, Recording


def every_client_id_names_exactly_one_request(recording: Recording) -> None:
    named = recording.rows(
        "SELECT alias, count(DISTINCT request_id) FROM alias WHERE kind = 'client' GROUP BY alias"
    )
    assert dict(named) == dict.fromkeys(recording.responses(), 1)
    assert recording.rows("SELECT count(*) FROM request") == [(len(recording.responses()),)]


def every_request_has_the_tokens_of_its_clients_usage(recording: Recording) -> None:
    requests = recording.by_client()
    for name, response in recording.responses().items():
        usage = response["usage"]
        assert requests[name]["prompt_tokens"] == usage["prompt_tokens"], name
        assert requests[name]["output_tokens"] == usage["completion_tokens"], name


def every_request_lies_within_its_clients_wait(recording: Recording) -> None:
    """Client |------------------------|, request  |----------|: both read the same wall clock."""
    requests = recording.by_client()
    for name, response in recording.responses().items():
        seen = requests[name]
        assert response["started_ns"] <= seen["start_ns"] < seen["first_token_ns"] <= seen["end_ns"], name
        assert seen["first_token_ns"] <= response["first_token_ns"], name
        assert seen["end_ns"] <= response["ended_ns"] + 50_000_000, name


def every_row_of_the_cache_belongs_to_a_request_of_the_engine(recording: Recording) -> None:
    strangers = recording.rows(
        "SELECT DISTINCT request_id FROM span WHERE observer = 'server' "
        "AND request_id NOT IN (SELECT request_id FROM request)"
    )
    assert strangers == []


def lookups_and_loads_lie_within_the_life_of_their_request(recording: Recording) -> None:
    outside = recording.rows(
        "SELECT s.op, s.request_id FROM span s JOIN request r USING (request_id) "
        "WHERE s.op IN ('lookup', 'load') "
        "AND (s.start_ns < r.start_ns OR s.end_ns > r.first_token_ns + 5000000)"
    )
    assert outside == []


def every_transfer_moves_whole_chunks_of_the_models_bytes(recording: Recording) -> None:
    """Where the cache's own span is lost, the scheduler's view stands: tokens, no chunks, no bytes."""
    moved = recording.rows(
        "SELECT DISTINCT tokens % 256, bytes / tokens FROM transfer WHERE tokens > 0 AND observer = 'server'"
    )
    assert moved == [(0, KV_BYTES_PER_TOKEN)]


def found_by_tier_adds_up(recording: Recording) -> None:
    wrong = recording.rows(
        "SELECT request_id FROM lookup WHERE found_by_tier IS NOT NULL "
        "AND list_sum(map_values(found_by_tier)) IS DISTINCT FROM found_tokens"
    )
    assert wrong == []


def the_hash_log_asks_for_what_the_lookups_ask_for(recording: Recording) -> None:
    """And so does the server itself, where it was recorded from inside: each tells all of it."""
    asked: dict[str, set[int]] = {}
    for name, _, tokens in recording.rows(
        "SELECT request_id, source, count(*) * 256 FROM request_key GROUP BY ALL"
    ):
        asked.setdefault(name, set()).add(tokens)
    spans: dict[str, set[int]] = {}
    for name, _, tokens in recording.rows(
        "SELECT request_id, process, sum(requested_tokens)::BIGINT FROM span "
        "WHERE op = 'lookup' AND observer = 'server' AND requested_tokens > 0 GROUP BY ALL"
    ):
        spans.setdefault(name, set()).add(tokens)
    assert all(len(each) == 1 for each in asked.values())
    assert set(spans) <= set(asked)
    assert {name: asked[name] for name in spans} == spans


def the_queue_is_watched_without_a_gap_until_the_first_step(recording: Recording) -> None:
    """Queue |unknown|lookup|remote_kv|capacity| step: each begins where the one before ends."""
    rows = recording.rows(
        "SELECT request_id, min(start_ns), max(end_ns), sum(end_ns - start_ns)::BIGINT, "
        "any_value(observer), any_value(evidence) FROM queue GROUP BY request_id"
    )
    steps = dict(recording.rows("SELECT request_id, min(start_ns) FROM member GROUP BY request_id"))
    assert {name for name, *_ in rows} == set(steps)
    for name, began, ended, waited, observer, evidence in rows:
        assert (observer, evidence) == ("scheduler", "shim")
        assert (waited, ended) == (ended - began, steps[name]), name


def tokens_from_the_gpu_loaded_and_computed_are_the_prompt(recording: Recording) -> None:
    """Of one admission each: nothing was preempted and no load failed."""
    rows = recording.rows(TOKENS)
    assert len(rows) == len(recording.responses())
    for _, prompt, gpu_hit, selected, reported, loaded, computed in rows:
        assert gpu_hit + loaded + computed == prompt
        assert (selected, reported) == (loaded, gpu_hit + loaded)


def every_answer_is_a_row_of_its_request(recording: Recording) -> None:
    """What the client kept: its own id, the answer's, and the tokens that the engine says were cached."""
    rows = recording.rows(
        "SELECT alias, s.reported_cached_tokens, r.reported_cached_tokens FROM span s "
        "JOIN request r USING (request_id) JOIN alias USING (request_id) "
        "WHERE s.op = 'request' AND s.observer = 'client' AND alias.kind = 'client'"
    )
    assert len(rows) == len(recording.responses())
    for name, told, known in rows:
        details = recording.responses()[name]["usage"]["prompt_tokens_details"] or {}
        assert told == details.get("cached_tokens"), name
        assert told == known, name


def what_was_published_is_what_the_engine_recorded(recording: Recording) -> None:
    """The stream of KV events repeats the tap inside the engine: no event of it is left over."""
    told = (recording.raw / "kv-events.jsonl").read_text().splitlines()
    events = [event for line in map(json.loads, told) for event in line["events"]]
    keys = sum(len(event.get("block_hashes") or [None]) for event in events)
    known = recording.rows("SELECT count(*), count(engine) FROM block WHERE tier = 'gpu'")
    assert known == [(keys, keys)]
    repeated = recording.rows("SELECT sum(count)::BIGINT FROM loss WHERE source = 'kv-events.jsonl'")
    assert repeated == [(keys,)]


def the_storage_trace_knows_the_keys_of_the_lookups(recording: Recording) -> None:
    """Whatever was locked for a request had been asked for by it, under the same key."""
    strangers = recording.rows(
        "SELECT DISTINCT b.request_id, b.key FROM block b "
        "WHERE b.event = 'locked' AND b.request_id IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM request_key k WHERE k.request_id = b.request_id AND k.key = b.key "
        "AND k.key_space = b.key_space)"
    )
    assert strangers == []
    assert recording.rows("SELECT count(*) > 0 FROM block WHERE event = 'locked'") == [(True,)]


def the_funnel_closes(recording: Recording) -> None:
    """Of every request what the GPU had, what was loaded and what was computed are the prompt."""
    frame = kvtrace.analyze(recording.run, "hit_funnel")
    known = frame.drop_nulls(["gpu_hit_tokens", "loaded_tokens", "computed_tokens"])
    assert known.height == len(recording.responses())
    parts = known.select(pl.sum_horizontal("gpu_hit_tokens", "loaded_tokens", "computed_tokens")).to_series()
    assert parts.to_list() == known["prompt_tokens"].to_list()
    covered = known.filter(pl.col("found_tokens") > 0, pl.col("gpu_hit_tokens") >= pl.col("found_tokens"))
    assert (covered["lost_shadowed"] == covered["found_tokens"]).all()


ALWAYS = (
    every_client_id_names_exactly_one_request,
    every_request_has_the_tokens_of_its_clients_usage,
    every_request_lies_within_its_clients_wait,
    every_row_of_the_cache_belongs_to_a_request_of_the_engine,
    lookups_and_loads_lie_within_the_life_of_their_request,
    every_transfer_moves_whole_chunks_of_the_models_bytes,
    found_by_tier_adds_up,
    the_hash_log_asks_for_what_the_lookups_ask_for,
    the_queue_is_watched_without_a_gap_until_the_first_step,
    tokens_from_the_gpu_loaded_and_computed_are_the_prompt,
    every_answer_is_a_row_of_its_request,
    what_was_published_is_what_the_engine_recorded,
    the_storage_trace_knows_the_keys_of_the_lookups,
    the_funnel_closes,
)
"""Hold of every recording."""
