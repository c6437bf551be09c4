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
    "step": ("step", "steps"),
    "lookup": ("lookup", "lookups"),
    "load": ("load", "loads"),
    "store": ("store", "stores"),
    "wait": ("wait", "waits"),
    "queue": ("queue interval", "queue intervals"),
    "hold": ("hold of GPU blocks", "holds of GPU blocks"),
    "drop": ("dropped store", "dropped stores"),
}
_BOUNDING = frozenset({None, "step", "queue", "wait"})

_LOSSES = """
SELECT cause, op, process, source, sum(count)::BIGINT AS count, min(detail) AS detail
FROM loss
GROUP BY cause, op, process, source
ORDER BY sum(count) DESC, cause, op, process, source
"""

_SCHEDULERS = """
SELECT DISTINCT process FROM span
WHERE process IS NOT NULL AND (observer = 'scheduler' OR op IN ('step', 'queue'))
"""
"""Processes whose losses make a window's bound an upper one."""


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
    partly: tuple[str, ...]
    observed: str
    captured: str | None


def facts(run: Run) -> Facts:
    """What is in this run, what was lost, and what was not observed."""
    from kvtrace.analyses.coverage import coverage
    from kvtrace.analyses.inventory import inventory

    stock = inventory(run)
    known = coverage(run)
    losses = run.connection().sql(_LOSSES).pl()
    lost, harmless = _lost(losses, set(run.connection().sql(_SCHEDULERS).pl()["process"].to_list()))
    return Facts(
        name=visible(_recording(run.meta).get("scenario") or run.path.name),
        chips=_chips(stock, run.meta),
        seen=_seen(stock, run.meta),
        lost=lost,
        harmless=harmless,
        unseen=_unseen(known),
        partly=_partly(known),
        observed=f"{int(known['observed'].sum())} of {known.height}",
        captured=_told(run.meta, "captured"),
    )


def _values(stock: pl.DataFrame, what: str) -> dict[str, int]:
    rows = stock.filter(pl.col("what") == what, pl.col("value").is_not_null())
    return {row["name"]: row["value"] for row in rows.iter_rows(named=True)}


def _engines(stock: pl.DataFrame) -> list[str]:
    """Engines as run.json has them, else the products that the processes named."""
    named = (
        stock.filter(pl.col("what") == "engine")
        if (stock["what"] == "engine").any()
        else stock.filter(pl.col("what") == "product")
    )
    return [
        visible(" ".join(filter(None, [row["name"], (row["detail"] or "").split(",")[0]])))
        for row in named.iter_rows(named=True)
    ]


def _moment(ns: int, *, day: bool = True) -> str:
    moment = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if day else f"{moment:%H:%M:%S} UTC"


def _recording(meta: dict[str, Any]) -> dict[str, Any]:
    """What the recorder wrote down about the recording, if it did."""
    described = meta.get("recording")
    return described if isinstance(described, dict) else {}


def _told(meta: dict[str, Any], word: str) -> str | None:
    text = _recording(meta).get(word)
    return visible(text, 2000) if isinstance(text, str) else None


def _origin(meta: dict[str, Any]) -> tuple[str, str]:
    """Whether anything is synthetic: short, and as a sentence."""
    value = meta.get("synthetic")
    if value is False:
        return "real recording", "Nothing in it is synthetic: real engines wrote it."
    if value is None:
        return "not stated", "Nobody said whether anything in it is synthetic (run.json: synthetic)."
    more = f": {visible(value, 300)}" if isinstance(value, str) else ""
    return "synthetic", f"It is synthetic{more}; it says nothing about a real engine."


def _blended(stock: pl.DataFrame) -> list[tuple[str, str]]:
    """That hits and loads of this run are of reuse that nobody compared with a full computation."""
    rows = stock.filter(what="run", name="blended")["value"].to_list()
    return (
        [("blended", f"{many(rows[0], 'request')}, unverified" if rows[0] else "unverified")] if rows else []
    )


