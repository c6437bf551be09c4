"""Engine starts that are recorded by `kvtrace run` alone: what no sample ships, and what ends badly."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.engines import drive
from tests.engines.configuration import FORGETS, HOST_TIMES, Configuration
from tests.engines.leaving import PROGRESS, Copies, leave
from tests.engines.prompts import Prompt, plain
from tests.engines.stack import NATIVE, NATIVE_CACHE, Stack, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.drive import Client

DELAY_S = 0.02
"""How long every copy of the native offloading lasts at least."""

DISTURBED_DELAY_S = 0.5
"""The same once clients leave: long enough to leave in the middle of one."""

GROWING_ANSWER_TOKENS = 240
"""So long that the three are at work at once, however quick the machine: two of them fit to the end."""
GROWING_TOKENS = 1660
"""Three such prompts fill the pool of 39 blocks; with the fifth token of its answer each wants one more."""

LEFT_LOADING = "left-loading"
LEFT_STORING = "left-storing"
"""Ids of the two requests whose clients leave while their state is copied."""

LONG = Prompt(number=60, tokens=3000)
HALF = Prompt(number=60)
"""The first half of the long one."""
LONGER = Prompt(number=3, tokens=2100)
"""All of that prompt, and more than two chunks besides."""
LAYERED_BLOCKS, RECURRENT_BLOCKS = 90, 60
"""Groups of layers share them; with 72 vLLM does not start the windowed model."""
SHORT_TOKENS = 600
"""Two chunks of LMCache's, and a rest."""
L2_PAUSE_S = 3.0
"""What is stored has been copied to L2 by then."""
QUIET_S = 2.0
"""vLLM may kill its EngineCore at once when it stops: after so long all is in the spool, its mark too."""
SETTLE_S = 60.0


@dataclass(frozen=True)
class Played:
    """The run that was recorded, what the client saw, and vLLM's counters after the last request.

    `times` are those that host_offload.py measured of its own copies, an entry a job whose result was handed
    out; `next_poll_ns` is when vLLM asked again after that; `ranks_times` are those of every rank. `cache` is
    the run of the cache server, where there is one. `pages` are vLLM's metrics before the first request and
    after the last, in files beside the run.
    """

    run: Path
    client: Client
    counters: dict[str, float]
    died: bool = False
    times: list[dict[str, int]] = field(default_factory=list)
    cache: Path | None = None
    ranks_times: list[dict[str, int]] = field(default_factory=list)
    pages: list[Path] = field(default_factory=list)


def native_offload(client: Client) -> None:
    """Five prompts through a pool that holds three: the repeats come back from the host, some at once."""
    client.ask(*plain(0, 1, 2, 3, 4, 0, 1))
    client.ask_at_once(*plain(2, 3, 0))
    client.ask_at_once(*plain(4, 1))


def layered(client: Client) -> None:
    """Prompts come back from the host whole; then a long one whose first half the GPU has again."""
    client.ask(*plain(0, 1, 2, 3, 4), LONG, *plain(5, 6, 0, 1, 2, 3))
    client.ask(HALF, LONG)
    client.ask_at_once(*plain(4, 5))


def layered_with_a_fault(client: Client) -> None:
    """The same; then a connector that forgets the first group of layers of its loads, and reports success."""
    layered(client)
    (client.output.parent / FORGETS).write_text("0")
    client.ask(*plain(0))


def batches(client: Client) -> None:
    """Prompts that were stored come back while others are computed: the repeats load inside a shared step."""
    client.ask(*plain(0, 1, 2, 3, 4))
    for fresh, stored in ((10, 0), (11, 1), (12, 2), (13, 3)):
        client.ask_at_once(*plain(fresh, stored))
    client.ask_at_once(*plain(0, 1, 2))


def one_more_than_fit(client: Client) -> None:
    """The pool holds three prompts: the fourth wants blocks whose store goes on."""
    client.ask(*plain(0, 1, 2, 3, 4))


def disturbed(client: Client) -> None:
    """Copies slower than requests; then clients that leave in the middle of one, and a preemption."""
    one_more_than_fit(client)
    copies = Copies(client.output.parent)
    copies.last(DISTURBED_DELAY_S)
    copies.wait_until_idle(5)
    leave(client.url, LEFT_LOADING, plain(0)[0], lambda: copies.under_way(stores=False))
    copies.wait_until_idle(6)
    leave(client.url, LEFT_STORING, plain(20)[0], lambda: copies.under_way(stores=True))
    copies.wait_until_idle(7)
    client.ask_at_once(
        *[
            Prompt(number=number, tokens=GROWING_TOKENS, answer_tokens=GROWING_ANSWER_TOKENS)
            for number in (30, 31, 32)
        ]
    )
    copies.wait_until_idle()


def first_load(client: Client) -> None:
    """Until the first load from the host, whose failure vLLM does not survive."""
    with suppress(OSError, http.client.HTTPException, drive.EngineError):
        client.ask(*plain(0, 1, 2, 3, 4, 0))


