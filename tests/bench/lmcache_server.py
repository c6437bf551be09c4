"""What does recording cost LMCache's server, and does it keep up?

    python tests/bench/lmcache_server.py [--rate 2000] [--seconds 10] [--format json]

The engines' environment runs LMCache's own storage manager and event bus (tests/engines). An operation is a
store, a lookup or a retrieve of two objects with all calls and events that the server makes of one; tensors
are not copied, so that all that is measured is bookkeeping. The same is played without us, with us (`kvtrace
run`), and with LMCache's own storage trace, which also records every call:

    cpu_us      CPU of the server's process an operation, flat out, all threads
    times       the same as a multiple of the one without
    paired      the same of slices with and without us in turn, in one process: other load hits both alike
    kept_up     operations a second that were reached, of those that were asked for
    cores       CPU seconds a second that the process got at that rate
    starved     seconds a second that its threads could have run and had no CPU: what limits, if not we
    dropped     what LMCache's bus dropped, and what the recorder dropped, at that rate
    flood       what a bus with a queue of 50 dropped when nobody waited for it, and what the run counts of it

Numbers are printed, never asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLAT_OUT = 6_000
SLICES, SLICE = 20, 100
FLOOD, FLOOD_QUEUE = 500, 50
_COUNTED = "SELECT coalesce(sum(count), 0) AS n FROM loss WHERE detail = 'LMCache''s event bus was full'"
OPERATIONS = 4
"""Of a request: a lookup that misses, a store, a lookup that hits, a retrieve."""


def main() -> None:
    """Play each side in a process of its own, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.engines.environment import engine_python

    python = str(engine_python())
    sides: dict[str, list[dict[str, float]]] = {"without": [], "with": [], "trace": []}
    for _ in range(options.rounds):
        for side, found in sides.items():
            found.append(_side(side, python, options.rate, options.seconds))
    best = {side: min(each["cpu_us"] for each in found) for side, found in sides.items()}
    result = {
        "cpu_us": best,
        "times": {side: each / best["without"] for side, each in best.items()},
        "kept_up": {side: max(each["kept_up"] for each in found) for side, found in sides.items()},
        **{
            name: {side: max(each[name] for each in found) for side, found in sides.items()}
            for name in ("cores", "starved")
        },
        "paired": statistics.median(each["paired"] for each in sides["with"]),
        "flood": [sum(each[name] for each in sides["with"]) for name in ("flooded", "counted")],
        "bus_dropped": {side: sum(each["bus_dropped"] for each in found) for side, found in sides.items()},
        "rows": max(each.get("rows", 0) for each in sides["with"]),
        "lost": sum(each.get("lost", 0) for each in sides["with"]),
    }
    if options.format == "json":
        print(json.dumps(result))
        return
    for side, micros in best.items():
        print(
            f"{side:8}{micros:8.1f} us{result['times'][side]:6.2f} x, kept up {result['kept_up'][side]:.3f}, "
            f"{result['cores'][side]:.2f} cores, starved {result['starved'][side]:.2f}"
        )
    print(f"in turn in one process: {result['paired']:.2f} x; flood: bus dropped, counted {result['flood']}")
    print(f"bus dropped {result['bus_dropped']}; {result['rows']} rows, {result['lost']} lost")


