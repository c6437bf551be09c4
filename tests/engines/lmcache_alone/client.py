"""Plays one scenario against a running server, in the engines' environment; the last line it prints is JSON.

    python client.py RPC_URL HTTP_URL SCENARIO

LMCache's own benchmark client does the talking (`lmcache bench server`), two tensor-parallel ranks of it.
"""

import copy
import json
import sys
import threading
import time
import urllib.request

from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
from lmcache.cli.commands.bench.server_bench.config import BenchConfig
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

SHAPE = "(2,64,16,2,16):float16:2"
LARGE_SHAPE = "(2,64,16,8,128):float16:16"  # so large that a copy lasts for milliseconds


class Client:
    """One benchmark client and the server's HTTP front end."""

    def __init__(self, rpc, http, *, shape=SHAPE, transfer_mode="lmcache_driven"):
        self.http = http
        self.bench = ServerBenchClient(
            BenchConfig(
                rpc_url=rpc, http_url=http, mode="cpu", transfer_mode=transfer_mode, tp_size=2,
                use_mla=False, num_tokens=192, kvcache_shape_spec=shape, num_blocks=64, block_size=16,
            ),
            lambda said: print(said, flush=True),
        )  # fmt: skip
        self.bench.start()
        self.ranks = []
        for worker in self.bench._workers:
            own = copy.copy(self.bench)  # a connection a rank: the server gives each a thread of its own
            own._req_client = RequestClientFactory.create(rpc, context=self.bench._zmq_context)
            own._workers = [worker]
            self.ranks.append(own)

    def close(self):
        """Every connection, then the memory."""
        for own in self.ranks:
            own._req_client.close()
        self.bench.close()

    def ask(self, number, name):
        return self.bench.create_request(number, name, name)

    def page(self, path, method="GET"):
        asked = urllib.request.Request(self.http + path, method=method)
        with urllib.request.urlopen(asked, timeout=10) as response:
            return json.load(response)

    def cold(self, number, name):
        """Look up, store everything, end."""
        request = self.ask(number, name)
        found = self.bench.lookup(request).hit_chunks
        self.bench.store(request, 0, request.num_full_tokens)
        self.bench.end_session(request)
        time.sleep(0.5)  # the server ends its write after it has answered
        return found

    def warm(self, number, name, *, pause_s=0.0):
        """Look up, wait, retrieve what was found, end; (chunks found, ranks whose retrieve failed)."""
        request = self.ask(number, name)
        found = self.bench.lookup(request).hit_chunks
        time.sleep(pause_s)
        moved = self.bench.retrieve(request, 0, found * request.chunk_size)
        self.bench.end_session(request)
        return found, list(moved.failed_worker_ranks) if moved else []

    def empty_first_level(self):
        """What is in L2 only is what a later lookup has to load."""
        time.sleep(1.0)  # stores to L2 have been made by then
        self.page("/cache/clear", "POST")

    def at_once(self, what, request):
        """The same call from both ranks at the same time."""
        meet = threading.Barrier(2)

        def one(own):
            meet.wait()
            getattr(own, what)(request, 0, request.num_full_tokens)

        threads = [threading.Thread(target=one, args=(own,)) for own in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def plain(client):
    """Two prompts cold and warm, then again from L2."""
    client.cold(0, "cold-0")
    client.cold(1, "cold-1")
    client.warm(0, "warm-0")
    client.empty_first_level()
    return {"from_l2": client.warm(1, "below-1")}


def overlap(client):
    """Both ranks store at once, then both retrieve at once."""
    for number in range(8):
        request = client.ask(number, f"both-{number}")
        client.bench.lookup(request)
        client.at_once("store", request)
        client.bench.end_session(request)
        time.sleep(0.2)
        again = client.ask(number, f"again-{number}")
        client.bench.lookup(again)
        client.at_once("retrieve", again)
        client.bench.end_session(again)
    return {}


def fails(client):
    """What L2 holds cannot be loaded in part."""
    client.cold(0, "cold-0")
    client.empty_first_level()
    return {"found": client.warm(0, "partly-0")}


def held(client):
    """A lookup is held for longer than its locks live."""
    client.cold(0, "cold-0")
    soon = client.warm(0, "soon-0")
    return {"soon": soon, "late": client.warm(0, "late-0", pause_s=3.0)}


def hung(client):
    """L2 never answers: a lookup is given up, and the server calls itself healthy."""
    request = client.ask(0, "hung-0")
    found = client.bench.lookup(request).hit_chunks
    status = client.page("/status")
    return {
        "found": found,
        "healthy": status["is_healthy"],
        "active": status["active_prefetch_jobs"],
        "page": client.page("/healthcheck"),
        "threads": client.page("/periodic-threads-health"),
    }


def main():
    """Play it."""
    rpc, http, name = sys.argv[1:]
    mode = "engine_driven" if name == "engine_driven" else "lmcache_driven"
    client = Client(rpc, http, shape=LARGE_SHAPE if name == "overlap" else SHAPE, transfer_mode=mode)
    scenarios = {"plain": plain, "overlap": overlap, "fails": fails, "held": held, "hung": hung,
                 "engine_driven": plain}  # fmt: skip
    try:
        said = scenarios[name](client)
    finally:
        client.close()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
