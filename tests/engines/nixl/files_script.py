"""An agent of NIXL whose ring and whose telemetry of each transfer are kept: files_script.py TRANSFERS.

Every transfer is noted with the caller's own clock around it, as JSON lines in `transfers.jsonl`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 1 << 20
FIVE = ("startTime", "postDuration", "xferDuration", "totalBytes", "descCount")


def moved(agent: Any, operation: str, near: Any, far: Any) -> dict[str, Any]:
    """One transfer, posted and polled, as its caller saw it."""
    handle = agent.initialize_xfer(operation, near, far, "kept")
    begin_ns = time.time_ns()
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    end_ns = time.time_ns()
    telemetry = agent.get_xfer_telemetry(handle)
    known = {name: getattr(telemetry, name) for name in FIVE}
    found = {"op": operation, "t0_ns": begin_ns, "py_us": (end_ns - begin_ns) / 1e3, "state": state,
             "backend": agent.query_xfer_backend(handle), "telemetry": known}  # fmt: skip
    agent.release_xfer_handle(handle)
    return found


def main() -> None:
    transfers = int(sys.argv[1])
    agent = nixl_agent("kept", nixl_agent_config(capture_telemetry=True, backends=["POSIX"]))
    source = np.ones(SIZE, dtype=np.uint8)
    with Path("pages").open("wb+") as file:
        file.truncate(SIZE)
        agent.register_memory([(source.ctypes.data, SIZE, 0, "")], "DRAM")
        agent.register_memory([(0, SIZE, file.fileno(), "pages")], "FILE")
        near = agent.get_xfer_descs([(source.ctypes.data, SIZE, 0)], "DRAM")
        far = agent.get_xfer_descs([(0, SIZE, file.fileno())], "FILE")
        told = [
            moved(agent, "READ" if number % 3 == 2 else "WRITE", near, far) for number in range(transfers)
        ]
    Path("transfers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))
    time.sleep(0.5)  # the agent flushes its events every 100 ms
    sys.stdout.flush()
    os._exit(0)  # an agent that is taken down empties nothing, and may crash


main()
