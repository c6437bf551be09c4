"""Client and server of LMCache see one transfer each with an id of its own: which rows are the same one?

    client   request, engine_id, submit [------------------------------) end       r/store/1
    server   request, engine_id            [--------)                              r#17

The client's row takes the server's transfer_id when only one way fits: rows of one (request, engine_id,
direction) are paired in the order of time, and a server's row begins while its client waits, give or take
SLACK_NS (the server writes wall clock, the client the run's). Where several largest pairings fit, what they
all have in common is tied; what may be tied in one and otherwise in another stays apart and is counted.
engine_id is a worker: of two tensor-parallel workers nothing is mixed. Rows tied by an earlier import stay
tied.

A client does not learn that its server stored nothing: tied to a drop, its row is no store (op null). And
LMCache's own span of a transfer that its bus told, too, is no second transfer (op null): the bus does not mix
overlapping stores of one request, the spans do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from kvtrace.importer.facts import Facts

SLACK_NS = 50_000_000
MOST_PAIRS = 1_000_000
"""A group with more possible pairs is not paired where counts differ."""
_FOREVER = 2**63 - 1 - SLACK_NS
_GROUP = ["request_id", "engine_id", "is_load"]


@dataclass(frozen=True)
class Ties:
    """Rows (sorted) and the transfer ids that they take; rows that are no operation of their own."""

    rows: npt.NDArray[np.int64]
    ids: pl.Series
    silenced: npt.NDArray[np.int64]
    losses: list[Loss]


def tie(facts: Facts, extra: npt.NDArray[np.int64]) -> Ties:
    """Tie the rows of clients to those of servers; `extra` are rows that count no more."""
    moves = facts.table("moves").filter(~pl.col("row").is_in(pl.Series(extra).implode()))
    moves = moves.with_columns(
        is_load=pl.col("op") == "load",
        start_ns=pl.coalesce("submit_ns", "start_ns"),
        end_ns=pl.col("end_ns").fill_null(_FOREVER),
    )
    spans = _told_twice(moves.filter(pl.col("observer") == "server"))
    server = moves.filter(pl.col("observer") == "server").sort("begin_ns", "row")
    server = server.unique([*_GROUP, "transfer_id"], keep="first", maintain_order=True)
    asked = (pl.col("observer") == "client") & (pl.col("op") != "drop")  # a drop went to no server
    client = moves.filter(asked).sort("start_ns", "row")
    server, client = _untied(server, client)
    pairs, unclear = _pairs(client, server)
    tied = pairs.sort("row")
    drops = tied.filter(pl.col("server_op") == "drop")["row"]
    silenced = np.sort(np.concatenate([spans["row"].to_numpy(), drops.to_numpy()]))
    detail = "transfers of LMCache's client that fit several of its server's"
    losses = [
        Loss(JOIN, "ambiguous_join", count, op=op, detail=detail)
        for op, count in (("load", unclear[True]), ("store", unclear[False]))
        if count
    ]
    return Ties(tied["row"].to_numpy(), tied["transfer_id"], silenced, losses)


def _told_twice(server: pl.DataFrame) -> pl.DataFrame:
    """Spans of transfers that the bus told, one to one in time order where an id came again."""
    name = [*_GROUP, "transfer_id"]
    numbered = server.sort("begin_ns", "row").with_columns(
        number=pl.int_range(pl.len()).over(*name, "is_span")
    )
    bus = numbered.filter(~pl.col("is_span")).select(*name, "number")
    return numbered.filter("is_span").join(bus, on=[*name, "number"], how="semi", nulls_equal=True)


def _untied(server: pl.DataFrame, client: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Without those that an earlier import tied."""
    key = [*_GROUP, "transfer_id"]
    return server.join(client, on=key, how="anti"), client.join(server, on=key, how="anti")


def _pairs(client: pl.DataFrame, server: pl.DataFrame) -> tuple[pl.DataFrame, dict[bool, int]]:
    """(row of the client, the server's transfer_id and op), and how many loads and others fit several."""
    number = pl.int_range(pl.len()).over(_GROUP).alias("number")
    count = pl.len().over(_GROUP)
    clients = client.select(*_GROUP, "row", "start_ns", "end_ns", number, count.alias("clients"))
    servers = server.select(
        *_GROUP, "begin_ns", "transfer_id", pl.col("op").alias("server_op"), number, count.alias("servers")
    )
    same = clients.join(servers, on=[*_GROUP, "number"], how="inner", maintain_order="left")
    fits = (pl.col("begin_ns") >= pl.col("start_ns") - SLACK_NS) & (
        pl.col("begin_ns") <= pl.col("end_ns") + SLACK_NS
    )
    whole = (pl.col("clients") == pl.col("servers")) & fits.all().over(_GROUP)
    clear = same.filter(whole)
    found = [clear.select("row", "transfer_id", "server_op")]
    unclear = {True: 0, False: 0}
    rest = clients.join(clear.select(_GROUP).unique(), on=_GROUP, how="anti")
    rest = rest.join(servers.select(_GROUP).unique(), on=_GROUP, how="semi")
    if rest.height:
        sides = servers.join(rest.select(_GROUP).unique(), on=_GROUP, how="semi").partition_by(
            _GROUP, as_dict=True, maintain_order=True
        )
        for key, group in rest.partition_by(_GROUP, as_dict=True, maintain_order=True).items():
            tied, left = _by_time(group, sides[key])
            found.append(tied)
            unclear[key[2]] += left
    return pl.concat(found), unclear


