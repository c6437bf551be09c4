"""The thread that decodes what arrived and stages it: one, so that decoders and staging need no locks.

Decoders are those of `kvtrace import`, and drop content as they do; nothing that arrived is kept as it came.
"""

from __future__ import annotations

import threading
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.collect.intake import Intake, Item
    from kvtrace.importer.staging import Staging

MAX_LOSSES = 10_000
"""Losses that are told apart; beyond that, those of a source and cause are one."""


class Source(Protocol):
    """Something that sends while it lasts. Its decoding happens in the feeding thread alone."""

    name: str
    format: str
    spans: int
    other_rows: int
    notes: dict[str, None]

    def take(self, items: list[Item], staging: Staging) -> None:
        """Decode what came, in order, and stage it."""

    def finish(self, staging: Staging) -> None:
        """Stage what waits for the end, and what is missing."""

    @property
    def came(self) -> bool:
        """Whether anything at all arrived."""

    @property
    def promised(self) -> str:
        """What was to come, for a person who waits for it."""


class Feeding:
    """Takes from the queue until it is closed and empty."""

    def __init__(self, intake: Intake, staging: Staging) -> None:
        self._intake = intake
        self._staging = staging
        self.failure: OSError | None = None
        self._thread = threading.Thread(target=self._work, name="kvtrace-collect", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all that arrived is staged.

        Raises:
            OSError: the disk is full, or read-only.
        """
        self._intake.close()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        while items := self._intake.take():
            for source, group in groupby(items, key=attrgetter("source")):
                if self.failure is None:
                    self._feed(source, list(group))

    def _feed(self, source: Source, items: list[Item]) -> None:
        try:
            source.take(items, self._staging)
        except OSError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - one source's bad luck must not end the others
            detail = f"messages that no decoder could take ({type(error).__name__})"
            self._staging.losses.append(Loss(source.name, "undecodable", len(items), detail=detail))
        if len(self._staging.losses) > 2 * MAX_LOSSES:
            self._staging.losses = merged(self._staging.losses)


def merged(losses: Iterable[Loss]) -> list[Loss]:
    """Losses of one source, cause, process and detail as one: a source that lasts gives many alike."""
    found = _merged(losses, ("source", "cause", "process", "op", "detail"))
    return found if len(found) <= MAX_LOSSES else _merged(found, ("source", "cause", "op"))


def _merged(losses: Iterable[Loss], names: tuple[str, ...]) -> list[Loss]:
    found: dict[tuple[object, ...], Loss] = {}
    for loss in losses:
        key = tuple(getattr(loss, name) for name in names)
        known = found.get(key)
        found[key] = loss if known is None else _both(known, loss)
    return list(found.values())


def _both(one: Loss, other: Loss) -> Loss:
    """Their sum; a time that one of them does not know, both do not."""
    pairs = ((one.from_ns, other.from_ns, min), (one.to_ns, other.to_ns, max))
    first, last = (None if a is None or b is None else choose(a, b) for a, b, choose in pairs)
    process = one.process if one.process == other.process else None
    detail = one.detail if one.detail == other.detail else None
    return Loss(one.source, one.cause, one.count + other.count, process, one.op, first, last, detail)
