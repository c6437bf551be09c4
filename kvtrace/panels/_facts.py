"""What is in a run, what was lost and what nobody observed, in sentences: the first thing a page says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.panels._text import count, duration, listed, many, visible
from kvtrace.schema.vocabulary import LOSS_CAUSES

if TYPE_CHECKING:
    from kvtrace.run import Run

MOST_LINES = 12
_WORDS = {
    "step": ("step", "steps"), "lookup": ("lookup", "lookups"), "load": ("load", "loads"), "store": ("store", "stores"),
    "wait": ("wait", "waits"), "queue": ("queue interval", "queue intervals"),
    "hold": ("hold of GPU blocks", "holds of GPU blocks"), "drop": ("dropped store", "dropped stores"),
}  # fmt: skip
_BOUNDING = frozenset({None, "step", "queue", "wait"})

_LOSSES = """
SELECT cause, op, process, source, sum(count)::BIGINT AS count, min(from_ns) AS from_ns, max(to_ns) AS to_ns, min(detail) AS detail
FROM loss GROUP BY cause, op, process, source ORDER BY cause = 'duplicate', sum(count) DESC, cause, op, process, source
"""


@dataclass(frozen=True)
class Unseen:
    """One instrument that was not there, and what it would have shown."""

    instrument: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Facts:
    """What a page says about a run before it draws anything; all of it plain text."""

    name: str
    chips: tuple[tuple[str, str], ...]
    seen: tuple[str, ...]
    lost: tuple[str, ...]
    harmless: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    observed: str


def facts(run: Run) -> Facts:
    """What is in this run, what was lost, and what was not observed?"""
    from kvtrace.analyses.coverage import coverage  # noqa: PLC0415 - only when asked
    from kvtrace.analyses.inventory import inventory  # noqa: PLC0415

    stock = inventory(run)
    known = coverage(run)
    losses = run.connection().sql(_LOSSES).pl()
    lost, harmless = _lost(losses)
    return Facts(
        name=visible(run.meta.get("name") or run.path.name),
        chips=_chips(stock, run.meta), seen=_seen(stock, run.meta), lost=lost, harmless=harmless,
        unseen=_unseen(known), observed=f"{int(known['observed'].sum())} of {known.height}",
    )  # fmt: skip


def _values(stock: pl.DataFrame, what: str) -> dict[str, int]:
    rows = stock.filter(pl.col("what") == what, pl.col("value").is_not_null())
    return {row["name"]: row["value"] for row in rows.iter_rows(named=True)}


def _engines(stock: pl.DataFrame) -> list[str]:
    """Engines as run.json has them, else the products that the processes named."""
    named = stock.filter(pl.col("what") == "engine") if (stock["what"] == "engine").any() else stock.filter(pl.col("what") == "product")
    return [
        visible(" ".join(filter(None, [row["name"], (row["detail"] or "").split(",")[0]]))) for row in named.iter_rows(named=True)
    ]


def _moment(ns: int, *, day: bool = True) -> str:
    moment = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if day else f"{moment:%H:%M:%S} UTC"


def _origin(meta: dict[str, Any]) -> tuple[str, str]:
    """Whether anything is synthetic: short, and as a sentence."""
    value = meta.get("synthetic")
    if value is False:
        return "real recording", "Nothing in it is synthetic: real engines wrote it."
    if value is None:
        return "not stated", "Nobody said whether anything in it is synthetic (run.json: synthetic)."
    more = f": {visible(value, 300)}" if isinstance(value, str) else ""
    return "synthetic", f"It is synthetic{more}; it says nothing about a real engine."


def _chips(stock: pl.DataFrame, meta: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    requests, time = _values(stock, "requests"), _values(stock, "time")
    chips = [("engines", listed(_engines(stock), 4) or "not stated"), ("requests", count(requests.get("total")))]
    if "duration_ns" in time:
        chips += [("recorded over", duration(time["duration_ns"])), ("from", _moment(time["first_ns"]))]
    return (*chips, ("data", _origin(meta)[0]))


def _seen(stock: pl.DataFrame, meta: dict[str, Any]) -> tuple[str, ...]:
    """What is there, in a few sentences."""
    requests, time, spans = _values(stock, "requests"), _values(stock, "time"), _values(stock, "spans")
    if "duration_ns" not in time:
        return ("This run holds no timed record at all.", _origin(meta)[1])
    total, started = requests.get("total", 0), requests.get("with_first_token", 0)
    first = f"{many(total, 'request')} over {duration(time['duration_ns'])}, {_moment(time['first_ns'])} to {_moment(time['last_ns'], day=False)}"
    engines = _engines(stock)
    said = [first + (f", on {listed(engines)}." if engines else ", on engines that did not give their names.")]
    if total:
        still = requests.get("open", 0)
        token = "Every one has" if started == total else f"{started:,} of them have" if started else "None has"
        finish = "all of them finished" if not still else f"{still:,} never finished, as far as was recorded"
        said.append(f"{token} an observed first token; {finish}.")
    there = [many(spans[op], *words) for op, words in _WORDS.items() if spans.get(op)]
    absent = [words[1] for op, words in _WORDS.items() if not spans.get(op) and op != "drop"]
    if there:
        said.append(f"Recorded beside them: {listed(there, 9)}." + (f" No {listed(absent, 9).replace(' and ', ' or ')}." if absent else ""))
    unknown = sum(_values(stock, "spans_no_rule_knows").values())
    if unknown:
        said.append(f"{many(unknown, 'span')} of kinds that kvtrace does not know are kept and counted nowhere.")
    how = meta.get("captured") or meta.get("capture")
    if how:
        said.append(f"How it was captured: {visible(how if isinstance(how, str) else str(how), 600)}")
    said.append(_origin(meta)[1])
    return tuple(said)


def _lost(losses: pl.DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A sentence a loss with its consequence; what arrived twice is named apart, as no loss."""
    lost, harmless = [], []
    for row in losses.iter_rows(named=True):
        (harmless if row["cause"] == "duplicate" else lost).append(_loss(row))
    return tuple(_cut(lost)), tuple(_cut(harmless))


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"And {more:,} more kinds of the same: kvtrace sql RUN \"SELECT * FROM loss\"."]


def _loss(row: dict[str, Any]) -> str:
    op, known = row["op"], row["process"] is not None
    what = f"{row['count']:,} {'record' if op is None else op + ' record'}{'' if row['count'] == 1 else 's'}"
    where = f"of {visible(row['process'])}" if known else "of a process that cannot be named"
    source = f" ({visible(row['source'])})" if row["source"] else ""
    cause = f"{what} {where}{source}: {row['cause'].replace('_', ' ')}, {LOSS_CAUSES.get(row['cause'], 'for an unknown reason')}."
    if row["cause"] == "duplicate":
        return cause
    if op in _BOUNDING:
        return f"{cause} Windows that overlap the gap become upper bounds, and no check of this run can prove a pass."
    return f"{cause} Sums and counts of {_WORDS[op][1] if op in _WORDS else f'op {visible(op)}'} are at least what is shown."


def _unseen(known: pl.DataFrame) -> tuple[Unseen, ...]:
    """Facts that nobody recorded, by the instrument that would have."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for row in known.filter(~pl.col("observed")).iter_rows(named=True):
        grouped.setdefault(row["instrument"], []).append((row["fact"].replace("_", " "), row["consequence"]))
    return tuple(Unseen(instrument, tuple(facts)) for instrument, facts in grouped.items())