def _by_time(client: pl.DataFrame, server: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Of one group whose counts differ, or whose times forbid the plain order."""
    begins = server["begin_ns"].to_numpy()
    low = client["start_ns"].to_numpy() - SLACK_NS
    high = client["end_ns"].to_numpy() + SLACK_NS
    fits = (begins[None, :] >= low[:, None]) & (begins[None, :] <= high[:, None])
    if fits.size > MOST_PAIRS:
        return _chosen(client, server, []), int(fits.any(axis=1).sum())
    pairs = certain(fits)
    tied = {at for at, _ in pairs}
    taken = {place for _, place in pairs}
    free = np.array([place not in taken for place in range(fits.shape[1])], bool)
    left = sum(1 for at in range(fits.shape[0]) if at not in tied and bool((fits[at] & free).any()))
    return _chosen(client, server, pairs), left


def _chosen(client: pl.DataFrame, server: pl.DataFrame, pairs: list[tuple[int, int]]) -> pl.DataFrame:
    rows = client["row"].gather([at for at, _ in pairs])
    taken = server[[place for _, place in pairs]] if pairs else server.clear()
    return pl.DataFrame([rows, taken["transfer_id"], taken["server_op"]])


def certain(fits: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Pairs that every largest pairing in order has; `fits` says which client may be which server.

    before[i, j]: most pairs among the first i and j; after[i, j]: among the rest. A pair is in some largest
    pairing when what lies before and after it leaves room for the most; in every one when it is the only
    such pair of its client and its server, and leaving the client out loses one.
    """
    clients, servers = fits.shape
    before = _most(fits)
    after = _most(fits[::-1, ::-1])[::-1, ::-1]
    most = before[clients, servers]
    possible = fits & (before[:-1, :-1] + 1 + after[1:, 1:] == most)
    found = []
    for at in np.flatnonzero(possible.any(axis=1)):
        (places,) = np.nonzero(possible[at])
        needed = (before[at] + after[at + 1]).max() < most
        if len(places) == 1 and needed and possible[:, places[0]].sum() == 1:
            found.append((int(at), int(places[0])))
    return found


def _most(fits: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Most pairs in order among the first i clients and j servers."""
    clients, servers = fits.shape
    best = np.zeros((clients + 1, servers + 1), np.int64)
    for at in range(clients):
        taken = np.where(fits[at], best[at, :-1] + 1, 0)
        best[at + 1, 1:] = np.maximum(best[at, 1:], np.maximum.accumulate(taken))
    return best


def tied(chunk: pa.Table, first: int, ties: Ties) -> pa.Table:
    """A chunk of rows, numbered from `first`, with the ids and silences of its own."""
    low, high = np.searchsorted(ties.rows, [first, first + chunk.num_rows])
    if high > low:
        new = np.zeros(chunk.num_rows, bool)
        new[ties.rows[low:high] - first] = True
        named = pa.array(ties.ids[low:high].to_list(), pa.string())
        ids = pc.replace_with_mask(_plain(chunk["transfer_id"]), pa.array(new), named)
        chunk = _with(chunk, "transfer_id", ids)
    low, high = np.searchsorted(ties.silenced, [first, first + chunk.num_rows])
    if high > low:
        silent = np.zeros(chunk.num_rows, bool)
        silent[ties.silenced[low:high] - first] = True
        words = pc.if_else(pa.array(silent), pa.scalar(None, pa.string()), _plain(chunk["op"]))
        chunk = _with(chunk, "op", words)
    return chunk


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """A column of words as one array of text."""
    return pa.array(column.cast(pa.string()).to_pylist(), pa.string())


def _with(chunk: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """A column in the place of the one of its name; words stay a dictionary where they were one."""
    at = chunk.column_names.index(name)
    coded = pa.types.is_dictionary(chunk.schema.types[at])
    return chunk.set_column(at, name, values.dictionary_encode() if coded else values)
