"""Where the tokens of a prompt came from, and where they were lost: one part a test.

|--------------------------- found ---------------------------|
|---- gpu_hit ----|------------ selected ------------|declined|rounding
|    shadowed     |---- loaded ----|vanished|lock|failed|last token
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.fallbacks import fallbacks
from kvtrace.analyses.hit_funnel import COLUMNS, LOST, hit_funnel
from tests.rows import write_run
from tests.unit.analyses.serving import (
    PROMPT,
    Row,
    asked,
    block_size,
    key,
    loaded,
    lookup,
    prefill,
    route,
    scheduler,
    stored,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path


def funnel(folder: Path, *spans: Row, name: str = "r0", **tables: Any) -> dict[str, Any]:
    """The row of r0 under short names."""
    rows = hit_funnel(written(folder, *spans, **tables), requests=(name,))
    (row,) = rows.to_dicts()
    return {column.removesuffix("_tokens"): value for column, value in row.items() if column != "request_id"}


def lost(row: dict[str, Any]) -> dict[str, int]:
    """What was lost where; parts that are 0 or not known left out."""
    return {part.removeprefix("lost_"): row[part] for part in LOST if row[part]}


def test_a_run_without_rows_has_the_columns(tmp_path: Path) -> None:
    frame = hit_funnel(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_all_that_was_found_is_loaded(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), loaded(1280), prefill(1280, 256))
    names = ("prompt", "gpu_hit", "found", "selected", "loaded", "moved", "computed", "recomputed")
    assert [row[name] for name in names] == [PROMPT, 0, 1280, 1280, 1280, 1280, 256, 0]
    assert lost(row) == {}
    assert row["lost_unexplained"] == 0


def test_what_the_gpu_had_already_is_shadowed(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(1408, 0), lookup(1280), prefill(1408, 128))
    assert (row["loaded"], row["moved"], row["computed"]) == (0, 0, 128)
    assert lost(row) == {"shadowed": 1280}


def test_more_moves_than_is_used_when_the_gpu_has_a_part_of_a_chunk(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(640, 640), lookup(1280), loaded(768), prefill(1280, 256))
    assert (row["found"], row["moved"], row["loaded"]) == (1280, 768, 640)
    assert lost(row) == {"shadowed": 640}


@pytest.mark.parametrize("component", ["vllm.offloading", "vllm.simple_offload", "mooncake"])
def test_a_backend_asked_beyond_the_gpu_hit_has_no_shadow(tmp_path: Path, component: str) -> None:
    """It answers for what lies behind the GPU's 640 tokens; whether it has those as well nobody says."""
    beyond = lookup(
        1280, component=component, attributes={"asked_from_tokens": "640", "returned_tokens": "640"}
    )
    row = funnel(tmp_path, asked(640, 640), beyond, loaded(640), prefill(1280, 256))
    assert row["lost_shadowed"] is None
    assert (row["loaded"], row["lost_unexplained"]) == (640, 0)


def test_lmcaches_client_reports_the_whole_prefix(tmp_path: Path) -> None:
    whole = lookup(
        1280, component="lmcache", attributes={"asked_from_tokens": "1408", "returned_tokens": "0"}
    )
    row = funnel(tmp_path, asked(1408, 0), whole, prefill(1408, 128))
    assert row["lost_shadowed"] == 1280


def test_lmcache_inside_vllm_answers_beyond_the_gpu_hit(tmp_path: Path) -> None:
    row = {**asked(1408, 0), "span_id": 1, "run_id": "r"}
    inside = lookup(0, component="lmcache", attributes={"asked_from_tokens": "1408"}, span_id=2, run_id="r")
    meta = {"engines": {"e0": {"kv_connector": "LMCacheConnectorV1"}}}
    run = write_run(tmp_path / "run", meta, span=[row, inside])
    assert hit_funnel(run)["lost_shadowed"].to_list() == [None]


def test_what_fills_no_block_is_lost_to_rounding(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1152), lookup(1200), loaded(1152), prefill(1152, 384))
    assert lost(row) == {"rounding": 48}


def test_without_a_block_size_rounding_is_not_known(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1152), lookup(1200), prefill(1152, 384), identity=[])
    assert (row["lost_rounding"], row["lost_declined"], row["lost_unexplained"]) == (None, None, 48)


