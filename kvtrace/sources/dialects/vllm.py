"""vLLM's own OpenTelemetry: one `llm_request` span a request, written by the API process at its finish.

Read from vLLM 0.32 (and its older and newer attribute names, schema/attributes.ALIASES). The id on the span
is the external one (cmpl-req-000-0); the internal id comes from whoever knows it, through aliases.

vLLM gives the queue as a sum in seconds. It counts the whole asynchronous load into it, and it subtracts
clocks such that it can be negative or as long as the uptime: such values are dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema.attributes import ALIASES, FIRST_TOKEN_SECONDS, QUEUE_SECONDS
from kvtrace.sources.dialects.attributes import Mask
from kvtrace.sources.dialects.columns import ID_KIND, Columns, where
from kvtrace.sources.losses import Loss

SPAN = "llm_request"
_QUEUE = QUEUE_SECONDS[0]
DERIVED_SPAN_MASK = 0x9E3779B97F4A7C15
"""A derived row's span id is its origin's with these bits flipped, so that it too counts once."""


def applies(columns: Columns) -> Mask:
    """`llm_request` spans that say which request they are."""
    named = where(columns.name, SPAN)
    return named & columns.attributes.text("gen_ai.request.id").is_not_null().to_numpy()


def fill(columns: Columns, mask: Mask) -> None:
    """A request with its tokens and its first token; the queue's seconds stay an attribute until queue_rows."""
    columns.put("op", "request", mask)
    columns.put("observer", columns["observer"].fill_null("api"), mask)
    columns.put("evidence", "native", mask)
    columns.put("attribution", "request", mask)
    columns.put(ID_KIND, "external", mask)
    for column, names in ALIASES.items():
        for name in reversed(names):
            columns.take(name, column, mask)
    columns.put("status", "error", mask & (columns.status_code == 2))
    columns.put("status", "ok", mask & (columns.status_code == 1))
    seconds = columns.seconds(FIRST_TOKEN_SECONDS, mask)
    start, end = columns["start_ns"], columns["end_ns"]
    token = start + (seconds * 1e9).round(0).cast(pl.Int64, strict=False)
    fits = (seconds >= 0) & (token <= end.fill_null(2**63 - 1))
    columns.put("first_token_ns", token, mask & fits.fill_null(value=False).to_numpy())


@dataclass(frozen=True, slots=True)
class Derived:
    """Queue rows made of summed seconds, and those whose seconds cannot be."""

    rows: pa.Table | None
    dropped: int
    from_ns: int | None
    to_ns: int | None

    def losses(self, source: str) -> list[Loss]:
        """What was dropped, counted."""
        if not self.dropped:
            return []
        detail = f"{_QUEUE} negative or longer than its request"
        return [Loss(source, "negative_duration", self.dropped, op="queue", from_ns=self.from_ns, to_ns=self.to_ns,
                     process=None, detail=detail)]  # fmt: skip


def queue_rows(spans: pa.Table) -> Derived:
    """`gen_ai.latency.time_in_queue` of each request as a queue row from its arrival, reason unknown."""
    requests = pc.and_kleene(pc.equal(spans["op"], "request"), pc.equal(spans["name"], SPAN))
    found = spans.filter(pc.fill_null(requests, fill_value=False))
    if not found.num_rows:
        return Derived(None, 0, None, None)
    frame = pl.DataFrame(found.select(["start_ns", "end_ns", "span_id"]))
    seconds = pl.Series(pc.map_lookup(found["attributes"], pa.scalar(_QUEUE), "first")).cast(pl.Float64, strict=False)
    length = (seconds * 1e9).round(0)
    window = (frame["end_ns"] - frame["start_ns"]).cast(pl.Float64)
    given = seconds.is_not_null() & seconds.is_finite()
    fits = (given & (length >= 0) & (length <= window.fill_null(float("inf")))).fill_null(value=False)
    bad = frame.filter(given & ~fits)
    rows = found.filter(pa.array(fits.to_numpy()))
    start = frame.filter(fits)["start_ns"]
    put = {
        "op": pa.array(["queue"] * rows.num_rows),
        "name": pa.array([_QUEUE] * rows.num_rows),
        "request_id": rows["request_id"],
        "start_ns": rows["start_ns"],
        "end_ns": (start + length.filter(fits).cast(pl.Int64)).to_arrow(),
        "reason": pa.array(["unknown"] * rows.num_rows),
        "attribution": pa.array(["request"] * rows.num_rows),
        "evidence": pa.array(["derived"] * rows.num_rows),
        "span_id": pa.array(np.bitwise_xor(rows["span_id"].to_numpy().astype(np.uint64), np.uint64(DERIVED_SPAN_MASK)))
        if not rows["span_id"].null_count
        else pa.nulls(rows.num_rows, pa.uint64()),
        "parent_span_id": rows["span_id"],
        **{name: rows[name] for name in ("engine", "process", "observer", "trace_id", ID_KIND)},
    }
    columns = [put[f.name].cast(f.type) if f.name in put else pa.nulls(rows.num_rows, f.type) for f in spans.schema]
    derived = pa.table(columns, schema=spans.schema)
    low, high = (bad["start_ns"].min(), bad["start_ns"].max()) if bad.height else (None, None)
    return Derived(derived, bad.height, low, high)  # type: ignore[arg-type]

