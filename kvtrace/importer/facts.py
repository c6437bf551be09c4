"""What the joins need to know of the staged rows, gathered as they pass: small tables, not the rows again.

seen       a hash of (trace, span) a row, to find what arrived twice
sessions   internal request ids with their lifetimes
requests   request rows that carry an external id, or one of anybody's
others     ids on rows that do not say which of a request's names they carry
asked      lookups of hash logs; keys: what lookups asked for, by whom it is told
given      other names of requests, as a source says them; outside: external ones, as runs say them
lookups    lookups of servers
drops      stores that stored nothing, reason unknown
parents    parents of a server's spans; own: the server's spans; servers: its processes
transfers  numbers of a server's transfers
moves      transfers by worker, as LMCache's client and its server saw them
processes  first and last record
logged     operations that lines of logs tell; told: from when to when others tell operations of an engine
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvtrace.importer.columns import ORIGIN, attribute, hashes, holds, origins, present, words
from kvtrace.importer.log_lines import LOGGED_OPS, from_log
from kvtrace.sources.dialects.columns import ID_KIND

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "sessions": {"request_id": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64},
    "requests": {
        "origin": pl.UInt64,
        "request_id": pl.String,
        ID_KIND: pl.String,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "trace_id": pl.String,
        "observer": pl.String,
    },
    "lookups": {
        "row": pl.Int64,
        "request_id": pl.String,
        "process": pl.String,
        "requested_tokens": pl.Int64,
        "found_tokens": pl.Int64,
        "name": pl.String,
        "engine": pl.String,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "trace_id": pl.String,
    },
    "others": {"request_id": pl.String, "rows": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
    "asked": {"request_id": pl.String, "time_ns": pl.Int64},
    "keys": {
        "request_id": pl.String,
        "position": pl.Int64,
        "key_space": pl.String,
        "key": pl.String,
        "tokens": pl.Int64,
        "time_ns": pl.Int64,
        "source": pl.String,
        "format": pl.String,
    },
    "given": dict.fromkeys(("alias", "kind", "request_id", "source", "evidence"), pl.String),
    "outside": {"alias": pl.String, "request_id": pl.String},
    "drops": {"row": pl.Int64, "request_id": pl.String},
    "parents": {"process": pl.String, "parent_span_id": pl.UInt64, "low": pl.Int64, "high": pl.Int64},
    "own": {"span_id": pl.UInt64},
    "servers": {"process": pl.String},
    "transfers": {"process": pl.String, "number": pl.Int64, "start_ns": pl.Int64},
    "moves": {
        "row": pl.Int64,
        "request_id": pl.String,
        "engine_id": pl.String,
        "op": pl.String,
        "observer": pl.String,
        "transfer_id": pl.String,
        "start_ns": pl.Int64,
        "submit_ns": pl.Int64,
        "begin_ns": pl.Int64,
        "end_ns": pl.Int64,
        "is_span": pl.Boolean,
    },
    "processes": {"process": pl.String, "first_ns": pl.Int64, "last_ns": pl.Int64},
    "logged": {
        "row": pl.Int64,
        "engine": pl.String,
        "op": pl.String,
        "outcome": pl.String,
        "start_ns": pl.Int64,
    },
    "told": {
        "engine": pl.String,
        "op": pl.String,
        "late": pl.Boolean,
        "low": pl.Int64,
        "high": pl.Int64,
    },
}


@dataclass
class Facts:
    """The facts of all rows so far, in small files that are put together at the end, a kind at a time."""

    folder: Path
    seen: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    _files: int = 0

    def table(self, name: str) -> pl.DataFrame:
        """All parts of one kind of fact."""
        parts = [pl.read_ipc(path) for path in sorted(self.folder.glob(f"{name}-*.arrow"))]
        return pl.concat([pl.DataFrame(schema=COLUMNS[name]), *parts])

    def keep(self, name: str, frame: pl.DataFrame) -> None:
        """Add a part of one kind of fact; a column that it lacks is null."""
        if frame.height:
            self.folder.mkdir(parents=True, exist_ok=True)
            wanted = [
                (pl.col(column) if column in frame.columns else pl.lit(None).alias(column)).cast(kind)
                for column, kind in COLUMNS[name].items()
            ]
            frame.select(wanted).write_ipc(self.folder / f"{name}-{self._files:06d}.arrow")
            self._files += 1

    def gather(self, rows: pa.Table, first: int) -> None:
        """Take what the joins need from rows numbered from `first`."""
        self.seen.append(hashes(rows))
        internal = holds(rows, ID_KIND, "internal")
        server = holds(rows, "observer", "server") & internal
        is_request = holds(rows, "op", "request")
        self.keep("sessions", _lives(rows, "request_id", internal))
        self.keep("requests", _select(rows, is_request & ~internal, first, "requests"))
        self.keep("others", _lives(rows, "request_id", ~internal & ~holds(rows, ID_KIND, "external")))
        drops = holds(rows, "op", "drop") & holds(rows, "reason", "unknown")
        self.keep("drops", _select(rows, drops, first, "drops"))
        self._servers(rows, server, first)
        self._moves(rows, first)
        self._logged(rows, first)
        everything = np.ones(rows.num_rows, bool)
        seen = _lives(rows, "process", everything)
        self.keep("processes", seen.rename({"start_ns": "first_ns", "end_ns": "last_ns"}))

    def _moves(self, rows: pa.Table, first: int) -> None:
        """Of loads and stores that name the worker; `is_span` where LMCache's own tracing told it."""
        own = holds(rows, "op", "load", "store", "drop") & holds(rows, "observer", "client", "server")
        if not own.any() or "attributes" not in rows.column_names:
            return
        at = np.flatnonzero(own)
        moves = _select(
            rows, own, first, "row", "request_id", "op", "observer", "transfer_id", "start_ns", "submit_ns",
            "end_ns", "trace_id",
        ).with_columns(
            engine_id=attribute(rows["attributes"].take(pa.array(at)), "engine_id"),
            begin_ns="start_ns",
            is_span=pl.col("trace_id").is_not_null(),
        )  # fmt: skip
        self.keep("moves", moves.drop_nulls(["engine_id", "request_id"]))

    def _logged(self, rows: pa.Table, first: int) -> None:
        """Operations of engines: which ones a line of a log tells, and over what time others tell them."""
        own = holds(rows, "op", *LOGGED_OPS) & (words(rows, "engine")[0] >= 0)
        from_line = from_log(rows, own)
        self.keep("logged", _select(rows, from_line, first, "logged"))
        others = _select(rows, own & ~from_line, first, "engine", "op", "outcome", "start_ns", "end_ns")
        told = others.group_by("engine", "op", late=pl.col("outcome").eq_missing("timeout"))
        low, high = pl.min("start_ns"), pl.max_horizontal("start_ns", "end_ns").max()
        self.keep("told", told.agg(low=low, high=high))

    def _servers(self, rows: pa.Table, server: npt.NDArray[np.bool_], first: int) -> None:
        """What a cache server's spans say about those that are missing."""
        if not server.any():
            return
        self.keep("lookups", _select(rows, server & holds(rows, "op", "lookup"), first, "lookups"))
        codes, processes = words(rows, "process")
        spans = _select(rows, server, first, "parent_span_id", "start_ns", "span_id").with_columns(
            process=pl.Series(codes[server] % (len(processes) + 1))
        )
        parents = spans.filter(pl.col("parent_span_id").is_not_null()).group_by("process", "parent_span_id")
        self.keep("parents", _named(parents.agg(low=pl.min("start_ns"), high=pl.max("start_ns")), processes))
        self.keep("own", spans.select("span_id").drop_nulls())
        exported = spans.filter(pl.Series((words(rows, "trace_id")[0] >= 0)[server]))
        senders = (
            exported if exported.height else spans
        )  # a server that was recorded inside exports nothing here
        self.keep("servers", _named(senders.select(pl.col("process").unique()), processes))
        moved = server & holds(rows, "op", "load", "store", "drop")
        transfers = _select(rows, moved, first, "process", "transfer_id", "start_ns")
        number = pl.col("transfer_id").str.split("#").list.last().cast(pl.Int64, strict=False)
        self.keep("transfers", transfers.with_columns(number=number).filter(pl.col("number").is_not_null()))