def _side(side: str, python: str, rate: int, seconds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = [sys.executable, "-m", "kvtrace", "run", "--out", str(run), "--"] if side == "with" else []
        inside = [python, __file__, "--inside", side, str(rate), str(seconds), folder]
        environment = {**os.environ, "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
        done = subprocess.run(
            [*start, *inside], env=environment, cwd=folder, check=True, capture_output=True, text=True
        )
        found: dict[str, float] = json.loads(
            [line for line in done.stdout.splitlines() if line.startswith("{")][-1]
        )
        if side == "with":
            from kvtrace.run import open_run

            opened = open_run(run)
            count = "SELECT (SELECT count(*) FROM span) + (SELECT count(*) FROM block) AS n"
            found["rows"] = opened.sql(count)["n"][0]
            lost = opened.sql("SELECT coalesce(sum(count), 0) AS n FROM loss")["n"][0]
            found["counted"] = int(opened.sql(_COUNTED)["n"][0])
            found["lost"] = lost - found["counted"]
        return found


class Load:
    """LMCache's storage manager and bus, and requests as its server makes them."""

    def __init__(self, side: str, folder: str) -> None:
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey, PrefetchRequestSpec
        from lmcache.v1.distributed.config import (
            EvictionConfig,
            L1ManagerConfig,
            L1MemoryManagerConfig,
            StorageManagerConfig,
        )
        from lmcache.v1.distributed.storage_manager import StorageManager
        from lmcache.v1.mp_observability.config import ObservabilityConfig, init_observability
        from lmcache.v1.mp_observability.event import Event, EventType
        from lmcache.v1.mp_observability.trace import maybe_initialize_trace_recorder

        more = {"trace_level": "storage", "trace_output": f"{folder}/t.lct"} if side == "trace" else {}
        observed = ObservabilityConfig(metrics_enabled=True, logging_enabled=False, **more)
        self.bus = init_observability(observed, start_prometheus_http_server=False)
        memory = L1MemoryManagerConfig(size_in_bytes=1 << 28, use_lazy=False, shm_name="")
        config = StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory),
            eviction_config=EvictionConfig(eviction_policy="LRU"),
        )
        maybe_initialize_trace_recorder(self.bus, observed, config)
        self.manager = StorageManager(config)
        self.layout = MemoryLayoutDesc([torch.Size([2, 2, 16, 16])], [torch.float16])
        self.key, self.spec, self.event, self.kind = ObjectKey, PrefetchRequestSpec, Event, EventType

    def publish(self, name: str, session: str, **said: object) -> None:
        """One event, as the server publishes it."""
        self.bus.publish(self.event(self.kind(name), metadata=said, session_id=session))

    def lookup(self, session: str, keys: list[object]) -> None:
        """A lookup and its answer."""
        self.publish("mp.request.start", session)
        self.publish("mp.lookup_prefetch.start", session)
        hashes = [key.chunk_hash for key in keys]  # type: ignore[attr-defined]
        self.publish("mp.lookup", session, request_id=session, chunk_hashes=hashes, model_name="m",
                     chunk_size=256, seq_len=512, dtypes=[], shapes=[])  # fmt: skip
        spec = self.spec(keys=keys, group_layout_descs={0: self.layout})
        found = self.manager.submit_prefetch_task(spec, external_request_id=session).l1_hit_chunks
        self.publish("mp.lookup_prefetch.end", session, found_count=found, requested_tokens=512,
                     hit_tokens=found * 256, l1_hit_tokens=found * 256, l2_hit_tokens=0,
                     early_exit_reason="", model_name="m", cache_salt="")  # fmt: skip

    def request(self, number: int) -> None:
        """Look up in vain, store, look up again, retrieve, end."""
        names = [number.to_bytes(16, "big") + bytes([part]) * 16 for part in range(2)]
        keys = [self.key(name, "m", 0x01000100) for name in names]
        session = f"cmpl-{number}"
        self.lookup(session, keys)
        self.copied(session, "store", lambda: self.store(keys), stored_count=2)
        self.lookup(session, keys)
        self.copied(session, "retrieve", lambda: self.retrieve(keys), retrieved_count=2)
        self.publish("mp.vllm.end_session", "", request_id=session)
        self.manager.touch_l1_keys(keys)
        self.publish("mp.request.end", session)

    def copied(self, session: str, what: str, work: object, **counts: int) -> None:
        """The three events around a copy."""
        transfer = {"device": "cpu", "engine_id": 7, "model_name": "m", "transfer_key": f"{session}#{what}"}
        self.publish(f"mp.{what}.submitted", session, device="cpu")
        self.publish(f"mp.{what}.start", session, **transfer)
        work()  # type: ignore[operator]
        self.publish(f"mp.{what}.end", session, **transfer, **counts, total_bytes=64, num_tokens=512)

    def store(self, keys: list[object]) -> None:
        """Room, and written."""
        self.manager.reserve_write(keys, self.layout, "new")
        self.manager.finish_write(keys)

    def retrieve(self, keys: list[object]) -> None:
        """Read, and released."""
        with self.manager.read_prefetched_results(keys):
            pass
        self.manager.finish_read_prefetched(keys)