def test_whole_blocks_that_the_scheduler_would_not_have_are_declined(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 0), lookup(1200), prefill(0, PROMPT))
    assert lost(row) == {"rounding": 48, "declined": 1152}
    assert (row["loaded"], row["computed"], row["moved"]) == (0, PROMPT, 0)


def test_declined_needs_no_block_size_when_nothing_was_selected(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 0), lookup(1200), prefill(0, PROMPT), identity=[])
    assert (row["lost_declined"], row["lost_rounding"], row["lost_unexplained"]) == (1200, None, 0)


def test_the_last_token_of_a_whole_prompt_found_is_computed(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1535), lookup(PROMPT), loaded(PROMPT), prefill(1535, 1))
    assert lost(row) == {"last_token": 1}
    assert (row["loaded"], row["computed"], row["recomputed"]) == (1535, 1, 0)


def test_the_last_token_may_have_been_selected(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, PROMPT), lookup(PROMPT), loaded(PROMPT), prefill(1535, 1))
    assert (row["selected"], row["loaded"], row["recomputed"]) == (PROMPT, 1535, 0)
    assert lost(row) == {"last_token": 1}


@pytest.mark.parametrize(
    ("reason", "part"),
    [("not_found", "vanished"), ("expired", "lock"), ("io", "failed"), ("timeout", "failed"),
     (None, "failed"), ("unhealthy", "failed"), ("no_room", "failed")],
)  # fmt: skip
def test_a_load_that_failed_says_why(tmp_path: Path, reason: str | None, part: str) -> None:
    row = funnel(
        tmp_path, asked(0, 1280), lookup(1280), loaded(1280, "failed", reason=reason), prefill(0, PROMPT)
    )
    assert lost(row) == {part: 1280}
    assert (row["loaded"], row["moved"], row["recomputed"]) == (0, 0, 1280)


def test_a_load_without_room_may_have_been_skipped(tmp_path: Path) -> None:
    skipped = loaded(1280, "skipped", reason="no_room")
    assert lost(funnel(tmp_path, asked(0, 1280), lookup(1280), skipped, prefill(0, PROMPT))) == {
        "failed": 1280
    }


def test_a_lock_that_was_not_given_explains_what_is_missing(tmp_path: Path) -> None:
    refused = scheduler("lock_wait", 15, 18, outcome="timeout")
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), refused, loaded(512), prefill(512, 1024))
    assert lost(row) == {"lock": 768}


def test_two_loads_that_failed_share_what_is_missing_by_their_tokens(tmp_path: Path) -> None:
    row = funnel(
        tmp_path, asked(0, 1280), lookup(1280), loaded(512),
        loaded(256, "failed", reason="not_found"), loaded(512, "failed", reason="io"), prefill(512, 1024),
    )  # fmt: skip
    assert lost(row) == {"vanished": 256, "failed": 512}
    assert row["moved"] == 512


def test_a_partial_load_has_what_was_usable(tmp_path: Path) -> None:
    partial = loaded(1280, "partial", attributes={"usable_tokens": "384"})
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), partial, prefill(384, 1152))
    assert (row["moved"], row["loaded"], row["recomputed"]) == (384, 384, 896)
    assert lost(row) == {"failed": 896}


def test_less_loaded_than_selected_without_a_failed_load_is_unexplained(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), loaded(1280), prefill(1024, 512))
    assert lost(row) == {"unexplained": 256}
    assert row["recomputed"] == 256


def test_more_selected_than_found_is_unexplained(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1280), lookup(1024), loaded(1280), prefill(1280, 256))
    assert lost(row) == {"unexplained": -256}


def test_a_load_that_failed_before_the_admission_had_been_selected(tmp_path: Path) -> None:
    """The scheduler asks again, finds nothing, and admits the request with nothing selected."""
    failed = loaded(1280, "failed", observer="scheduler", process="e0/scheduler", reason="io")
    again = lookup(0, "miss", 30, attempt=2)
    row = funnel(tmp_path, asked(0, 0), lookup(1280, attempt=1), failed, again, prefill(0, PROMPT, 50))
    assert (row["found"], row["selected"], row["loaded"], row["recomputed"]) == (1280, 1280, 0, 1280)
    assert lost(row) == {"failed": 1280}


