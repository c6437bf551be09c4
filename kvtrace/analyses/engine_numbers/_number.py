"""One number that an engine reports, what was measured beside it, and what the difference consists of."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvtrace.analyses._text import duration, many

UNITS = {
    name: name.removesuffix("s") for name in ("tokens", "requests", "stores", "chunks", "times", "bytes")
}
"""Unit of a number -> its singular; ns are written as times."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the difference: seen in the run, in the number's unit, and in words.

    `amount` is None where what was seen explains something, but not how much.
    """

    amount: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """Reported and measured side by side; None is not observed, and then `basis` names what was missing.

    Both agree when they differ by no more than `slack`: clocks are read twice.
    """

    engine: str
    number: str
    unit: str
    reported: int | None
    measured: int | None
    basis: str
    requests: int | None
    causes: tuple[Cause, ...] = ()
    slack: int = 0

    @property
    def difference(self) -> int | None:
        """Reported - measured, in the unit."""
        if self.reported is None or self.measured is None:
            return None
        return self.reported - self.measured

    @property
    def agrees(self) -> bool | None:
        """Whether the difference is none, or as small as clocks make it."""
        return None if self.difference is None else abs(self.difference) <= self.slack

    @property
    def reason(self) -> str | None:
        """What the difference consists of, as far as the run shows it."""
        if self.difference is None or self.agrees:
            return None
        exact = [(cause.amount, cause.text) for cause in self.causes if cause.amount]
        vague = [cause.text for cause in self.causes if cause.amount is None]
        rest = self.difference - sum(amount for amount, _ in exact)
        said = [text for _, text in exact]
        if abs(rest) > self.slack:
            said += vague or [f"{in_words(rest, self.unit)} unexplained" if exact else "unexplained"]
        return "; ".join(said)


def in_words(value: int, unit: str) -> str:
    """A number and its unit in words: 48 tokens, 1 request, 12.5 ms."""
    return duration(value) if unit == "ns" else many(value, UNITS[unit])


@cache
def instrument(fact: str) -> str:
    """What would have recorded a fact, as `coverage` says it."""
    text = files("kvtrace.analyses").joinpath("coverage.toml").read_text(encoding="utf-8")
    (found,) = (entry["instrument"] for entry in tomllib.loads(text)["fact"] if entry["fact"] == fact)
    return str(found)


def not_reported(name: str) -> str:
    """Words for a number that no page of metrics showed."""
    return f"{name} was not reported: {instrument('metrics')}"


def not_measured(what: str, fact: str, unknown: int, of: int) -> str:
    """Words for what is not known of some requests, or of all, or because there are none."""
    whose = f"of {unknown:,} of {of:,} requests" if of else "of any request"
    return f"{what} was not measured {whose}: {instrument(fact)}"
