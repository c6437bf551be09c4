"""Producers' spans -> the words: which operation a span is, and which of our columns it fills.

    attributes.py   the attributes of a batch by name, and which of them were understood
    columns.py      the columns being filled, rows of several dialects side by side
    resources.py    who recorded it: process, engine, observer
    canonical.py    spans with kvtrace.op, from anyone
    vllm.py         llm_request, and the queue time it sums up
    lmcache.py      LMCache MP's spans, all of whose numbers are text
    sglang.py       SGLang's requests and what its processes did with them
    dynamo.py       Dynamo's requests, routes and calls of workers, and other names of its requests

A dialect is a module with `applies(batch view) -> mask` and `fill(columns, mask)`: a new one is a new file
named in DIALECTS. What no dialect knows stays as a row with op null, its attributes untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import memory_schema
from kvtrace.sources.dialects import canonical, dynamo, lmcache, resources, sglang, vllm
from kvtrace.sources.dialects.columns import ID_KIND, Columns
from kvtrace.sources.losses import Loss
from kvtrace.sources.otlp.batch import SpanBatch

DIALECTS = (canonical, vllm, lmcache, sglang, dynamo)
"""Asked in this order; a span belongs to the first that applies to it."""
LATEST_NS = 2**63 - 1
STAGED = pa.schema(
    [
        *(field for field in memory_schema("span") if field.name not in ("run_id", "bucket")),
        (ID_KIND, pa.dictionary(pa.int32(), pa.string())),
    ]
)
"""Rows of `span` before they are joined: without run and bucket, with the kind of request id they carry."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a batch says: rows (columns of STAGED that hold anything), processes, losses, other names."""

    spans: tuple[pa.Table, ...]
    processes: tuple[dict[str, str | None], ...]
    losses: tuple[Loss, ...]
    aliases: pl.DataFrame | None = None


def to_words(batch: SpanBatch, source: str) -> Words:
    """Translate a batch; spans whose times cannot be are set aside and counted."""
    batch, losses = _possible(batch, source)
    columns = Columns(batch)
    who = resources.describe(batch.resources)
    resources.fill(columns, who)
    free = np.ones(columns.rows, bool)
    queued: vllm.Derived | None = None
    aliases: list[pl.DataFrame] = []
    for dialect in DIALECTS:
        mask = dialect.applies(columns) & free
        if mask.any():
            dialect.fill(columns, mask)
            free &= ~mask
            if dialect is vllm:
                queued = vllm.queue_rows(columns, mask)
            elif dialect in (sglang, dynamo):
                named = sglang.aliases if dialect is sglang else dynamo.aliases
                aliases.extend(found for found in [named(columns, mask, source)] if found is not None)
    start, _ = columns.number("start_ns")
    for cause, op, mask, detail in columns.refused:
        own = start[mask]
        process = resources.only(batch, mask)
        losses.append(Loss(source, cause, own.size, process, op, int(own.min()), int(own.max()), detail))
    spans = [columns.table(STAGED)]
    if queued is not None:
        losses.extend(queued.losses(source))
        spans.append(vllm.derived_table(spans[0], queued))
    return Words(tuple(spans), tuple(who), tuple(losses), pl.concat(aliases) if aliases else None)


def _possible(batch: SpanBatch, source: str) -> tuple[SpanBatch, list[Loss]]:
    """Set aside spans without a start, beyond 64-bit nanoseconds, or that end before they start."""
    start, end = (batch.spans[name].to_numpy() for name in ("start_ns", "end_ns"))
    impossible = (start == 0) | (start > LATEST_NS) | (end > LATEST_NS)
    negative = ~impossible & (end != 0) & (end < start)
    losses = []
    for cause, mask in (("impossible_time", impossible), ("negative_duration", negative)):
        if mask.any():
            times = start[mask & (start <= LATEST_NS) & (start > 0)]
            first, last = (int(times.min()), int(times.max())) if times.size else (None, None)
            losses.append(Loss(source, cause, int(mask.sum()), from_ns=first, to_ns=last, op=None,
                               process=resources.only(batch, mask)))  # fmt: skip
    bad = impossible | negative
    if not bad.any():
        return batch, losses
    kept = np.flatnonzero(~bad)
    renumbered = np.full(bad.size, -1)
    renumbered[kept] = np.arange(kept.size)
    rows = renumbered[batch.attributes["row"].to_numpy()]
    attributes = batch.attributes.set_column(0, "row", pa.array(rows, pa.int32())).filter(pa.array(rows >= 0))
    spans = batch.spans.take(pa.array(kept))
    return SpanBatch(spans, attributes, batch.resources, batch.undecodable, batch.content), losses