def test_a_lookup_that_timed_out_found_nothing_that_is_known(tmp_path: Path) -> None:
    """The server's answer came when nobody waited any more."""
    late = lookup(1280, "ok", 12, observer="server", process="cache")
    row = funnel(tmp_path, asked(0, 0), lookup(None, "timeout"), late, prefill(0, PROMPT))
    assert (row["found"], row["lost_shadowed"], row["lost_declined"]) == (None, None, None)
    assert (row["selected"], row["loaded"], row["lost_unexplained"]) == (0, 0, 0)


def test_an_inquiry_after_the_first_admission_is_none_of_it(tmp_path: Path) -> None:
    """Timed out, computed, preempted at 70, found in a second inquiry."""
    row = funnel(
        tmp_path, asked(0, 0), lookup(None, "timeout"), prefill(0, PROMPT),
        scheduler("queue", 70, 80, reason="preempted"), lookup(1280, "ok", 75, attempt=2),
        prefill(1280, 256, 85),
    )  # fmt: skip
    assert (row["found"], row["computed"], row["recomputed"]) == (None, PROMPT, 256)


def test_what_the_cache_itself_says_is_the_whole_prefix(tmp_path: Path) -> None:
    """Spans of the cache alone: the GPU hit is not known, so neither is what was loaded."""
    answer = lookup(1280, "ok", observer="server", process="cache")
    moved = loaded(768, observer="server", process="cache")
    row = funnel(tmp_path, asked(None, None), answer, moved)
    names = ("gpu_hit", "selected", "loaded", "computed", "recomputed", "lost_shadowed", "lost_unexplained")
    assert [row[name] for name in names] == [None] * 7
    assert (row["found"], row["moved"]) == (1280, 768)


def test_the_clients_usage_tells_the_gpu_hit_when_nothing_was_loaded(tmp_path: Path) -> None:
    answer = lookup(1280, "ok", observer="server", process="cache")
    other = loaded(768, request_id="r1", observer="server", process="cache")
    row = funnel(tmp_path, asked(None, None, reported_cached_tokens=1408), answer, other)
    assert (row["gpu_hit"], row["moved"]) == (1408, 0)
    assert lost(row) == {"shadowed": 1280}


def test_cached_tokens_of_the_usage_are_no_gpu_hit_when_a_load_came_as_well(tmp_path: Path) -> None:
    answer = lookup(1280, "ok", observer="server", process="cache")
    moved = loaded(768, observer="server", process="cache")
    assert funnel(tmp_path, asked(None, None, reported_cached_tokens=1280), answer, moved)["gpu_hit"] is None


def test_without_computed_before_the_rest_of_the_prompt_was_loaded(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(640, 640), lookup(1280), loaded(768), prefill(None, 256))
    assert (row["loaded"], row["computed"]) == (640, 256)


def test_with_selected_unknown_the_chain_goes_from_found_to_loaded(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(640, None), lookup(1408), loaded(768), prefill(1280, 256))
    assert (row["recomputed"], row["lost_unexplained"]) == (None, 128)
    assert [row[part] for part in LOST[3:9]] == [None] * 6


def test_selected_without_a_load_row_is_no_zero_moved(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), prefill(1280, 256))
    assert (row["moved"], row["loaded"]) == (None, 1280)


def test_a_load_that_has_not_ended_moved_an_unknown_number(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 1280, end_ns=None), lookup(1280), {**loaded(1280), "end_ns": None})
    assert (row["moved"], row["loaded"]) == (None, None)


def test_hops_that_end_in_host_memory_bring_nothing_to_the_gpu(tmp_path: Path) -> None:
    row = funnel(
        tmp_path, asked(0, 1280), lookup(1280), loaded(1280, path="disk->host", start=12), loaded(1280),
        prefill(1280, 256),
    )  # fmt: skip
    assert row["moved"] == 1280


def test_a_prompt_in_chunks_is_computed_in_several_steps(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 512), lookup(512), loaded(512), prefill(512, 512), prefill(1024, 512, 60))
    assert (row["loaded"], row["computed"], row["recomputed"]) == (512, 1024, 0)


def test_a_step_that_is_scheduled_again_is_computed_once_and_recomputed_once(tmp_path: Path) -> None:
    """A load inside the step failed: its 256 tokens are scheduled again with all that is missing."""
    failed = loaded(1280, "failed", reason="io")
    row = funnel(tmp_path, asked(0, 1280), lookup(1280), failed, prefill(1280, 256), prefill(0, PROMPT, 60))
    assert (row["loaded"], row["computed"], row["recomputed"]) == (0, PROMPT, 1280 + 256)
    assert lost(row) == {"failed": 1280}


