"""KVBM's connector for vLLM, by the source of its wheels 1.5.1 and 1.6.1: nothing here was seen running.

`DynamoConnector` is a connector like any other, so vllm/connectors.py wraps it when vLLM's factory hands it
out: lookups, loads and holds as the scheduler sees them, reports, waits. Which of KVBM's tiers an answer
came from, and when its copies ran, is known to its compiled core alone, and neither is invented. Loads that
fail are not reported to vLLM by this connector: they end as loads that arrived.

What the wrapping relies on is below, and compared with the wheels' source by a test.
"""

from __future__ import annotations

STATE = (
    "by source only",
    "signatures of kvbm 1.5.1 and 1.6.1; needs a GPU; as any vLLM connector, its copies as reports alone",
)
"""What doctor says: how far this was seen to work."""
VERSIONS = ("1.5.1", "1.6.1")
MODULE = "kvbm.vllm_integration.connector.dynamo_connector"
CONNECTOR = "DynamoConnector"
METHODS: dict[str, tuple[str, ...]] = {
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "request_finished": ("request", "block_ids"),
    "bind_connector_metadata": ("connector_metadata",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    "wait_for_save": (),
    "get_finished": ("finished_req_ids",),
}
"""Method -> its parameters after self."""
ABSENT = ("get_block_ids_with_load_errors", "take_events", "get_kv_connector_stats")
"""What a connector may tell vLLM and this one does not."""