def _named(frame: pl.DataFrame, processes: list[str]) -> pl.DataFrame:
    """Processes by name, not by their number (the one beyond the last: null)."""
    names = pl.Series([*processes, None], dtype=pl.String)
    return frame.with_columns(process=names.gather(frame["process"]))


def _lives(rows: pa.Table, column: str, mask: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """From when to when each word of a column was seen in some rows, and how many those are."""
    if column not in rows.column_names:
        return pl.DataFrame(schema={column: pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
    values = rows[column].combine_chunks()
    end = rows["end_ns"] if "end_ns" in rows.column_names else rows["start_ns"]
    columns = {
        "word": pl.Series(values.indices.fill_null(-1)),
        "start_ns": pl.Series(rows["start_ns"]),
        "end_ns": pl.Series(end),
    }
    found = (
        pl.LazyFrame(columns)
        .filter(pl.Series(mask) & (pl.col("word") >= 0))
        .group_by("word")
        .agg(pl.min("start_ns"), end_ns=pl.max_horizontal("start_ns", "end_ns").max(), rows=pl.len())
        .collect()
    )
    named = pl.Series(column, values.dictionary.take(found["word"].to_arrow()))
    return found.select(named, "start_ns", "end_ns", "rows")


def _select(rows: pa.Table, mask: npt.NDArray[np.bool_], first: int, *names: str) -> pl.DataFrame:
    """Some columns of some rows, as plain text and numbers; `names` may be the name of a kind of fact."""
    at = np.flatnonzero(mask)
    wanted = list(COLUMNS[names[0]]) if names[0] in COLUMNS else list(names)
    taken = pa.array(at)
    columns: dict[str, pl.Series] = {}
    for name in wanted:
        if name == "row":
            columns[name] = pl.Series(at + first)
        elif name == "origin":
            columns[name] = pl.Series(origins(rows.select(present(rows, ORIGIN)).take(taken)))
        elif name in rows.column_names:
            values = rows[name].take(taken)
            columns[name] = pl.Series(
                values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
            )
        else:
            kind = (
                pl.UInt64
                if name.endswith("span_id")
                else pl.Int64
                if name.endswith(("_ns", "_tokens"))
                else pl.String
            )
            columns[name] = pl.Series([None], dtype=kind).new_from_index(0, at.size)
    return pl.DataFrame(columns)
