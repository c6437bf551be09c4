"""One start of `lmcache server` under `kvtrace run`, driven by a scenario of client.py; the run it left."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines import process

if TYPE_CHECKING:
    from tests.engines.process import Child

LOCALHOST = "127.0.0.1"
READY_S = 120.0
PLAY_S = 120.0
CHUNK_TOKENS = 64
CHUNKS = 3
"""Of every prompt: 193 tokens, of which three chunks are whole."""
RANKS = 2
INSTANCE = "lmc-alone"
ENVIRONMENT = {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false", "HF_HUB_OFFLINE": "1"}
FS = {"type": "fs", "base_path": "l2"}
MODULE = ("-m", "lmcache.v1.multiprocess.http_server")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Played:
    """The run, what the client said at its end, and the server's log."""

    run: Path
    said: dict[str, Any]
    log: str


@dataclass(frozen=True)
class Server:
    """How a server is started; `words` begin its command where it is not LMCache's console script."""

    options: tuple[str, ...] = ()
    adapter: dict[str, Any] | None = None
    words: tuple[str, ...] = ()
    kvtrace: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def play(server: Server, scenario: str, *, python: Path, out: Path) -> Played:
    """Start it, play, stop it; the run is moved to `out`."""
    folder = Path(tempfile.mkdtemp(prefix="lmcache-alone-"))
    (folder / "l2").mkdir()
    rpc, http = _free_ports(2)
    try:
        with ExitStack() as ending:
            command = [sys.executable, "-m", "kvtrace", "run", "--out", "run", *server.kvtrace, "--"]
            command += _command(server, python, rpc, http)
            environment = {**ENVIRONMENT, **server.environment}
            child = process.start("server", command, folder=folder, environment=environment)
            ending.callback(process.stop, child)
            _wait(child, f"http://{LOCALHOST}:{http}/healthcheck")
            said = _play(scenario, python, folder, rpc, http)
        shutil.move(folder / "run", out)
        return Played(out, said, child.log.read_text(errors="replace"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_script(script: Path, *, python: Path, out: Path) -> Played:
    """A script that uses LMCache without a server, under `kvtrace run`; it prints JSON."""
    command = [sys.executable, "-m", "kvtrace", "run", "--out", str(out), "--", str(python), str(script)]
    done = subprocess.run(
        command, cwd=out.parent, capture_output=True, text=True, timeout=PLAY_S, check=False,
        env={"PATH": "/usr/bin:/bin", **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return Played(out, said, done.stderr)


def _command(server: Server, python: Path, rpc: int, http: int) -> list[str]:
    words = [str(python), *server.words] if server.words else [str(python.parent / "lmcache"), "server"]
    adapter = ["--l2-adapter", json.dumps(server.adapter)] if server.adapter else []
    return [
        *words, "--instance-id", INSTANCE, "--host", LOCALHOST, "--port", str(rpc), "--http-host", LOCALHOST,
        "--http-port", str(http), "--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "LRU",
        "--chunk-size", str(CHUNK_TOKENS), *adapter, *server.options,
    ]  # fmt: skip


def _play(scenario: str, python: Path, folder: Path, rpc: int, http: int) -> dict[str, Any]:
    urls = [f"tcp://{LOCALHOST}:{rpc}", f"http://{LOCALHOST}:{http}"]
    done = subprocess.run(
        [str(python), str(HERE / "client.py"), *urls, scenario],
        cwd=folder, capture_output=True, text=True, timeout=PLAY_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOCALHOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _wait(child: Child, url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        child.require_alive()
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise TimeoutError(f"the server did not answer within {READY_S} s; see {child.log}")