def inside(side: str, rate: int, seconds: int, folder: str) -> None:
    """In the engines' environment: flat out for CPU, then at a pace for drops; prints JSON."""
    load = Load(side, folder)
    for number in range(200):
        load.request(number)
    settle(load)
    began = time.process_time()
    for number in range(1_000, 1_000 + FLAT_OUT // OPERATIONS):
        load.request(number)
        if load.bus.queue_depth() > 5_000:
            settle(load)
    settle(load)
    cpu = time.process_time() - began
    dropped = load.bus.dropped_events_count()
    said = {"cpu_us": cpu / FLAT_OUT * 1e6, **paced(load, rate, seconds)}
    said["bus_dropped"] = load.bus.dropped_events_count() - dropped
    if side == "with":
        said["paired"] = paired(load)
        before, load.bus._config.max_queue_size = load.bus.dropped_events_count(), FLOOD_QUEUE
        for number in range(2_000_000, 2_000_000 + FLOOD):
            load.request(number)
        settle(load)
        said["flooded"] = load.bus.dropped_events_count() - before
    load.bus.stop()
    load.manager.close()
    print(json.dumps(said), flush=True)


def paced(load: Load, rate: int, seconds: int) -> dict[str, float]:
    """At a pace: how much of it was reached, and what CPU there was for it."""
    done, began_s, number = 0, time.monotonic(), 1_000_000
    cpu, waited = time.process_time(), _waited_s()
    while (passed := time.monotonic() - began_s) < seconds:
        if done * OPERATIONS < passed * rate:
            load.request(number + done)
            done += 1
        else:
            time.sleep(0.001)
    found = {
        "kept_up": done * OPERATIONS / seconds / rate,
        "cores": (time.process_time() - cpu) / seconds,
        "starved": (_waited_s() - waited) / seconds,
    }
    settle(load)
    return found


def paired(load: Load) -> float:
    """CPU of slices with us as a multiple of slices without, in turn; the median of the pairs."""
    from lmcache.v1.mp_observability.trace.decorator import set_tracing_enabled

    heard = load.bus._subscribers
    both = {kind: list(found) for kind, found in heard.items()}
    theirs = {
        kind: [each for each in found if "kvtrace" not in each.__module__] for kind, found in both.items()
    }
    times, number = [], 3_000_000
    for _ in range(SLICES):
        cpu = []
        for ours in (True, False):
            set_tracing_enabled(ours)
            heard.clear()
            heard.update(both if ours else {kind: found for kind, found in theirs.items() if found})
            settle(load, 0.05)
            began = time.process_time()
            for _ in range(SLICE):
                number += 1
                load.request(number)
            settle(load, 0.05)
            cpu.append(time.process_time() - began)
        times.append(cpu[0] / cpu[1])
    set_tracing_enabled(True)
    heard.update(both)
    return statistics.median(times)


def _waited_s() -> float:
    """Seconds that this process's threads were ready to run and waited for a CPU (Linux)."""
    waited = 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, IndexError):  # it ended meanwhile, or the kernel does not say
            waited += int((thread / "schedstat").read_text().split()[1])
    return waited / 1e9


def settle(load: Load, pause_s: float = 0.2) -> None:
    """Until the bus has delivered everything, and what subscribers wrote is written."""
    while load.bus.queue_depth():
        time.sleep(0.001)
    time.sleep(pause_s)
    if os.environ.get("KVTRACE_OUT"):
        from kvtrace import recorder

        recorder.flush(5.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        main()
