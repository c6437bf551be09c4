"""What vLLM's numbers have in common: which requests they are over, and what their differences consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.analyses.engine_numbers._known import lost, summed, total
from kvtrace.analyses.engine_numbers._number import Cause, Number, in_words, not_reported

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.analyses.engine_numbers._known import Known

    Causes = Callable[[pl.DataFrame], list[Cause]]

SECOND_NS = 1_000_000_000
SLACK_NS = 1_000_000
"""A request: both sides read the clock, a moment apart, and in different places."""
_SLACK = 0.01
"""Of what is reported: the same, of times that are long."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of vLLM and the column of the known requests that says the same.

    `which` are the requests that vLLM counts, a column that is true of them; without one of `only` the engine
    has no such number; `fact` is what `coverage` calls what was measured, `what` are the words for it.
    """

    name: str
    unit: str
    column: str
    what: str
    fact: str
    which: str | None = None
    only: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


def counted(known: Known, counter: Counter, causes: Causes) -> list[Number]:
    """The number of a page of metrics; none where the run has no vLLM."""
    if "vllm" not in known.products | known.reported.products():
        return []
    count = known.reported.count(counter.name, **dict(counter.labels))
    rows = known.vllm(count)
    if count is None and counter.only and not rows.filter(counter.only).height:
        return []
    rows = rows.filter(counter.which) if counter.which else rows
    measured, basis = summed(rows, counter.column, counter.what, counter.fact)
    shown = ",".join(f'{key}="{value}"' for key, value in counter.labels)
    name = f"{counter.name}{{{shown}}}" if shown else counter.name
    reported = None if count is None else whole(count.value * (SECOND_NS if counter.unit == "ns" else 1))
    return [
        Number(
            "vllm", name, counter.unit, reported, measured,
            basis if count is not None else f"{not_reported(name)}; {basis}", rows.height,
            (*causes(rows), *known.doubts(count)),
            slack_ns(reported, rows.height) if counter.unit == "ns" else 0,
        )
    ]  # fmt: skip


def told(
    known: Known, name: str, said: str, counter: Counter, instrument: str, causes: Causes
) -> list[Number]:
    """A number that vLLM tells of each request by itself: over those of which it does."""
    rows = known.vllm()
    if counter.only and not rows.filter(counter.only).height and not rows[said].count():
        return []
    if not rows.height:
        return []
    own = rows.filter(pl.col(said).is_not_null())
    measured, basis = summed(own if own.height else rows, counter.column, counter.what, counter.fact)
    reported = total(own, said) if own.height else None
    doubts = (Cause(None, lost(known.lost)),) if known.lost else ()
    return [
        Number(
            "vllm", name, counter.unit, reported, measured,
            basis if own.height else f"{name} was not reported: {instrument}; {basis}",
            own.height or rows.height, (*causes(own), *doubts),
            slack_ns(reported, own.height) if counter.unit == "ns" else 0,
        )
    ]  # fmt: skip


def slack_ns(reported_ns: int | None, requests: int) -> int:
    """By how much two times over so many requests may differ, and agree."""
    return max(SLACK_NS * requests, round(_SLACK * abs(reported_ns or 0)))


def whole(value: float) -> int | None:
    """The nearest integer; null beyond 64 bits."""
    return round(value) if abs(value) < 2**63 else None


def failed(rows: pl.DataFrame, sign: int = 1) -> Cause:
    """Tokens that were to be loaded and were not used, of loads that failed whole or in part."""
    own = rows.filter(pl.col("failed_loads") > 0, pl.col("unloaded") > 0)
    tokens = total(own, "unloaded")
    loads = many(total(own, "failed_loads"), "failed load")
    return Cause(sign * tokens, f"{in_words(tokens, 'tokens')} of {loads} stay counted and were not used")


def unused(rows: pl.DataFrame, sign: int = 1) -> Cause:
    """Tokens that were to be loaded and were not used, though no load of theirs is known to have failed."""
    tokens = total(rows.filter(pl.col("failed_loads") == 0, pl.col("unloaded") > 0), "unloaded")
    return Cause(sign * tokens, f"{in_words(tokens, 'tokens')} selected and not used, no failed load seen")


def last_tokens(rows: pl.DataFrame, sign: int = 1) -> Cause:
    """The last token of a prompt that was there whole is computed all the same."""
    tokens = total(rows, "lost_last_token")
    said = f"the last token of {many(tokens, 'whole prompt')} was computed all the same"
    return Cause(sign * tokens, said)


def errors(rows: pl.DataFrame) -> list[Cause]:
    """Requests that ended with an error and without a step: vLLM subtracts a time that was never set."""
    found = rows.filter(pl.col("status") == "error", ~pl.col("has_step"))
    if not found.height:
        return []
    loads = total(found, "failed_loads")
    because = f" after {many(loads, 'failed load')}" if loads else ""
    return [
        Cause(
            None,
            f"{many(found.height, 'request')} ended with an error before any step{because}: "
            "what vLLM subtracts of them was never set",
        )
    ]
