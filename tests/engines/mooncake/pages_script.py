"""A client of Mooncake's store that fills its segment and keeps the pages of both sides.

pages_script.py RPC_PORT METADATA_PORT METRICS_PORT OWN_PORT HTTP_PORT
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
PAGES = ("metrics", "metrics/summary", "kv_events/status")


def keep(side: str, port: str) -> None:
    """The pages of one side, as files."""
    for page in PAGES:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
                Path(f"{side}-{page.replace('/', '-')}").write_bytes(answer.read())
        except OSError:  # a client has no status of KV events
            assert side == "client"


def main() -> None:
    rpc, metadata, metrics, own, http = sys.argv[1:]
    store, value = MooncakeDistributedStore(), os.urandom(MIB)
    assert store.setup({
        "local_hostname": f"127.0.0.1:{own}",
        "metadata_server": f"http://127.0.0.1:{metadata}/metadata",
        "global_segment_size": str(16 * MIB),
        "local_buffer_size": str(16 * MIB),
        "protocol": "tcp",
        "master_server_addr": f"127.0.0.1:{rpc}",
        "enable_client_http_server": "true",
        "client_http_port": http,
    }) == 0  # fmt: skip
    codes = [store.put(f"page-{number}", value) for number in range(20)]
    read = [len(store.get(f"page-{number}")) for number in range(3)]
    time.sleep(2.5)  # a report of the client is due every second
    keep("client", http)
    keep("master", metrics)
    Path("told.json").write_text(json.dumps({"codes": codes, "read": read}))
    store.close()


main()
