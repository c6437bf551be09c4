"""What must hold of any recording of the five scenarios, whenever it was made.

The client's responses, the engines' spans and the cache server's files are three views of the same requests;
nothing here is a number that kvtrace itself worked out.
"""

from __future__ import annotations

from tests.golden.truths.always import (
    ALWAYS,
    every_answer_is_a_row_of_its_request,
    every_client_id_names_exactly_one_request,
    every_request_has_the_tokens_of_its_clients_usage,
    every_request_lies_within_its_clients_wait,
    every_row_of_the_cache_belongs_to_a_request_of_the_engine,
    every_transfer_moves_whole_chunks_of_the_models_bytes,
    found_by_tier_adds_up,
    lookups_and_loads_lie_within_the_life_of_their_request,
    the_funnel_closes,
    the_hash_log_asks_for_what_the_lookups_ask_for,
    the_queue_is_watched_without_a_gap_until_the_first_step,
    the_storage_trace_knows_the_keys_of_the_lookups,
    tokens_from_the_gpu_loaded_and_computed_are_the_prompt,
    what_was_published_is_what_the_engine_recorded,
)
from tests.golden.truths.asked import ASKED
from tests.golden.truths.particular import (
    LOST,
    a_full_load_is_1280_tokens_and_2621440_bytes,
    a_prompt_below_a_chunk_is_not_looked_up,
    after_the_kill_nothing_of_the_cache_was_seen,
    drops,
    drops_are_the_stores_that_wrote_nothing,
    drops_keep_nothing_for_an_unknown_reason,
    more_is_found_than_moved,
    nothing_was_lost,
    some_lookup_finds_512_tokens_in_l1_and_768_below,
    the_first_request_after_the_kill_waits_for_its_lookup,
    the_fourth_request_after_the_kill_waits_for_held_blocks,
    the_killed_server_lost_spans,
    waits_after_the_kill_ns,
    what_had_no_room_is_never_stored_and_missed_again,
)
from tests.golden.truths.recording import (
    CHUNK_TOKENS,
    KV_BYTES_PER_TOKEN,
    SECOND,
    TOKENS,
    Recording,
)

__all__ = [
    "ALWAYS",
    "ASKED",
    "CHUNK_TOKENS",
    "KV_BYTES_PER_TOKEN",
    "LOST",
    "SECOND",
    "TOKENS",
    "Recording",
    "a_full_load_is_1280_tokens_and_2621440_bytes",
    "a_prompt_below_a_chunk_is_not_looked_up",
    "after_the_kill_nothing_of_the_cache_was_seen",
    "drops",
    "drops_are_the_stores_that_wrote_nothing",
    "drops_keep_nothing_for_an_unknown_reason",
    "every_answer_is_a_row_of_its_request",
    "every_client_id_names_exactly_one_request",
    "every_request_has_the_tokens_of_its_clients_usage",
    "every_request_lies_within_its_clients_wait",
    "every_row_of_the_cache_belongs_to_a_request_of_the_engine",
    "every_transfer_moves_whole_chunks_of_the_models_bytes",
    "found_by_tier_adds_up",
    "lookups_and_loads_lie_within_the_life_of_their_request",
    "more_is_found_than_moved",
    "nothing_was_lost",
    "some_lookup_finds_512_tokens_in_l1_and_768_below",
    "the_first_request_after_the_kill_waits_for_its_lookup",
    "the_fourth_request_after_the_kill_waits_for_held_blocks",
    "the_funnel_closes",
    "the_hash_log_asks_for_what_the_lookups_ask_for",
    "the_killed_server_lost_spans",
    "the_queue_is_watched_without_a_gap_until_the_first_step",
    "the_storage_trace_knows_the_keys_of_the_lookups",
    "tokens_from_the_gpu_loaded_and_computed_are_the_prompt",
    "waits_after_the_kill_ns",
    "what_had_no_room_is_never_stored_and_missed_again",
    "what_was_published_is_what_the_engine_recorded",
]
