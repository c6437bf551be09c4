"""The plugin inside vLLM's API server: every way to ask, and the names of each request.

Minutes: `pytest -m engine`. One start of the server, recorded by `kvtrace run`.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.run import Run, open_run
from tests.engines import model, process
from tests.engines.environment import engine_python, skip_when_missing
from tests.engines.plugin.offline import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.process import Child

pytestmark = pytest.mark.engine
READY_S = 420
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
OPTIONS = {"model": model.NAME, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
PROMPT = " ".join(model.word(number) for number in range(3, 203))
OTHER = " ".join(model.word(number) for number in range(300, 400))


@dataclass(frozen=True)
class Server:
    """A started server, and how to ask it."""

    child: Child
    port: int

    def ask(self, path: str, name: str, **body: Any) -> tuple[int, bytes]:
        """One request with the caller's own id and trace; status and body of the answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            self._send(connection, path, name, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def hang_up(self, path: str, name: str, **body: Any) -> None:
        """A caller that leaves after the first token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        self._send(connection, path, name, {**body, "stream": True})
        connection.getresponse().readline()
        assert connection.sock is None or connection.sock.shutdown(socket.SHUT_RDWR) is None
        connection.close()

    @staticmethod
    def _send(connection: http.client.HTTPConnection, path: str, name: str, body: dict[str, Any]) -> None:
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": name,
            "traceparent": f"00-{TRACE}-f0f067aa0ba902b7-01",
        }
        connection.request("POST", path, json.dumps({**OPTIONS, **body}), headers)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What was recorded while the server was asked in every way."""
    skip_when_missing()
    folder = tmp_path_factory.mktemp("server")
    server = _start(folder)
    try:
        _wait(server)
        _play(server)
    finally:
        process.stop(server.child, grace_s=60)
    return open_run(folder / "run")


def _start(folder: Path) -> Server:
    model.write_model(folder / model.NAME)
    (folder / "template.jinja").write_text(TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "kvtrace", "run", "--out", "run", "--", str(engine_python())]
    command += ["-m", "vllm.entrypoints.openai.api_server", "--model", model.NAME, "--load-format", "dummy"]
    command += ["--dtype", "bfloat16", "--max-model-len", "1024", "--enforce-eager", "--block-size", "128"]
    command += ["--num-gpu-blocks-override", "40", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--chat-template", "template.jinja", "--enable-prompt-tokens-details"]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.getcwd()}  # noqa: PTH109 - where kvtrace is run from
    return Server(process.start("server", command, folder=folder, environment=environment), port)


def _wait(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        server.child.require_alive()
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"the server did not answer within {READY_S} s; see {server.child.log}")


def _play(server: Server) -> None:
    messages = [{"role": "user", "content": OTHER}]
    statuses = [
        server.ask("/v1/completions", "plain", prompt=PROMPT)[0],
        server.ask("/v1/completions", "streamed", prompt=PROMPT, stream=True)[0],
        server.ask("/v1/chat/completions", "chat", messages=messages)[0],
        server.ask("/v1/chat/completions", "chat-streamed", messages=messages, stream=True)[0],
        server.ask("/v1/completions", "two-prompts", prompt=[PROMPT, OTHER])[0],
        server.ask("/v1/completions", "two-answers", prompt=PROMPT, n=2, temperature=1, seed=7)[0],
        server.ask("/v1/completions", "stop-word", prompt=PROMPT, ignore_eos=False, stop=["w"])[0],
    ]
    assert statuses == [200] * 7
    assert server.ask("/v1/completions", "too-long", prompt=PROMPT * 20)[0] == 400
    server.hang_up("/v1/completions", "hung-up", prompt=PROMPT, max_tokens=700)
    time.sleep(2)
    assert server.ask("/v1/completions", "after", prompt=PROMPT)[0] == 200


def _named(run: Run, columns: str = "*") -> dict[str, list[dict[str, Any]]]:
    """Requests by the caller's own id."""
    query = f"SELECT alias, {columns} FROM request JOIN alias USING (request_id) WHERE kind = 'client'"
    found: dict[str, list[dict[str, Any]]] = {}
    for row in run.connection().sql(query).pl().to_dicts():
        found.setdefault(row.pop("alias"), []).append(row)
    return found


def test_every_request_is_there_under_its_callers_name(run: Run) -> None:
    counts = {name: len(rows) for name, rows in _named(run).items()}
    assert counts == {
        "plain": 1, "streamed": 1, "chat": 1, "chat-streamed": 1, "two-prompts": 2, "two-answers": 2,
        "stop-word": 1, "hung-up": 1, "after": 1,
    }  # fmt: skip


def test_every_request_is_in_its_callers_trace(run: Run) -> None:
    query = "SELECT DISTINCT trace_id, parent_span_id FROM span WHERE op = 'request' AND observer = 'api'"
    assert run.connection().sql(query).fetchall() == [(TRACE, 0xF0F067AA0BA902B7)]


def test_names_are_the_servers_own(run: Run) -> None:
    rows = run.connection().sql("SELECT DISTINCT kind, evidence FROM alias ORDER BY kind").fetchall()
    assert rows == [("client", "shim"), ("external", "shim"), ("trace", "shim")]


def test_streamed_or_not_a_request_has_times_and_tokens(run: Run) -> None:
    for name in ("plain", "streamed", "chat", "chat-streamed"):
        (row,) = _named(run)[name]
        assert row["start_ns"] < row["first_token_ns"] < row["end_ns"]
        assert (row["status"], row["output_tokens"], row["observer"]) == ("ok", 8, "api")
        assert row["prompt_tokens"] == (200 if name in ("plain", "streamed") else 100)


def test_a_stop_word_ends_a_request_well(run: Run) -> None:
    (row,) = _named(run)["stop-word"]
    assert row["status"] == "ok"
    assert dict(row["attributes"])["finish_reason"] == "stop"


def test_a_caller_who_hangs_up_aborts_its_request(run: Run) -> None:
    (row,) = _named(run)["hung-up"]
    assert (row["status"], row["reason"]) == ("aborted", "aborted")
    assert 0 < row["output_tokens"] < 700


def test_a_repeat_reports_the_cached_tokens(run: Run) -> None:
    (row,) = _named(run)["after"]
    assert row["reported_cached_tokens"] == row["gpu_hit_tokens"] == 128


def test_the_front_end_of_a_server_is_an_api_process(run: Run) -> None:
    rows = run.connection().sql("SELECT role, instruments FROM process WHERE role = 'api'").pl().to_dicts()
    (row,) = rows
    instruments = dict(row["instruments"])
    assert instruments["AsyncLLM.__init__"] == instruments["names of HTTP requests"] == "active"
    assert not [name for name, why in instruments.items() if why.startswith("not wrapped")]
