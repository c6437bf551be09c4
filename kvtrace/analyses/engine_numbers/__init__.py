"""The question `engine_numbers`: what does an engine say of itself, what was measured, why do both differ?

    <number>.py     one file a number, or numbers of one kind: a function of its own name, known -> numbers
    _known.py       what is known of each request, and which requests a counter covers
    _reported.py    what the pages of metrics count
    _number.py      reported and measured side by side, and what the difference consists of

A number is a file: a new one is found by listing the folder.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers._known import known

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._number import Number
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "engine": pl.String,
        "number": pl.String,
        "unit": pl.String,
        "reported": pl.Int64,
        "measured": pl.Int64,
        "difference": pl.Int64,
        "agrees": pl.Boolean,
        "reason": pl.String,
        "basis": pl.String,
        "requests": pl.Int64,
    }
)

_MOST = 2**62
"""Of two sides below it the difference is one of 64 bits."""


@cache
def numbers() -> tuple[str, ...]:
    """Names of all files of numbers, by listing the folder."""
    names = (entry.name.removesuffix(".py") for entry in files(__name__).iterdir())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def engine_numbers(run: Run) -> pl.DataFrame:
    """Which numbers that an engine reports of itself agree with what was measured, and why do others not?

    A row a number of vLLM and of LMCache, by name, of the engines that are in the run: what their pages of
    metrics counted, what vLLM's request spans say and what its answers tell their callers. Over all engines
    of a product together.

    A counter covers the requests that ended between its first page and its last, or since it was created,
    where its process was watched by then; pages without a time cover all requests. Measured is null unless
    known of each of them. Counters of tokens and requests agree when they are equal, times when they differ
    by less than a millisecond a request, or one part in a hundred: both sides read the clock themselves.

    The reason is what was seen in this run and in no other: failed loads and the tokens that were computed
    again, inquiries that were repeated, loads inside the queue time, finds that the GPU had as well. What
    such parts leave over is said to be unexplained, and so is a difference without any.

    A router's forecast against its worker's report is no number of an engine: see `four_events` and the
    panel predicted_reported. That vLLM's log line has no preemptions is no report of none: its counter is.

    Columns:
        engine: product whose number it is: vllm or lmcache
        number: its name, as the engine writes it, with the labels that matter
        unit: tokens, requests, stores, chunks, bytes, times (how often) or ns
        reported: what the engine says; null where no page, span or answer said it
        measured: what was measured; null where it was not observed of some request
        difference: reported - measured; null where either is
        agrees: whether both are equal (times: nearly); null where either is null
        reason: what the difference consists of, or unexplained; null where both agree or either is null
        basis: what was measured; of null what was not observed, and what would have recorded it
        requests: how many requests were measured
    """
    facts = known(run)
    try:
        found: list[Number] = [
            number
            for name in numbers()
            for number in getattr(importlib.import_module(f"{__name__}.{name}"), name)(facts)
        ]
    finally:
        facts.connection.close()
    rows = [
        (
            one.engine, one.number, one.unit, one.reported, one.measured, one.difference, one.agrees,
            one.reason, one.basis, one.requests,
        )
        for one in map(_stored, found)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=COLUMNS, orient="row").sort("engine", "number", descending=[True, False])


def _stored(number: Number) -> Number:
    """Sides beyond 64 bits are null, and so is what follows from them."""
    reported, measured = (
        None if side is None or abs(side) >= _MOST else side for side in (number.reported, number.measured)
    )
    return replace(number, reported=reported, measured=measured)
