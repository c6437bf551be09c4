"""kvtrace collect: receives and polls what engines export while they run, and writes a run at the end.

    addresses.py   where it listens: this machine alone, or with a token; ports are not shared
    otlp/          OTLP traces and metrics over gRPC and HTTP; logs are counted and dropped
    streams/       KV events: ZeroMQ subscriptions, gaps filled by replays, Dynamo's event plane
    pages/         metric pages and status pages, polled
    settings.py    what was asked for; starting.py starts it, or nothing
    intake.py      the bounded queue that all of them fill
    feeding.py     the one thread that decodes and stages, with the importer's decoders and staging
    closing.py     the end: the importer's joins and tables, and what each source gave

What arrives is decoded within moments, content dropped, and staged on disk beside the run
(`.RUN.collecting-*`); the run itself appears when collecting ends: SIGINT, SIGTERM or --for. A SIGKILL, or a
machine that goes down, leaves that folder and no run: it holds rows without content, nothing reads it again,
and it can be deleted.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kvtrace.collect.closing import CollectReport, close
from kvtrace.collect.feeding import Feeding
from kvtrace.collect.intake import Intake
from kvtrace.collect.settings import MAX_MESSAGE_BYTES, Settings, check
from kvtrace.collect.starting import start
from kvtrace.importer.placing import building
from kvtrace.importer.staging import Staging

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from kvtrace.collect.feeding import Source

__all__ = ["MAX_MESSAGE_BYTES", "CollectReport", "Settings", "collect"]

SILENT_SECONDS = 30.0
"""A source from which nothing came for so long is named, once."""


def collect(
    settings: Settings,
    stop: threading.Event,
    *,
    listening: Callable[[str], None],
    say: Callable[[str], None],
) -> CollectReport:
    """Collect until `stop` is set, or the time is over, and write the run.

    `listening` gets a line a listener as soon as it listens; `say` gets sentences for a person.

    Raises:
        UsageError: no source, or an address that is none, is taken, or is open to others without a token.
        RunExistsError, RunError: `out` exists, or cannot be written.
    """
    check(settings)
    with building(settings.out, "collecting") as folder, ExitStack() as ending:
        staging = Staging(folder / "staging", lasting=True)
        intake = Intake()
        ending.callback(intake.close)
        started = start(settings, intake)
        ending.enter_context(started.running)
        feeding = Feeding(intake, staging)
        for line in started.listening:
            listening(line)
        _wait(settings, stop, started.sources, feeding, say)
        started.running.close()
        feeding.join()
        return close(settings, folder, staging, started.sources)


def _wait(
    settings: Settings,
    stop: threading.Event,
    sources: Sequence[Source],
    feeding: Feeding,
    say: Callable[[str], None],
) -> None:
    """Until it is over; sources that stay silent are named once."""
    began = time.monotonic()
    end = None if settings.for_seconds is None else began + settings.for_seconds
    silent: float | None = began + SILENT_SECONDS
    while not stop.is_set() and feeding.failure is None:
        now = time.monotonic()
        if end is not None and now >= end:
            return
        if silent is not None and now >= silent:
            silent = None
            for source in sources:
                if not source.came:
                    say(f"{source.name}: nothing came in {SILENT_SECONDS:.0f} s; {source.promised}.")
        stop.wait(min(1.0, end - now) if end is not None else 1.0)