def test_an_admission_that_was_cut_short_has_no_known_computed(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(0, 512, status="aborted"), lookup(512), loaded(512), prefill(512, 256))
    assert (row["loaded"], row["computed"]) == (512, None)


def test_later_admissions_are_recomputed_tokens(tmp_path: Path) -> None:
    row = funnel(
        tmp_path, asked(0, 1280), lookup(1280), loaded(1280), prefill(1280, 256),
        scheduler("queue", 65, 70, reason="preempted"), prefill(0, PROMPT, 75),
    )  # fmt: skip
    assert (row["loaded"], row["computed"], row["recomputed"]) == (1280, 256, PROMPT)


def test_a_load_without_times_is_one_of_the_first_admission(tmp_path: Path) -> None:
    untimed = loaded(1280) | {"start_ns": None, "end_ns": None}
    row = funnel(
        tmp_path, asked(0, 1280), lookup(1280), untimed, prefill(1280, 256),
        scheduler("queue", 65, 70, reason="preempted"), prefill(0, PROMPT, 75),
    )  # fmt: skip
    assert (row["moved"], row["loaded"]) == (1280, 1280)


@pytest.mark.parametrize("op", ["lookup", "load", "route", "members", "key"])
def test_an_id_that_no_request_row_names_has_a_row(tmp_path: Path, op: str) -> None:
    spans = {
        "lookup": [lookup(256, request_id="stray")],
        "load": [loaded(256, request_id="stray")],
        "route": [route(256, request_id="stray")],
        "members": [lookup(256, request_id=None, members=[{"request_id": "stray"}])],
        "key": [],
    }[op]
    keys = [key(0, "stray")] if op == "key" else []
    row = funnel(tmp_path, asked(), *spans, name="stray", request_key=keys)
    assert (row["prompt"], row["loaded"]) == (None, None)
    assert row["found"] == (256 if op in ("lookup", "members") else None)
    run = written(tmp_path / "again", asked(), *spans, request_key=keys)
    assert "stray" not in fallbacks(run)["request_id"].to_list()


def test_only_the_requests_asked_for(tmp_path: Path) -> None:
    run = written(tmp_path, asked(), asked(name="r1"))
    assert hit_funnel(run, requests=("r1",))["request_id"].to_list() == ["r1"]
    assert hit_funnel(run)["request_id"].to_list() == ["r0", "r1"]


def test_the_tokens_of_a_handoff_are_loaded_like_others(tmp_path: Path) -> None:
    handoff = loaded(1535, path="peer->gpu", purpose="handoff")
    row = funnel(tmp_path, asked(0, 1535), handoff, prefill(1535, 1))
    assert (row["loaded"], row["moved"], row["computed"]) == (1535, 1535, 1)


def test_two_block_sizes_of_other_engines_tell_nothing_of_this_one(tmp_path: Path) -> None:
    sizes = [block_size(128, "e1"), block_size(16, "e2")]
    row = funnel(tmp_path, asked(0, 1152), lookup(1200), prefill(1152, 384), identity=sizes)
    assert row["lost_rounding"] is None


# exists and visible


def test_what_existed_and_was_not_visible_to_the_router_is_told(tmp_path: Path) -> None:
    """Four keys stored, the router saw two of them, the worker found one."""
    row = funnel(
        tmp_path, asked(0, 256), route(512), lookup(256),
        request_key=[key(n) for n in range(4)], block=[stored(n) for n in range(4)],
    )  # fmt: skip
    assert (row["exists"], row["visible"], row["found"]) == (1024, 512, 256)
    assert (row["lost_invisible"], row["lost_unreported"]) == (512, 256)


def test_a_forecast_is_not_what_the_router_saw(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(), route(None, predicted_tokens=512))
    assert (row["visible"], row["lost_unreported"]) == (None, None)


def test_the_first_route_counts(tmp_path: Path) -> None:
    assert funnel(tmp_path, asked(), route(512), route(768, 7))["visible"] == 512


def test_a_first_route_that_counted_nothing_is_not_replaced_by_a_later_one(tmp_path: Path) -> None:
    assert funnel(tmp_path, asked(), route(None, attempt=1), route(768, 7, attempt=2))["visible"] is None


