"""Clients that go away before their answer is there, in a moment that the copies of their state decide."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.engines import model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engines.prompts import Prompt

PROGRESS = "host-progress.jsonl"
"""Where host_offload.py says at once how far its copies are."""
DELAY = "host-delay"
"""Where it looks how long those that begin now shall last."""
PATIENCE_S = 90.0
OUTPUT_TOKENS = 400
"""So many that nobody who leaves has got his answer."""


@dataclass(frozen=True)
class Copies:
    """The copies of the native offloading of a running engine, as host_offload.py tells of them."""

    folder: Path

    def last(self, delay_s: float) -> None:
        """Copies that begin from now on last so long."""
        complete = self.folder / f"{DELAY}.new"
        complete.write_text(str(delay_s))
        complete.rename(self.folder / DELAY)

    def told(self) -> dict[int, dict[str, int]]:
        """What is known of each job by now."""
        found: dict[int, dict[str, int]] = {}
        path = self.folder / PROGRESS
        for line in path.read_text().splitlines() if path.exists() else []:
            said = json.loads(line)
            found.setdefault(said["job"], {}).update(said)
        return found

    def wait_until_idle(self, jobs: int = 0) -> None:
        """No copy is under way, and the worker has reported each, so many at least.

        A store is submitted a step after its request's: the last one may not be there yet.
        """

        def idle() -> bool:
            told = self.told()
            return len(told) >= jobs and all("reported" in each for each in told.values())

        wait_for(idle, "idle copies")

    def under_way(self, *, stores: bool) -> bool:
        """Whether a copy in this direction has begun and its result was not handed out."""
        return any(
            each["stores"] == stores and "copies" in each and "reported" not in each
            for each in self.told().values()
        )


def wait_for(happens: Callable[[], bool], what: str) -> None:
    """Until it has happened; raises when it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {what} for {PATIENCE_S} s")
        time.sleep(0.005)


def leave(url: str, request_id: str, prompt: Prompt, happens: Callable[[], bool]) -> None:
    """Ask for a long answer, and hang up as soon as something has happened."""
    body = {
        "model": model.NAME,
        "prompt": prompt.text(),
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    where = urlsplit(url)
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)) as asked:
        asked.request("POST", "/v1/completions", json.dumps(body), headers)
        wait_for(happens, request_id)
