"""vLLM's own OpenTelemetry: one `llm_request` span a request, written by the API process at its finish.

Read from vLLM 0.32 (and its older and newer attribute names, schema/attributes.ALIASES). The id on the span
is the external one (cmpl-req-000-0); the internal id comes from whoever knows it, through aliases.

vLLM gives the queue as a sum in seconds. It counts the whole asynchronous load into it, and it subtracts
clocks such that it can be negative or as long as the uptime: such values are dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema.attributes import ALIASES, FIRST_TOKEN_SECONDS, QUEUE_SECONDS
from kvtrace.sources.dialects.columns import ID_KIND, Columns
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from kvtrace.sources.dialects.attributes import Mask

SPAN = "llm_request"
QUEUE = QUEUE_SECONDS[0]
LONGEST_SECONDS = 1e9
DERIVED_SPAN_MASK = 0x9E3779B97F4A7C15
"""A derived row's span id is its origin's with these bits flipped, so that it too counts once."""


def applies(columns: Columns) -> Mask:
    """`llm_request` spans that say which request they are."""
    return columns.named(SPAN) & (columns.attributes.at("gen_ai.request.id") >= 0)


def fill(columns: Columns, mask: Mask) -> None:
    """A request with its tokens and its first token; the queue's seconds stay an attribute as well."""
    for column, word in (
        ("op", "request"),
        ("evidence", "native"),
        ("attribution", "request"),
        (ID_KIND, "external"),
    ):
        columns.put(column, word, mask)
    columns.put("observer", "api", mask & ~columns.known("observer"))
    for column, names in ALIASES.items():
        for name in reversed(names):
            columns.take(name, column, mask)
    columns.put("status", "error", mask & (columns.status_code == 2))
    columns.put("status", "ok", mask & (columns.status_code == 1))
    seconds = np.full(columns.rows, np.nan)
    for name in reversed(FIRST_TOKEN_SECONDS):
        given = columns.attributes.floats(name)
        seconds = np.where(np.isnan(given), seconds, given)
    start, _ = columns.number("start_ns")
    end, ended = columns.number("end_ns")
    fits = mask & (seconds >= 0) & (seconds < LONGEST_SECONDS)
    token = start + np.rint(np.where(fits, seconds, 0) * 1e9).astype(np.int64)
    believed = fits & (~ended | (token <= end))
    columns.put_numbers("first_token_ns", token, believed)
    refused = mask & ~np.isnan(seconds) & ~believed
    columns.refuse("negative_duration", "request", refused, "first tokens outside of their request")
    for name in FIRST_TOKEN_SECONDS:
        columns.attributes.understood(name, believed)


@dataclass(frozen=True, slots=True)
class Derived:
    """Queue rows made of summed seconds, and those whose seconds cannot be."""

    rows: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    dropped: int
    from_ns: int | None
    to_ns: int | None

    def losses(self, source: str) -> list[Loss]:
        """What was dropped, counted."""
        if not self.dropped:
            return []
        detail = f"{QUEUE} negative or longer than its request"
        return [
            Loss(
                source,
                "negative_duration",
                self.dropped,
                op="queue",
                from_ns=self.from_ns,
                to_ns=self.to_ns,
                process=None,
                detail=detail,
            )
        ]


def queue_rows(columns: Columns, mask: Mask) -> Derived:
    """`gen_ai.latency.time_in_queue` of each request as a queue row from its arrival, reason unknown."""
    seconds = columns.attributes.floats(QUEUE)
    given = mask & ~np.isnan(seconds)
    start, _ = columns.number("start_ns")
    end, ended = columns.number("end_ns")
    length = np.rint(np.where(given, np.clip(seconds, -LONGEST_SECONDS, LONGEST_SECONDS), 0) * 1e9).astype(
        np.int64
    )
    fits = given & (length >= 0) & (~ended | (length <= end - start))
    bad = start[given & ~fits]
    low, high = (int(bad.min()), int(bad.max())) if bad.size else (None, None)
    return Derived(np.flatnonzero(fits), (start + length)[fits], bad.size, low, high)


def derived_table(spans: pa.Table, derived: Derived) -> pa.Table:
    """The queue rows, from the rows of their requests."""
    rows = spans.select(
        [
            name
            for name in (
                "request_id",
                "start_ns",
                "engine",
                "process",
                "observer",
                "trace_id",
                ID_KIND,
                "span_id",
            )
            if name in spans.column_names
        ]
    ).take(pa.array(derived.rows))
    size = rows.num_rows
    words = {
        "op": "queue",
        "name": QUEUE,
        "reason": "unknown",
        "attribution": "request",
        "evidence": "derived",
    }
    for name, word in words.items():
        codes = pa.array(np.zeros(size, np.int32))
        rows = rows.append_column(name, pa.DictionaryArray.from_arrays(codes, pa.array([word])))
    rows = rows.append_column("end_ns", pa.array(derived.end_ns))
    if "span_id" in rows.column_names:
        origin = rows["span_id"]
        own = pc.bit_wise_xor(origin, pa.scalar(DERIVED_SPAN_MASK, pa.uint64()))
        rows = (
            rows.drop_columns("span_id").append_column("parent_span_id", origin).append_column("span_id", own)
        )
    return rows
