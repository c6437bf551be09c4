"""What one source says is missing from another: spans that were made and never arrived.

LMCache exports in batches, so a killed server loses its last spans without a word. Three things convict it:
a lookup in the hash log without its span, a child whose parent never came, and a gap in the numbers of its
transfers (which overlapping stores of one session leave as well: LMCache keeps one span of them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from kvtrace.importer.facts import Facts


def missing_spans(facts: Facts, lookups: pl.DataFrame, asked: pl.DataFrame) -> list[Loss]:
    """Losses that only a comparison of sources shows.

    `lookups` are the servers' lookup spans that count, `asked` = (request_id, time_ns) of hash logs.
    """
    return [*_unseen_lookups(facts, lookups, asked), *_orphans(facts), *_gaps(facts)]


def _unseen_lookups(facts: Facts, lookups: pl.DataFrame, asked: pl.DataFrame) -> list[Loss]:
    """Lines of the hash log beyond the lookup spans of their request."""
    servers = facts.table("servers")["process"].unique().to_list()
    if not servers or not asked.height:
        return []
    spans = lookups.group_by("request_id").agg(asked=(pl.col("requested_tokens").fill_null(1) != 0).sum())
    lines = asked.group_by("request_id").agg(
        lines=pl.len().cast(pl.Int64), low=pl.min("time_ns"), high=pl.max("time_ns")
    )
    missing = lines.join(spans, on="request_id", how="left").with_columns(
        missing=pl.col("lines") - pl.col("asked").fill_null(0)
    ).filter(pl.col("missing") > 0)  # fmt: skip
    if not missing.height:
        return []
    detail = "lookups in the hash log without a lookup span: the exporter ended before it sent them"
    low, high = missing.select(pl.min("low"), pl.max("high")).row(0)
    process = servers[0] if len(servers) == 1 else None
    return [Loss(JOIN, "unclean_end", int(missing["missing"].sum()), process, "lookup", low, high, detail)]


def _orphans(facts: Facts) -> list[Loss]:
    """Parents of a server's spans that never came."""
    parents = facts.table("parents")
    own = np.sort(facts.table("own")["span_id"].to_numpy())  # a join would hold them all several times
    place = np.searchsorted(own, parents["parent_span_id"].to_numpy())
    came = np.append(own, np.uint64(0))[place] == parents["parent_span_id"].to_numpy()
    missing = parents.filter(~pl.Series(came & (place < own.size)))
    rows = missing.group_by("process").agg(
        pl.col("parent_span_id").n_unique(), pl.min("low"), pl.max("high")
    ).sort("process")  # fmt: skip
    detail = "parents of the cache server's spans that never came"
    return [
        Loss(JOIN, "unclean_end", count, process, None, low, high, detail)
        for process, count, low, high in rows.iter_rows()
    ]


def _gaps(facts: Facts) -> list[Loss]:
    """Numbers missing between a server's first and last transfer."""
    rows = facts.table("transfers").group_by("process").agg(
        missing=pl.max("number") - pl.min("number") + 1 - pl.col("number").n_unique().cast(pl.Int64),
        low=pl.min("start_ns"), high=pl.max("start_ns"),
    ).filter(pl.col("missing") > 0).sort("process")  # fmt: skip
    detail = "numbers missing among the cache server's transfers (stores or retrieves without a span)"
    return [
        Loss(JOIN, "sequence_gap", count, process, None, low, high, detail)
        for process, count, low, high in rows.iter_rows()
    ]
