"""SGLang's spans (0.5.18, 0.5.23; `--enable-trace`): a request, and what each process did with it.

    "prefill Req 1a2b3c4d"       |---------------------------------|   root: the API server's; ids, tokens
      "Tokenizer (host:.. | pid:..)"                                   a thread's part, op null
        tokenize  api_server_dispatch
      "Scheduler [TP 0] (host:..)"
        request_process   prefill_waiting |======|                     `queue`, L3 prefetches inside it
        prefill_forward                          |----|                op null: not an engine iteration
        decode_transferred / prefill_transfer_kv_cache                 `load` / `store`, purpose handoff

Known from their source (observability/trace.py, req_time_stats.py, mooncake_trace.py). Only the root names
its request; the parts are known by their trace, which the root's alias of kind `trace` resolves. There is no
span of a match, a prefetch, a load from the host or a backup: cached tokens come whole, not by tier. A
forward's span is one request's, from its first admission to its last chunk: no step, so that nothing is
compute here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.sources.dialects import vllm
from kvtrace.sources.dialects.columns import ID_KIND, Columns

if TYPE_CHECKING:
    from kvtrace.sources.dialects.attributes import Mask

SCOPE = "sglang server"
QUEUED = ("prefill_waiting", "decode_waiting")
SENT, RECEIVED = "prefill_transfer_kv_cache", "decode_transferred"
API = ("tokenize", "api_server_dispatch", "dpc_dispatch")
COMPONENT = "sglang.disaggregation"


def applies(columns: Columns) -> Mask:
    """Spans of SGLang's tracer."""
    return columns.scoped(SCOPE)


def fill(columns: Columns, mask: Mask) -> None:
    """Requests by their root; the parts by their trace."""
    root = mask & _roots(columns)
    columns.put("evidence", "native", mask)
    columns.put("attribution", "request", mask)
    part = mask & ~root
    _by_trace(columns, part)
    columns.put("observer", "api", part & columns.named(*API) & ~columns.known("observer"))
    a_thread = columns.attributes.at("thread_label") >= 0  # whose is its label, as its server named it
    columns.put("observer", "scheduler", part & ~a_thread & ~columns.known("observer"))
    columns.take("tp_rank", "rank", part)
    queued = part & columns.named(*QUEUED)
    columns.put("op", "queue", queued)
    columns.put("reason", "unknown", queued)
    for name, op, tiers in ((SENT, "store", ("gpu", "peer")), (RECEIVED, "load", ("peer", "gpu"))):
        moved = part & columns.named(name)
        columns.put("op", op, moved)
        columns.put("purpose", "handoff", moved)
        columns.put("component", COMPONENT, moved)
        for column, tier in zip(("tier_from", "tier_to"), tiers, strict=True):
            columns.put(column, tier, moved)
    if root.any():
        _request(columns, root)


def aliases(columns: Columns, mask: Mask, source: str) -> pl.DataFrame | None:
    """The trace of each request; None without any."""
    root = mask & _roots(columns)
    rows = pl.DataFrame({
        "alias": pl.Series(columns.batch.spans["trace_id"].combine_chunks().cast(pa.string())),
        "request_id": columns.attributes.texts("gen_ai.request.id").fill_null(
            columns.attributes.texts("rid")
        ),
    }).filter(pl.Series(root) & (pl.col("alias") != "")).drop_nulls()  # fmt: skip
    if not rows.height:
        return None
    named = rows.unique(maintain_order=True).with_columns(
        kind=pl.lit("trace"), source=pl.lit(source), evidence=pl.lit("native")
    )
    return named.select("alias", "kind", "request_id", "source", "evidence")


def _roots(columns: Columns) -> Mask:
    """Spans that name a request: `rid` and `module` are set when it begins, the rest when it ends."""
    return (columns.attributes.at("rid") >= 0) & (columns.attributes.at("module") >= 0)


def _request(columns: Columns, mask: Mask) -> None:
    """Tokens, first token and how it ended; until then its id is what `rid` says of it."""
    columns.take("rid", "request_id", mask & (columns.attributes.at("gen_ai.request.id") < 0))
    vllm.fill(columns, mask)
    columns.put(ID_KIND, "internal", mask)
    columns.take("bootstrap_room", "user_request_id", mask)
    codes, words = columns.attributes.words("gen_ai.response.finish_reasons")
    aborted = np.array([*("abort" in word for word in words), False])[codes]
    told = mask & (codes >= 0)
    columns.put("status", "ok", told & ~aborted)
    columns.put("status", "aborted", told & aborted)


def _by_trace(columns: Columns, mask: Mask) -> None:
    """Parts are known by the name of their trace, one of the request's names."""
    traces = columns.batch.spans["trace_id"].combine_chunks()
    words = [word or None for word in traces.dictionary.to_pylist()]
    codes = np.where(mask, traces.indices.to_numpy(), len(words))
    columns.put_words("request_id", [*words, None], codes)
