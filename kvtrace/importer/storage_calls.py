"""Calls of LMCache's storage that came twice: from its storage trace (.lct), and recorded inside its server.

.lct      locked k0   locked k1    unlocked k0               of nobody, seconds since its start
inside     locked k0   locked k1    unlocked k0              of a process, the moment each was told

A call of one key is one row on either side: (event, key space, key, rank, object group), in the order of time
(matching.py). What was recorded inside stays, it knows the server and its cache salts; the repeat counts once
as `duplicate`. A trace is that of the one server that has more than half of the calls which it names of that
server's time; what only the trace has then belongs to this server as well. Calls of nobody in a run are of a
trace that was imported before, and are treated as that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvtrace.importer.events import owned
from kvtrace.importer.matching import SLACK_NS, matched
from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.importer.staging import Staging

ASKED = "asked"
"""The reason of a row that is a call, not what came of it."""
_CALL = ("event", "key_space", "key", "rank", "object_group")
_WHO = ("engine", "process")
_COLUMNS = (*_CALL, *_WHO, "reason", "time_ns")
_NUMBERS = ("rank", "time_ns")

Repeats = dict[str, tuple[npt.NDArray[np.int64], dict[str, str | None]]]
"""By input: numbers of its rows that count no more (sorted), and the server that it is of."""


def calls_once(staging: Staging) -> Iterator[tuple[str, pa.Table]]:
    """Rows of `block` from files with their input, without the calls that a server recorded itself.

    Those that runs gave lose such calls at once.
    """
    inside = _inside(staging)
    repeats = _repeats(staging, inside)
    if inside.height:
        for side in staging.given("block"):
            side[:] = _once(staging, side, inside)

    def rest() -> Iterator[tuple[str, pa.Table]]:
        first = dict.fromkeys(repeats, 0)
        for source, rows in staging.parts("block"):
            if source not in repeats:
                yield source, rows
                continue
            extra, owner = repeats[source]
            low, high = np.searchsorted(extra, [first[source], first[source] + rows.num_rows])
            stays = np.ones(rows.num_rows, bool)
            stays[extra[low:high] - first[source]] = False
            first[source] += rows.num_rows
            yield source, owned(rows.filter(pa.array(stays)), owner)

    return rest()


def _repeats(staging: Staging, inside: pl.DataFrame) -> Repeats:
    """Which calls of which inputs came twice; they are counted."""
    repeats: Repeats = {}
    for source, calls in _told(staging).items() if inside.height else ():
        found = _repeated(staging, source, calls, inside)
        if found is not None:
            repeats[source] = found
    return repeats


def _repeated(
    staging: Staging, source: str, calls: pl.DataFrame, inside: pl.DataFrame
) -> tuple[npt.NDArray[np.int64], dict[str, str | None]] | None:
    """Which calls of one trace a server recorded itself, and that server, if one did; they are counted."""
    found = [
        (who, both)
        for who, own in inside.partition_by(_WHO, as_dict=True, maintain_order=True).items()
        if 2 * (both := matched(calls, own, _CALL)).height > _in_the_time_of(own, calls)
    ]
    if len(found) != 1:
        return None
    who, both = found[0]
    twice = calls.filter(pl.col("at").is_in(both["at"].implode()))
    low, high = twice.select(low=pl.min("time_ns"), high=pl.max("time_ns")).row(0)
    detail = "calls of the cache's storage that the server recorded itself as well"
    staging.losses.append(Loss(source, "duplicate", twice.height, None, None, low, high, detail))
    return np.sort(twice["at"].to_numpy()), dict(zip(_WHO, who, strict=True))


def _once(staging: Staging, side: list[pa.Table], inside: pl.DataFrame) -> list[pa.Table]:
    """The rows of one run, without the calls of nobody that a server recorded; the others become its own."""
    whole = pa.concat_tables([conform(rows, "block") for rows in side]).combine_chunks()
    calls = _calls(whole, 0).filter(pl.col("process").is_null())
    found = _repeated(staging, JOIN, calls, inside) if calls.height else None
    if found is None:
        return side
    extra, owner = found
    is_call = np.zeros(whole.num_rows, bool)
    is_call[calls["at"].to_numpy()] = True
    stays = ~np.isin(np.arange(whole.num_rows), extra)
    told = owned(whole.filter(pa.array(is_call & stays)), owner)
    return [whole.filter(pa.array(~is_call)), told]


def _in_the_time_of(own: pl.DataFrame, calls: pl.DataFrame) -> int:
    """How many of some calls were made while a server was recorded; one at least."""
    low, high = own.select(low=pl.min("time_ns"), high=pl.max("time_ns")).row(0)
    return max(1, calls.filter(pl.col("time_ns").is_between(low - SLACK_NS, high + SLACK_NS)).height)


def _told(staging: Staging) -> dict[str, pl.DataFrame]:
    """The calls that each input tells, by the numbers of its rows."""
    parts: dict[str, list[pl.DataFrame]] = {}
    first: dict[str, int] = {}
    for source, rows in staging.parts("block"):
        own = _calls(rows, first.get(source, 0)).filter(pl.col("process").is_null())
        first[source] = first.get(source, 0) + rows.num_rows
        if own.height:
            parts.setdefault(source, []).append(own)
    return {source: pl.concat(own) for source, own in parts.items()}


def _inside(staging: Staging) -> pl.DataFrame:
    """The calls that servers recorded themselves, each once."""
    parts = [
        _calls(conform(rows, "block"), 0).filter(pl.col("process").is_not_null())
        for side in staging.given("block")
        for rows in side
    ]
    schema = {"at": pl.Int64} | {name: pl.Int64 if name in _NUMBERS else pl.String for name in _COLUMNS}
    return pl.concat([pl.DataFrame(schema=schema), *parts]).with_columns(at=pl.int_range(pl.len()))


def _calls(rows: pa.Table, first: int) -> pl.DataFrame:
    """The calls among some rows that are numbered from `first`."""
    columns = {
        name: pl.Series(rows[name].cast(pa.int64() if name in _NUMBERS else pa.string())) for name in _COLUMNS
    }
    numbered = pl.DataFrame({"at": pl.int_range(first, first + rows.num_rows, eager=True), **columns})
    return numbered.filter((pl.col("reason") == ASKED) & pl.col("event").is_not_null())
