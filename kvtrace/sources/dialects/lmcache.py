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

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.sources.dialects.canonical import put_tiers
from kvtrace.sources.dialects.columns import ID_KIND, Columns

if TYPE_CHECKING:
    from kvtrace.sources.dialects.attributes import Mask

LATEST_SECONDS = 9.2e9
_TIMES = ("first_start_s", "last_end_s")
_EARLY = {
    "empty_chunk_hashes": "below_chunk",
    "no_gpu_context": "no_context",
    "no_group_layout_descs": "no_context",
}


def applies(columns: Columns) -> Mask:
    """Spans of LMCache MP's tracers."""
    return columns.scoped("lmcache_mp")


def fill(columns: Columns, mask: Mask) -> None:
    """Session, observer and component of all of them; then each kind of span."""
    columns.take("session_id", "request_id", mask)
    for column, word in (("observer", "server"), ("evidence", "native"), (ID_KIND, "internal")):
        columns.put(column, word, mask)
    columns.put("attribution", "request", mask & columns.known("request_id"))
    for name, rule in (("mp.lookup_prefetch", _lookup), ("mp.retrieve", _retrieve), ("mp.store", _store)):
        own = mask & columns.named(name)
        if own.any():
            rule(columns, own)
    breakdown = mask & columns.named("transfer.kernel_interval", "transfer.staging")
    if breakdown.any():
        _breakdown(columns, breakdown)


def _lookup(columns: Columns, mask: Mask) -> None:
    """Asked and found, chunk-aligned, counted from the first prompt token."""
    columns.put("op", "lookup", mask)
    columns.put("component", "lmcache", mask)
    columns.take("requested_tokens", "requested_tokens", mask)
    columns.take("hit_tokens", "found_tokens", mask)
    asked, _ = columns.number("requested_tokens")
    found, answered = columns.number("found_tokens")
    own = mask & answered
    columns.put("outcome", "miss", own & (found == 0))
    columns.put("outcome", "partial", own & (found > 0))
    columns.put("outcome", "ok", own & (found > 0) & (found >= asked))
    early, words = columns.attributes.words("early_exit_reason")
    for number, word in enumerate(words):
        if word:
            skipped = mask & (early == number)
            columns.put("outcome", "skipped", skipped)
            columns.put("reason", _EARLY.get(word, "unknown"), skipped)
    put_tiers(columns, {"l1_hit_tokens": "host", "l2_hit_tokens": "unknown"}, mask)


def _moved(columns: Columns, mask: Mask) -> None:
    """What a store and a retrieve have in common."""
    for attribute, column in (
        ("num_tokens", "tokens"),
        ("total_bytes", "bytes"),
        ("transfer_key", "transfer_id"),
        ("device", "device"),
    ):
        columns.take(attribute, column, mask)
    for column, word in (("component", "lmcache.l1"), ("state_kind", "kv"), ("outcome", "ok")):
        columns.put(column, word, mask)


def _retrieve(columns: Columns, mask: Mask) -> None:
    """A load; LMCache writes num_tokens 0 when it failed, in whole or in part."""
    for column, word in (("op", "load"), ("tier_from", "host"), ("tier_to", "gpu"), ("purpose", "reuse")):
        columns.put(column, word, mask)
    _moved(columns, mask)
    tokens, known = columns.number("tokens")
    failed = mask & known & (tokens == 0)
    columns.put("outcome", "failed", failed)
    columns.put("reason", "unknown", failed)


def _store(columns: Columns, mask: Mask) -> None:
    """A store, or a drop: nothing says why it stored nothing, so its reason is unknown until a join knows."""
    for column, word in (("op", "store"), ("tier_from", "gpu"), ("tier_to", "host")):
        columns.put(column, word, mask)
    _moved(columns, mask)
    count, known = columns.attributes.integers("stored_count")
    dropped = mask & known & (count == 0)
    for column, word in (("op", "drop"), ("reason", "unknown"), ("outcome", "skipped")):
        columns.put(column, word, dropped)


def _breakdown(columns: Columns, mask: Mask) -> None:
    """The spans are stacked, not placed in time: their true times are attributes, in seconds."""
    start, end = (columns.attributes.floats(name) for name in _TIMES)
    fits = mask & (start > 0) & (end >= start) & (end < LATEST_SECONDS)
    for column, seconds in (("start_ns", start), ("end_ns", end)):
        columns.put_numbers(column, np.rint(np.where(fits, seconds, 0) * 1e9).astype(np.int64), fits)
    columns.take("nbytes", "bytes", mask)
