"""The running engines: receiver and tap first, then the cache server, then vLLM."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines import layered, model, process
from tests.engines.configuration import (
    KV_EVENTS,
    LOCALHOST,
    Configuration,
    Ports,
    cache_command,
    cache_environment,
    vllm_command,
    vllm_environment,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.process import Child

HERE = Path(__file__).parent
READY_TIMEOUT_S = 600.0
NATIVE = "native"
"""The run that `kvtrace run` writes of vLLM, in the work folder."""
NATIVE_CACHE = "native-cache"
"""The run that it writes of the cache server."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Stack:
    """What a scenario needs of the running engines."""

    folder: Path
    configuration: Configuration
    vllm_url: str
    vllm: Child
    cache_url: str
    cache: Child | None

    def kill_cache(self) -> int:
        """`kill -9` of the cache server; returns when it was done (wall clock, ns)."""
        at_ns = time.time_ns()
        assert self.cache is not None
        process.kill(self.cache)
        return at_ns

    def cache_alive(self) -> bool:
        """Whether the cache server still runs."""
        return self.cache is not None and self.cache.popen.poll() is None

    def engine_died(self, *, timeout_s: float) -> bool:
        """Whether vLLM ends by itself within a time."""
        with suppress(subprocess.TimeoutExpired):
            self.vllm.popen.wait(timeout_s)
        return self.vllm.popen.poll() is not None


@contextmanager
def running(configuration: Configuration, *, folder: Path, python: Path) -> Iterator[Stack]:
    """Starts everything in `folder`, yields when both engines answer, ends what it started.

    The receiver goes last, so that it also takes what the engines send while they stop.
    """
    model.write_model(folder / model.NAME, layered.configuration(configuration.layers))
    shutil.copy(HERE / "host_offload.py", folder)
    with ExitStack() as ending, _shared_memory_returned():

        def start(name: str, command: list[str], environment: dict[str, str]) -> Child:
            child = process.start(name, command, folder=folder, environment=environment)
            ending.callback(process.stop, child)
            return child

        receiver = start("receiver", [str(python), str(HERE / "otlp_receiver.py"), "."], {})
        port = int(process.first_line(receiver, timeout_s=30))
        ports = Ports(port, *_free_ports(3))
        start("tap", [str(python), str(HERE / "kv_events_tap.py"), KV_EVENTS, "kv-events.jsonl"], {})
        cache_url = f"http://{LOCALHOST}:{ports.cache_http}"
        cache = None
        if configuration.connector == "lmcache":
            command = cache_command(str(python), configuration, ports)
            command = [*_kvtrace(configuration, NATIVE_CACHE), *command]
            cache = start("lmcache", command, cache_environment(configuration))
            _wait(cache, f"{cache_url}/healthcheck")
        vllm_url = f"http://{LOCALHOST}:{ports.vllm}"
        command = [*_kvtrace(configuration, NATIVE), *vllm_command(str(python), configuration, ports)]
        vllm = start("vllm", command, vllm_environment(configuration.ranks))
        _wait(vllm, f"{vllm_url}/health")
        yield Stack(folder, configuration, vllm_url, vllm, cache_url, cache)


def _kvtrace(configuration: Configuration, out: str) -> list[str]:
    """What a user types before the engine's own command."""
    command = [sys.executable, "-m", "kvtrace", "run", "--out", out, "--"]
    return command if configuration.kvtrace else []


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOCALHOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _wait(child: Child, url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        child.require_alive()
        if _answers(url):
            return
        time.sleep(0.25)
    raise TimeoutError(f"{child.name} did not answer within {READY_TIMEOUT_S} s; see {child.log}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _shared_memory_returned() -> Iterator[None]:
    """A killed server cannot unlink its segments: those that are new and LMCache's go afterwards."""
    before = set(_segments())
    yield
    for path in set(_segments()) - before:
        path.unlink(missing_ok=True)


def _segments() -> list[Path]:
    return list(SHARED_MEMORY.glob("*lmcache*")) if SHARED_MEMORY.exists() else []
