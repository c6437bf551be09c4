"""A write that is reserved and never finished, at the level of LMCache's storage manager; run by kvtrace run.

    reserve_write ─── write TTL, 1 s ───► lookup: two hits, whose bytes nobody wrote; served to a reader

What it prints is JSON: how many chunks a lookup hit before the TTL was over, and after it.
"""

import json
import sys
import time

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey, PrefetchRequestSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.mp_observability.event_bus import EventBusConfig, init_event_bus

WRITE_TTL_S = 1


def main():
    """Reserve, look up, wait, look up and read; the late end of the write comes last."""
    bus = init_event_bus(EventBusConfig(enabled=True))
    bus.start()
    memory = L1MemoryManagerConfig(size_in_bytes=1 << 24, use_lazy=False, shm_name="")
    manager = StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory, write_ttl_seconds=WRITE_TTL_S),
            eviction_config=EvictionConfig(eviction_policy="noop"),
        )
    )
    layout = MemoryLayoutDesc([torch.Size([2, 2, 64, 32])], [torch.float16])
    keys = [ObjectKey(bytes([number]) * 32, "test-model", 0x01000100) for number in range(2)]
    spec = PrefetchRequestSpec(keys=keys, group_layout_descs={0: layout})
    manager.reserve_write(keys, layout, "new")
    early = manager.submit_prefetch_task(spec, external_request_id="early")
    time.sleep(WRITE_TTL_S + 0.5)
    late = manager.submit_prefetch_task(spec, external_request_id="late")
    with manager.read_prefetched_results(keys) as objects:
        served = len(objects or ())
    manager.finish_read_prefetched(keys)
    manager.finish_write(keys)
    bus.stop()
    manager.close()
    said = {"early": early.l1_hit_chunks, "late": late.l1_hit_chunks, "served": served}
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