def _chips(stock: pl.DataFrame, meta: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    requests, time = _values(stock, "requests"), _values(stock, "time")
    chips = [
        ("engines", listed(_engines(stock), 4) or "not stated"),
        ("requests", count(requests.get("total"))),
    ]
    chips += _blended(stock)
    if "duration_ns" in time:
        chips += [("recorded over", duration(time["duration_ns"])), ("from", _moment(time["first_ns"]))]
    return (*chips, ("data", _origin(meta)[0]))


def _seen(stock: pl.DataFrame, meta: dict[str, Any]) -> tuple[str, ...]:
    """What is there, in a few sentences."""
    requests, time, spans = _values(stock, "requests"), _values(stock, "time"), _values(stock, "spans")
    if "duration_ns" not in time:
        return ("This run holds no timed record at all.", _origin(meta)[1])
    total, started = requests.get("total", 0), requests.get("with_first_token", 0)
    when = f"{_moment(time['first_ns'])} to {_moment(time['last_ns'], day=False)}"
    first = f"{many(total, 'request')} over {duration(time['duration_ns'])}, {when}"
    engines = _engines(stock)
    said = [
        first + (f", on {listed(engines)}." if engines else ", on engines that did not give their names.")
    ]
    if total:
        still = requests.get("open", 0)
        token = (
            "Every one has" if started == total else f"{started:,} of them have" if started else "None has"
        )
        finish = "all of them finished" if not still else f"{still:,} never finished, as far as was recorded"
        said.append(f"{token} an observed first token; {finish}.")
    there = [many(spans[op], *words) for op, words in _WORDS.items() if spans.get(op)]
    absent = [words[1] for op, words in _WORDS.items() if not spans.get(op) and op != "drop"]
    if there:
        said.append(
            f"Recorded beside them: {listed(there, 9)}."
            + (f" No {listed(absent, 9).replace(' and ', ' or ')}." if absent else "")
        )
    for _, words in _blended(stock):
        said.append(
            f"It was blended ({words}): chunks that are no prefix were reused, which is not exact. Hits, "
            "loads and room saved stay unverified until kvtrace analyze blend compares the answers."
        )
    unknown = sum(_values(stock, "spans_without_op").values())
    if unknown:
        said.append(
            f"{many(unknown, 'span')} without an operation that kvtrace knows: kept as rows with op null, "
            "listed by kvtrace info, and no question counts them as work. A producer's own root and start-up "
            "spans are such spans, so they need not mean that anything is missing."
        )
    story = _told(meta, "story")
    if story is not None:
        said.append(f"What it shows, in its recorder's words: {story}")
    said.append(_origin(meta)[1])
    return tuple(said)


def _lost(losses: pl.DataFrame, schedulers: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A sentence a loss with its consequence; what arrived twice is named apart, as no loss."""
    lost: list[str] = []
    harmless: list[str] = []
    for row in losses.iter_rows(named=True):
        (harmless if row["cause"] == "duplicate" else lost).append(_loss(row, schedulers))
    return tuple(_cut(lost)), tuple(_cut(harmless))


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    if more <= 0:
        return lines
    return [*lines[:MOST_LINES], f"And {more:,} more kinds of loss; the table loss has them all."]


def _loss(row: dict[str, Any], schedulers: set[str]) -> str:
    op, known = row["op"], row["process"] is not None
    what = f"{row['count']:,} {'record' if op is None else op + ' record'}{'' if row['count'] == 1 else 's'}"
    where = f"of {visible(row['process'])}" if known else "of a process that cannot be named"
    source = f" ({visible(row['source'])})" if row["source"] else ""
    why = visible(row["detail"] or LOSS_CAUSES.get(row["cause"], "for an unknown reason"))
    cause = f"{what} {where}{source}: {visible(row['cause']).replace('_', ' ')}, {why}."
    if row["cause"] == "duplicate":
        return cause
    if op in _BOUNDING and (not known or row["process"] in schedulers):
        return f"{cause} Windows that overlap the gap are upper bounds, and no check can prove a pass."
    what = _WORDS[op][1] if op in _WORDS else f"op {visible(op)}" if op else "whatever it saw"
    return f"{cause} Counts and sums of {what} are at least what is shown, and no check can prove a pass."


def _partly(known: pl.DataFrame) -> tuple[str, ...]:
    """Facts that only some of the rows have: name, how many, of how many."""
    some = known.filter(pl.col("observed"), pl.col("rows") < pl.col("of_rows"))
    return tuple(
        f"{row['fact'].replace('_', ' ')} ({row['rows']:,} of {row['of_rows']:,})"
        for row in some.iter_rows(named=True)
    )


def _unseen(known: pl.DataFrame) -> tuple[Unseen, ...]:
    """Facts that nobody recorded, by the instrument that would have."""
    grouped: dict[str, list[tuple[str, str]]] = {}
    for row in known.filter(~pl.col("observed")).iter_rows(named=True):
        grouped.setdefault(row["instrument"], []).append((row["fact"].replace("_", " "), row["consequence"]))
    return tuple(Unseen(instrument, tuple(facts)) for instrument, facts in grouped.items())
