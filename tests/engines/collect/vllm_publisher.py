"""Run by the engines' python: vLLM's own publisher of KV events, without an engine; a line on stdin a step.

`python vllm_publisher.py ENDPOINT REPLAY` publishes five batches, waits for a line, publishes five more,
waits for a line, ends. Batch n stores the block n after block n - 1.
"""

import sys
import time

from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

publisher = ZmqEventPublisher(0, endpoint=sys.argv[1], replay_endpoint=sys.argv[2])
for turn in range(2):
    for number in range(5 * turn, 5 * turn + 5):
        stored = BlockStored(
            block_hashes=[number + 1], parent_block_hash=number or None, token_ids=[7, 8, 9, number],
            block_size=4, lora_id=None, medium="GPU", lora_name=None,
        )  # fmt: skip
        publisher.publish(KVEventBatch(ts=time.time(), events=[stored]))
    time.sleep(0.5)  # its thread sends
    print("published", flush=True)
    sys.stdin.readline()
publisher.shutdown()
