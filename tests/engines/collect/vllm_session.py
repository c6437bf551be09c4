"""An unmodified vLLM API server that exports its spans to `kvtrace collect`, asked as clients ask.

It knows nothing of kvtrace: its own OTLP exporter, its own publisher of KV events, its own page of metrics.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.engines import drive, model, process
from tests.engines.configuration import (
    KV_EVENTS,
    LOCALHOST,
    Configuration,
    Ports,
    vllm_command,
    vllm_environment,
)
from tests.engines.prompts import plain
from tests.engines.stack import _free_ports as free_ports
from tests.engines.stack import _wait as wait

PROMPTS = (0, 1, 0, 2, 0)
"""The first prompt again and again: its blocks are in GPU memory from the second time on."""
EXPORT_S = 3.0
"""The exporter is told to send every half second."""
CONNECTED = "--kv-transfer-config"


@dataclass(frozen=True)
class Asked:
    """What was collected, and what the clients saw."""

    run: Path
    responses: list[drive.Response]


def play(python: Path, out: Path) -> Asked:
    """Collect from before the engine starts until its last span was exported."""
    folder = Path(tempfile.mkdtemp(prefix="kvt-vllm-"))  # short: a socket's path is bounded
    (port,) = free_ports(1)
    url = f"http://{LOCALHOST}:{port}"
    try:
        with ExitStack() as ending:
            words = ["--otlp-grpc", f"{LOCALHOST}:0", "--metrics", url, "--kv-events", KV_EVENTS]
            words += ["--out", str(out), "--every", "0.5"]
            command = [sys.executable, "-m", "kvtrace", "collect", *words]
            collector = process.start("collect", command, folder=folder, environment={})
            ending.callback(process.stop, collector, grace_s=60.0)
            otlp = int(process.first_line(collector, timeout_s=60).rpartition(":")[2])
            model.write_model(folder / model.NAME)
            ports = Ports(otlp=otlp, cache=0, cache_http=0, vllm=port)
            command = vllm_command(str(python), Configuration(kvtrace=False), ports)
            command = command[: command.index(CONNECTED)]  # without a connector: vLLM alone
            engine = process.start("vllm", command, folder=folder, environment=vllm_environment())
            ending.callback(process.stop, engine)
            wait(engine, f"{url}/health")
            client = drive.Client(url, folder / "responses.jsonl")
            client.ask(*plain(*PROMPTS))
            client.ask_at_once(*plain(3, 4))
            time.sleep(EXPORT_S)
            process.stop(collector, grace_s=60.0)  # before the engine: a page that it cuts short is a loss
        return Asked(out, client.responses)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
