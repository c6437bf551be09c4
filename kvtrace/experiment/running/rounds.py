"""One round: the engine's own prefix cache emptied, a warm-up, a pause in which stores may end, the load."""

from __future__ import annotations

import http.client
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError
from kvtrace.experiment.running import children, pages
from kvtrace.experiment.running.commands import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvtrace.experiment.plan import Plan
    from kvtrace.experiment.running.children import Child
    from kvtrace.experiment.running.serving import Serving

RESET = "/reset_prefix_cache"
"""vLLM's, where VLLM_SERVER_DEV_MODE=1 offers it."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Played:
    """A measured round: where its recordings lie, and its times, unix ns.

    began_ns: when its warm-up began; from_ns to to_ns: the measured load; cut_ns: when the backend was
    killed.
    results: what the load generator wrote, where it wrote any.
    """

    group: str
    number: int
    recorded: Path
    results: Path
    began_ns: int
    from_ns: int
    to_ns: int
    cut_ns: int | None
    was_reset: bool


def play(plan: Plan, served: Serving, number: int, say: Callable[[str], None]) -> Played:
    """Play one round to its end.

    Raises:
        UsageError: a command of the load fails or takes too long, the engine ends meanwhile, or the backend
            cannot be disconnected when it should.
    """
    load, name = plan.load, f"{served.group}: round {number}"
    began = time.time_ns()
    was_reset = _reset(served, name, say)
    results = served.folder / "load" / f"{served.group}-{number}.json"
    results.parent.mkdir(exist_ok=True)
    if load.warmup is not None:
        warming = results.with_name(f"{served.group}-{number}-warmup.json")
        with _driving(served, load.warmup, "warmup", number, warming) as under_way:
            children.finish(under_way, seconds=load.timeout_s)
        time.sleep(load.settle_s)
    before = pages.counted(served.port, load.progress) if served.settings.disconnect_at else 0.0
    start = time.time_ns()
    with _driving(served, load.command or "", "command", number, results) as driving:
        cut = _cut(plan, served, driving, before, deadline=time.monotonic() + load.timeout_s)
        children.finish(driving, seconds=load.timeout_s)
    end = time.time_ns()
    if not served.engine.alive():
        raise served.engine.failure(f"ended with {served.engine.process.returncode} in round {number}")
    if cut is None and served.backend is not None and not served.backend.alive():
        raise served.backend.failure(f"ended with {served.backend.process.returncode} in round {number}")
    said = "" if cut is None else f", its backend disconnected after {(cut - start) / 1e9:.1f} s"
    say(f"{name}: {(end - start) / 1e9:.1f} s{said}.")
    return Played(served.group, number, served.recorded, results, began, start, end, cut, was_reset)


def _reset(served: Serving, name: str, say: Callable[[str], None]) -> bool:
    """Empty the engine's own prefix cache; whether it did."""
    path = RESET if served.settings.reset is None else served.settings.reset
    if not path:
        return False
    answer = pages.asked(served.port, path, method="POST")
    done = answer is not None and answer[0] == http.client.OK
    if not done and not name.endswith("round 1"):
        said = "does not answer" if answer is None else f"answers {answer[0]}"
        say(f"{name}: {path} {said}: it begins with the prefix cache that the round before left.")
    return done


@contextmanager
def _driving(served: Serving, command: str, which: str, number: int, results: Path) -> Iterator[Child]:
    """A command of the load under way; with what it started it is ended, whatever happens."""
    values = served.values | {"round": str(number), "out": str(results)}
    words = filled(f"[load] {which}", command, values)
    log = served.folder / "logs" / f"{served.group}-{number}-{which}.log"
    child = children.start(
        f"{served.group} {which}", words, folder=served.folder, log=log, more=served.settings.environment
    )
    try:
        yield child
    finally:
        children.stop(child)


def _cut(plan: Plan, served: Serving, driving: Child, before: float, *, deadline: float) -> int | None:
    """Kill the backend as soon as the share of the load is answered; when, unix ns."""
    share = served.settings.disconnect_at
    if share is None or served.backend is None:
        return None
    wanted = share * (plan.load.requests or 0)
    while share and not _answered(served, plan.load.progress, before + wanted, deadline):
        if not driving.alive() or time.monotonic() > deadline:
            raise driving.failure(
                f"ended before {wanted:g} requests were answered, when the backend was to be disconnected "
                f"([load] requests, progress = {plan.load.progress})"
            )
        time.sleep(_PAUSE_SECONDS)
    at_ns = children.cut_off(served.backend)
    if not driving.alive():
        raise driving.failure("was over before the backend was disconnected; give it more requests")
    return at_ns


def _answered(served: Serving, progress: str, wanted: float, deadline: float) -> bool:
    """Whether so much is counted; a page that does not answer once is asked again while the engine lives."""
    try:
        return pages.counted(served.port, progress) >= wanted
    except UsageError:
        if not served.engine.alive() or time.monotonic() > deadline:
            raise
        return False
