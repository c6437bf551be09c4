"""A client of Mooncake's store, alone in its cluster: everything that can go well, and how it fails.

store_script.py RPC_PORT METADATA_PORT OWN_PORT full | lease
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time

import kvtrace
from mooncake.store import MooncakeDistributedStore
from tests.engines.caller import Caller

MIB = 1 << 20
VALUE = os.urandom(MIB)


def main() -> None:
    rpc, metadata, own, what = sys.argv[1:]
    store = MooncakeDistributedStore()
    assert store.setup({
        "local_hostname": f"127.0.0.1:{own}",
        "metadata_server": f"http://127.0.0.1:{metadata}/metadata",
        "global_segment_size": str(32 * MIB),
        "local_buffer_size": str(16 * MIB),
        "protocol": "tcp",
        "master_server_addr": f"127.0.0.1:{rpc}",
    }) == 0  # fmt: skip
    buffer = (ctypes.c_char * (40 * MIB))()
    assert store.register_buffer(ctypes.addressof(buffer), len(buffer)) == 0
    {"full": full, "lease": lease}[what](store, ctypes.addressof(buffer), Caller())
    store.close()


def full(store: MooncakeDistributedStore, at: int, caller: Caller) -> None:
    """Values, buffers, batches, lookups, removals, then a segment that is full."""
    keys = [f"page-{number}" for number in range(8)]
    for key in keys:
        caller.call("put", store.put, key, VALUE, moved=MIB)
    for key in keys:
        assert caller.call("get", store.get, key, moved=MIB) == VALUE
    for key in keys:
        assert caller.call("get_into", store.get_into, key, at, MIB, moved=MIB) == MIB
    batch = [[f"batch-{number}-{place}" for place in range(2)] for number in range(4)]
    for pair in batch:
        sizes = [MIB, MIB // 2]
        caller.call("batch_put_from", store.batch_put_from, pair, [at, at + MIB], sizes, moved=sum(sizes))
    with kvtrace.request("cmpl-7"):
        store.batch_is_exist(["page-0", "nowhere"])
        asked = ["page-0", "nowhere", "page-1"]
        for _ in range(5):
            caller.call("batch_get_into", store.batch_get_into, asked, [at] * 3, [MIB] * 3, moved=2 * MIB)
    store.batch_get_replica_desc(["page-0", "nowhere"])
    with kvtrace.request("cmpl-placed"):
        assert store.get_into("page-0", at, MIB) == MIB
    codes = {
        "missing": store.get_into("nowhere", at, MIB),
        "empty": len(store.get("nowhere")),
        "leased": store.remove("page-0"),
    }
    with contextlib.suppress(TypeError):
        store.put("page-0")
    codes["full"] = [store.put_from(f"over-{number}", at, 40 * MIB) for number in range(3)]
    time.sleep(1.0)  # the lease of 500 ms is over
    codes["removed"] = store.remove("page-0")
    codes["all"] = store.remove_all()
    caller.save(codes=codes)


def lease(store: MooncakeDistributedStore, at: int, caller: Caller) -> None:
    """The lease of a read is over before its bytes have come."""
    assert store.put_from("large", at, 8 * MIB) == 0
    caller.save(codes={"reads": [store.get_into("large", at, 8 * MIB) for _ in range(20)]})


main()
