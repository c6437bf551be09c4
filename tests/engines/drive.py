"""The client: sends prompts to vLLM and writes down what a client can know, never any text."""

from __future__ import annotations

import hashlib
import http.client
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.engines import model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engines.prompts import Prompt

REQUEST_TIMEOUT_S = 120
OUTPUT_TOKENS = 12


class EngineError(Exception):
    """The engine ended an answer with an error."""


@dataclass(frozen=True)
class Response:
    """One request as its client saw it; `first_token_ns` is when the first token's line arrived."""

    request_id: str
    response_id: str | None
    prompt: int
    prompt_tokens: int
    max_tokens: int
    status: int
    started_ns: int
    first_token_ns: int | None
    ended_ns: int
    usage: dict[str, object] | None
    answer_digest: str
    """SHA-256 of the answer's text, so that two engines can be compared without keeping it."""


@dataclass
class Client:
    """Numbers its requests req-000, req-001, ... and appends every response to a file."""

    url: str
    output: Path
    cache_url: str = ""
    sent: int = 0
    responses: list[Response] = field(default_factory=list)

    def ask(self, *prompts: Prompt) -> list[Response]:
        """One request after the other."""
        return [self._keep(complete(self.url, self._next_id(), prompt)) for prompt in prompts]

    def ask_at_once(self, *prompts: Prompt) -> list[Response]:
        """All requests together; written in the order of their ids."""
        ids = [self._next_id() for _ in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(complete, [self.url] * len(prompts), ids, prompts))
        return [self._keep(answer) for answer in answers]

    def _next_id(self) -> str:
        self.sent += 1
        return f"req-{self.sent - 1:03d}"

    def _keep(self, response: Response) -> Response:
        self.responses.append(response)
        with self.output.open("a") as lines:
            lines.write(json.dumps(asdict(response)) + "\n")
        return response


def complete(url: str, request_id: str, prompt: Prompt) -> Response:
    """One streamed completion, timed by the wall clock as the engines' spans are."""
    body = {
        "model": model.NAME,
        "prompt": prompt.text(),
        "max_tokens": prompt.answer_tokens or OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    where = urlsplit(url)
    first_token_ns: int | None = None
    response_id: str | None = None
    usage: dict[str, object] | None = None
    digest = hashlib.sha256()
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=REQUEST_TIMEOUT_S)
    with closing(connection):
        started_ns = time.time_ns()
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        for chunk in _chunks(answer):
            if "error" in chunk:
                raise EngineError(str(chunk["error"]))
            first_token_ns = first_token_ns or time.time_ns()
            response_id = str(chunk["id"])
            digest.update(_text(chunk).encode())
            reported = chunk.get("usage")
            usage = reported if isinstance(reported, dict) else usage
        ended_ns = time.time_ns()
    return Response(
        request_id=request_id,
        response_id=response_id,
        prompt=prompt.number,
        prompt_tokens=prompt.tokens,
        max_tokens=prompt.answer_tokens or OUTPUT_TOKENS,
        status=answer.status,
        started_ns=started_ns,
        first_token_ns=first_token_ns,
        ended_ns=ended_ns,
        usage=usage,
        answer_digest=digest.hexdigest(),
    )


def _chunks(answer: http.client.HTTPResponse) -> Iterator[dict[str, object]]:
    """The server-sent events of a streamed answer."""
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])


def _text(chunk: dict[str, object]) -> str:
    choices = chunk.get("choices")
    return "".join(choice.get("text") or "" for choice in choices) if isinstance(choices, list) else ""


def page(url: str, *, method: str = "GET") -> bytes:
    """A metrics or status page as it is."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as response:
        return bytes(response.read())