def test_what_a_simulated_router_saw_was_not_visible(tmp_path: Path) -> None:
    assert funnel(tmp_path, asked(), route(512, evidence="predicted"))["visible"] is None


@pytest.mark.parametrize("event", ["removed", "expired"])
def test_a_removed_key_ends_the_prefix(tmp_path: Path, event: str) -> None:
    events = [stored(0), stored(1), stored(2), stored(1, 5, event)]
    row = funnel(tmp_path, asked(), lookup(0), request_key=[key(n) for n in range(3)], block=events)
    assert row["exists"] == 256


def test_a_key_removed_after_the_lookup_was_there(tmp_path: Path) -> None:
    events = [stored(0), stored(0, 11, "removed")]
    assert funnel(tmp_path, asked(), lookup(0), request_key=[key(0)], block=events)["exists"] == 256


def test_a_key_stored_after_the_lookup_was_not_there(tmp_path: Path) -> None:
    assert funnel(tmp_path, asked(), lookup(0), request_key=[key(0)], block=[stored(0, 11)])["exists"] == 0


def test_a_route_before_the_lookup_is_the_time_that_counts(tmp_path: Path) -> None:
    events = [stored(0), stored(0, 7, "removed")]
    row = funnel(tmp_path, asked(), route(256), lookup(0), request_key=[key(0)], block=events)
    assert row["exists"] == 256


def test_a_key_removed_from_one_place_is_still_in_another(tmp_path: Path) -> None:
    events = [stored(0), stored(0, engine="e1"), stored(0, 5, "removed")]
    assert funnel(tmp_path, asked(), lookup(0), request_key=[key(0)], block=events)["exists"] == 256


def test_a_place_that_was_cleared_is_empty(tmp_path: Path) -> None:
    events = [stored(0), stored(0, 5, "cleared", key=None, key_space=None, component=None), stored(1, 6)]
    row = funnel(tmp_path, asked(), lookup(0), request_key=[key(0), key(1)], block=events)
    assert row["exists"] == 0


def test_clearing_one_tier_leaves_the_others(tmp_path: Path) -> None:
    events = [stored(0), stored(0, 5, "cleared", key=None, tier="gpu", component="vllm.gpu")]
    assert funnel(tmp_path, asked(), lookup(0), request_key=[key(0)], block=events)["exists"] == 256


def test_what_was_written_where_no_eviction_is_recorded_may_be_gone(tmp_path: Path) -> None:
    """LMCache's storage trace: a write is no proof, and nobody tells whether anything is there at all."""
    space = "lmcache:unknown:m"
    row = funnel(
        tmp_path, asked(), lookup(0), request_key=[key(0, space=space)],
        block=[stored(0, event="written", key_space=space)],
    )  # fmt: skip
    assert row["exists"] is None


def test_a_prefix_that_would_go_on_in_such_a_place_is_not_known(tmp_path: Path) -> None:
    """Key 0 is in a place that records removals, key 1 was written to one that does not."""
    space = "lmcache:unknown:m"
    events = [
        stored(0, key_space=space), stored(9, 2, key_space=space), stored(9, 3, "removed", key_space=space),
        stored(1, event="written", key_space=space, component="lmcache.l1"),
    ]  # fmt: skip
    keys = [key(0, space=space), key(1, space=space)]
    assert funnel(tmp_path, asked(), lookup(0), request_key=keys, block=events)["exists"] is None
    row = funnel(tmp_path / "first", asked(), lookup(0), request_key=keys, block=events[:3])
    assert row["exists"] == 256


def test_a_missing_position_ends_what_is_known(tmp_path: Path) -> None:
    row = funnel(tmp_path, asked(), lookup(0), request_key=[key(0), key(2)], block=[stored(0), stored(2)])
    assert row["exists"] is None


def test_keys_of_a_later_inquiry_do_not_count(tmp_path: Path) -> None:
    keys = [key(0), key(1, attempt=2)]
    row = funnel(tmp_path, asked(), lookup(0), request_key=keys, block=[stored(0), stored(1)])
    assert row["exists"] == 256


def test_without_keys_nothing_is_known_to_exist(tmp_path: Path) -> None:
    assert funnel(tmp_path, asked(), lookup(0), block=[stored(0)])["exists"] is None
