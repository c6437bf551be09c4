"""An unmodified `lmcache server` that exports to `kvtrace collect`, driven by LMCache's benchmark client."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines import process
from tests.engines.stack import _free_ports as free_ports

if TYPE_CHECKING:
    from tests.engines.process import Child

LOCALHOST = "127.0.0.1"
READY_S = 120.0
PLAY_S = 120.0
EXPORT_S = 12.0
"""LMCache exports its spans every five seconds and its metrics every ten, and not when it ends."""
ENVIRONMENT = {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "HF_HUB_OFFLINE": "1"}
CLIENT = Path(__file__).parents[1] / "lmcache_alone" / "client.py"


def play(python: Path, out: Path) -> str:
    """Collect what the server exports and shows while its client plays; what the collector printed."""
    folder = Path(tempfile.mkdtemp(prefix="collect-lmcache-"))
    rpc, http = free_ports(2)
    url = f"http://{LOCALHOST}:{http}"
    try:
        with ExitStack() as ending:
            words = ["--out", str(out), "--otlp-grpc", f"{LOCALHOST}:0", "--status", url, "--metrics", url]
            command = [sys.executable, "-m", "kvtrace", "collect", *words, "--every", "0.5"]
            collector = process.start("collect", command, folder=folder, environment={})
            ending.callback(process.stop, collector)
            where = process.first_line(collector, timeout_s=60).split()[1]
            command = [
                str(python.parent / "lmcache"), "server", "--instance-id", "lmc-collected",
                "--host", LOCALHOST, "--port", str(rpc), "--http-host", LOCALHOST, "--http-port", str(http),
                "--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "LRU", "--chunk-size", "64",
                "--l2-adapter", '{"type": "fs", "base_path": "l2"}',
                "--enable-tracing", "--otlp-endpoint", f"http://{where}",
            ]  # fmt: skip
            (folder / "l2").mkdir()
            server = process.start("server", command, folder=folder, environment=ENVIRONMENT)
            ending.callback(process.stop, server)
            _wait(server, f"{url}/healthcheck")
            urls = [f"tcp://{LOCALHOST}:{rpc}", url]
            subprocess.run(
                [str(python), str(CLIENT), *urls, "plain"], cwd=folder, timeout=PLAY_S, check=True,
                capture_output=True,
            )  # fmt: skip
            time.sleep(EXPORT_S)
        return collector.log.read_text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Child, url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        server.require_alive()
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise TimeoutError(f"the server did not answer within {READY_S} s; see {server.log}")
