"""Stands in for an engine, its cache and its clients: real processes that answer and record.

serve PORT [--dies-at N]     answers /health, /ask?id=ID, /metrics, POST /reset_prefix_cache; records each
                             request as an engine would, with a store that it completes at once
cache PORT                   listens, records a block event a second, waits to be ended
load BASE_URL PREFIX COUNT   asks so many requests, one after the other; writes their ids to --out
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from kvtrace import recorder

REQUEST = recorder.shape(
    "span",
    ("request_id", "start_ns", "first_token_ns", "end_ns", "prompt_tokens", "output_tokens", "status"),
    op="request", observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
STORE = recorder.shape(
    "span", ("request_id", "transfer_id", "submit_ns", "start_ns", "end_ns", "bytes", "tokens"),
    op="store", tier_from="gpu", tier_to="host", observer="worker", evidence="shim", outcome="ok",
    attribution="request",
)  # fmt: skip
ALIAS = recorder.shape("alias", ("alias", "request_id"), kind="client", source="stand-in", evidence="shim")


class Engine(BaseHTTPRequestHandler):
    """Counts what it answered; the client's id gets a suffix of ours, as in vLLM."""

    answered = 0
    resets = 0
    pause_s = 0.0
    late_s = 0.0

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if where.path == "/ask":
            self._ask(where.query.partition("=")[2])
        text = f'asked_total{{a="b"}} {Engine.answered}\nresets {Engine.resets}\n'
        self._answer(text if where.path == "/metrics" else "ok")

    def do_POST(self) -> None:
        Engine.resets += 1
        self._answer("ok")

    def _ask(self, name: str) -> None:
        started = recorder.now()
        time.sleep(Engine.pause_s)
        own, ended = f"{name}-{Engine.answered:04x}", recorder.now()
        recorder.record((ALIAS, name, own))
        recorder.record((REQUEST, own, started, started + 1000, ended, 8, 2, "ok"))
        late = int(Engine.late_s * 1e9)
        recorder.record((STORE, own, own, started, started, ended + late, 100, 8))
        recorder.flush()
        Engine.answered += 1

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(port: int, told: argparse.Namespace) -> None:
    recorder.describe(engine="stand-in-0", role="scheduler", product="stand-in", version="1.0")
    Engine.pause_s, Engine.late_s = told.pause, told.late
    server = HTTPServer(("127.0.0.1", port), Engine)
    if told.dies_at is not None:
        threading.Thread(target=_die, args=(told.dies_at,), daemon=True).start()
    print("serving", flush=True)
    server.serve_forever()


def _die(after: int) -> None:
    while Engine.answered < after:
        time.sleep(0.005)
    os._exit(3)


def cache(port: int) -> None:
    recorder.describe(engine="cache-0", role="server", product="stand-in-cache", version="1.0")
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(0.2)
        while True:
            try:
                listening.accept()[0].close()
            except TimeoutError:
                continue


def load(url: str, prefix: str, count: int, told: argparse.Namespace) -> None:
    place = urlsplit(url)
    for number in range(count):
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        connection.request("GET", f"/ask?id={prefix}{number}")
        assert connection.getresponse().read() == b"ok"
        connection.close()
    if told.out:
        Path(told.out).write_text(json.dumps({"asked": count}))
    if told.fails:
        raise SystemExit("the load could not be driven")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("serve", "cache", "load"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--late", type=float, default=0.0, help="stores end so long after their request")
    parser.add_argument("--dies-at", type=int)
    parser.add_argument("--out")
    parser.add_argument("--fails", action="store_true")
    told = parser.parse_args()
    if told.what == "serve":
        serve(int(told.words[0]), told)
    elif told.what == "cache":
        cache(int(told.words[0]))
    else:
        load(told.words[0], told.words[1], int(told.words[2]), told)


if __name__ == "__main__":
    main()
