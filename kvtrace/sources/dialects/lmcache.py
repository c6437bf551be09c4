"""LMCache 0.5.5 MP's spans, written by its server: every attribute is text (engines' facts: lmcache 2).

    request               the server's own root of a session: op null; a session can have two of them
    mp.lookup_prefetch    lookup: asked, found, found by tier; ends when the client polls
    mp.retrieve           load host->gpu; begins before the wait for vLLM's stream
    mp.store              store gpu->host; with stored_count 0 it stored nothing: a drop
    transfer.*            stacked breakdown of a copy: its true times are in its attributes; op null

`session_id` is vLLM's internal request id. `transfer_key` ("<request id>#<n>", n counts all transfers of the
server) ties observers together; of overlapping stores of one session LMCache loses spans: the importer finds
the gaps in n. Where L2 lies (disk, object) no span says: its tokens are found in tier `unknown`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from kvtrace.sources.dialects.attributes import Mask, floats, integers
from kvtrace.sources.dialects.canonical import put_map
from kvtrace.sources.dialects.columns import ID_KIND, Columns, where

_TIMES = ("first_start_s", "last_end_s")
_EARLY = {"empty_chunk_hashes": "below_chunk", "no_gpu_context": "no_context", "no_group_layout_descs": "no_context"}


def applies(columns: Columns) -> Mask:
    """Spans of LMCache MP's tracers."""
    return np.asarray(columns.scope.str.starts_with("lmcache_mp").to_numpy(), dtype=bool)


def fill(columns: Columns, mask: Mask) -> None:
    """Session, observer and component of all of them; then each kind of span."""
    columns.take("session_id", "request_id", mask)
    columns.put("observer", "server", mask)
    columns.put(ID_KIND, "internal", mask)
    columns.put("evidence", "native", mask)
    columns.put("attribution", "request", mask & columns["request_id"].is_not_null().to_numpy())
    for name, rule in (("mp.lookup_prefetch", _lookup), ("mp.retrieve", _retrieve), ("mp.store", _store)):
        own = mask & where(columns.name, name)
        if own.any():
            rule(columns, own)
    breakdown = mask & where(columns.name, ["transfer.kernel_interval", "transfer.staging"])
    if breakdown.any():
        _breakdown(columns, breakdown)


def _lookup(columns: Columns, mask: Mask) -> None:
    """Asked and found, chunk-aligned, counted from the first prompt token."""
    columns.put("op", "lookup", mask)
    columns.put("component", "lmcache", mask)
    asked = columns.take("requested_tokens", "requested_tokens", mask)
    found = columns.take("hit_tokens", "found_tokens", mask)
    early = columns.attributes.text("early_exit_reason")
    skipped = (early.is_not_null() & (early != "")).fill_null(value=False)
    columns.put("outcome", "miss", mask & (integers(found) == 0).fill_null(value=False).to_numpy())
    some = (integers(found) > 0).fill_null(value=False)
    all_found = (integers(found) >= integers(asked)).fill_null(value=False)
    columns.put("outcome", "partial", mask & some.to_numpy())
    columns.put("outcome", "ok", mask & (some & all_found).to_numpy())
    columns.put("outcome", "skipped", mask & skipped.to_numpy())
    columns.put("reason", early.replace_strict(_EARLY, default="unknown"), mask & skipped.to_numpy())
    rows, keys, values = [], [], []
    for name, tier in (("l1_hit_tokens", "host"), ("l2_hit_tokens", "unknown")):
        tokens = integers(columns.attributes.text(name))
        at = np.flatnonzero(mask & tokens.is_not_null().to_numpy())
        columns.attributes.understood(name, mask & tokens.is_not_null().to_numpy())
        rows.append(at)
        keys.extend([tier] * at.size)
        values.append(tokens.gather(at).to_numpy())
    put_map(columns, np.concatenate(rows), keys, np.concatenate(values))


def _moved(columns: Columns, mask: Mask) -> None:
    """What a store and a retrieve have in common."""
    for attribute, column in (
        ("num_tokens", "tokens"), ("total_bytes", "bytes"), ("transfer_key", "transfer_id"), ("device", "device"),
    ):  # fmt: skip
        columns.take(attribute, column, mask)
    columns.put("component", "lmcache.l1", mask)
    columns.put("state_kind", "kv", mask)
    columns.put("outcome", "ok", mask)


def _retrieve(columns: Columns, mask: Mask) -> None:
    """A load; LMCache writes num_tokens 0 when it failed, in whole or in part."""
    columns.put("op", "load", mask)
    columns.put("tier_from", "host", mask)
    columns.put("tier_to", "gpu", mask)
    columns.put("purpose", "reuse", mask)
    _moved(columns, mask)
    failed = mask & (columns["tokens"] == 0).fill_null(value=False).to_numpy()
    columns.put("outcome", "failed", failed)
    columns.put("reason", "unknown", failed)


def _store(columns: Columns, mask: Mask) -> None:
    """A store, or a drop: nothing says why it stored nothing, so its reason is unknown until a join knows."""
    columns.put("op", "store", mask)
    columns.put("tier_from", "gpu", mask)
    columns.put("tier_to", "host", mask)
    _moved(columns, mask)
    dropped = mask & (integers(columns.attributes.text("stored_count")) == 0).fill_null(value=False).to_numpy()
    columns.put("op", "drop", dropped)
    columns.put("reason", "unknown", dropped)
    columns.put("outcome", "skipped", dropped)


def _breakdown(columns: Columns, mask: Mask) -> None:
    """The spans are stacked, not placed in time: their true times are attributes, in seconds."""
    start, end = (floats(columns.attributes.text(name)) for name in _TIMES)
    fits = mask & ((start > 0) & (end >= start) & (end < 9.2e9)).fill_null(value=False).to_numpy()
    columns.put("start_ns", (start * 1e9).round(0).cast(pl.Int64, strict=False), fits)
    columns.put("end_ns", (end * 1e9).round(0).cast(pl.Int64, strict=False), fits)
    columns.take("nbytes", "bytes", mask)