def until_death(client: Client) -> None:
    """Repeats until the engine is gone: LMCache's lazy offload raises inside the scheduler.

    It does so when a request ends that had nothing to store. The longer prompt begins as the one before it,
    whose state still waits in the queue: the GPU has it, and the cache has not.
    """
    with suppress(OSError, http.client.HTTPException, drive.EngineError):
        client.ask(*plain(0, 1, 2, 3), LONGER, *plain(0, 1, 0, 1))


def loads_in_part(client: Client) -> None:
    """Two prompts of five chunks and of two go to L2 and nowhere else, then come back.

    The third object of every load fails: of the long prompt two chunks arrive, of the short one both.
    """
    long, short = Prompt(number=0), Prompt(number=20, tokens=SHORT_TOKENS)
    client.ask(long, short, *plain(1, 2, 3, 4))
    time.sleep(L2_PAUSE_S)
    drive.page(f"{client.cache_url}/cache/clear", method="POST")
    client.ask(long, short)


HOST_SPEC = Configuration(connector="native", delay_s=DELAY_S)
FAILS = Configuration(connector="native", delay_s=DELAY_S, fails=5)
"""Five prompts are stored, jobs 0 to 4; the next job is the first load."""
SLOW = Configuration(connector="native", delay_s=3.0)
"""Slower than requests are: blocks are wanted again before their store is over."""
WINDOWED = Configuration(
    connector="native", delay_s=DELAY_S, layers="windowed", gpu_blocks=LAYERED_BLOCKS, shutdown_s=15
)
RECURRENT = replace(WINDOWED, layers="recurrent", gpu_blocks=RECURRENT_BLOCKS)
RANKS = Configuration(connector="native", delay_s=DELAY_S, ranks=2, shutdown_s=15)
RANKS_CACHED = Configuration(l1_gb=0.064, ranks=2, lookup_timeout_s=60, shutdown_s=15)
"""A loaded machine answers the first lookup of two ranks late."""
EXAMPLE = Configuration(connector="example")
MULTI = Configuration(connector="multi", delay_s=DELAY_S)
LAZY = Configuration(l1_gb=0.064, lazy=True)
PARTIAL = Configuration(l1_gb=0.064, l2=True, l2_gap=2, shutdown_s=15)


def play(
    configuration: Configuration,
    scenario: Callable[[Client], None],
    *,
    python: Path,
    out: Path,
    dies: bool = False,
) -> Played:
    """One start of the engines under `kvtrace run`; the run is moved to `out`, the server's beside it."""
    folder = Path(tempfile.mkdtemp(prefix="engines-"))
    try:
        with running(configuration, folder=folder, python=python) as stack:
            client = drive.Client(stack.vllm_url, folder / "responses.jsonl", cache_url=stack.cache_url)
            pages = [_page(stack, out, "before")]
            scenario(client)
            _settle(folder / NATIVE)
            died = dies and stack.engine_died(timeout_s=60)
            if not died:
                pages.append(_page(stack, out, "after"))
            counters = {} if died else _counters(pages[-1].read_text())
        cache = None
        if configuration.kvtrace:
            shutil.move(folder / NATIVE, out)
            if (folder / NATIVE_CACHE).exists():
                cache = out.with_name(f"{out.name}-cache")
                shutil.move(folder / NATIVE_CACHE, cache)
        lines = _lines(folder / HOST_TIMES)
        return Played(out, client, counters, died, _times(folder), cache, lines, pages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settle(run: Path) -> None:
    """Until no process writes to its spool any more: copies go on after their request was answered."""
    deadline = time.monotonic() + SETTLE_S
    quiet_since, before = time.monotonic(), _written(run)
    while time.monotonic() < min(deadline, quiet_since + QUIET_S):
        time.sleep(0.1)
        if (now := _written(run)) != before:
            quiet_since, before = time.monotonic(), now


def _written(run: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (run / "spool").glob("*") if path.is_file()}


def _times(folder: Path) -> list[dict[str, int]]:
    told: dict[int, dict[str, int]] = {}
    for name in (PROGRESS, HOST_TIMES):
        for each in _lines(folder / name):
            told.setdefault(each["job"], {}).update(each)
    return [each for each in told.values() if "reported_ns" in each]


def _lines(path: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _page(stack: Stack, out: Path, moment: str) -> Path:
    """VLLM's page of metrics as it is now, in a file beside the run."""
    path = out.with_name(f"{out.name}-metrics-{moment}.txt")
    path.write_bytes(drive.page(f"{stack.vllm_url}/metrics"))
    return path


def with_pages(played: Played) -> Run:
    """The run together with its pages of metrics."""
    path = played.run.with_name(f"{played.run.name}-counted")
    if not path.exists():
        import_files([played.run, *played.pages], path)
    return open_run(path)


def _counters(page: str) -> dict[str, float]:
    """Sums of vLLM's counters over their labels, and each with its label where it has one."""
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(vllm:\w+_total)\{(.*)\} (\S+)$", page, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
        if source := re.search(r'source="(\w+)"', labels):
            found[f"{name}:{source[1]}"] = float(value)
    return found
