"""What LMCache servers report to their coordinator (`--coordinator-event-reporting`): which keys are where.

A recording is a JSON body of `POST /events` ({"batches": [...]}) a line, a batch a line, or one body alone:

    {"instance_id", "incarnation", "seq", "event_type", "tier", "backend", "shared", "ts", "entries": [
        {"key": {"chunk_hash_hex", "model_name", "kv_rank", "object_group_id", "cache_salt"},
         "size_bytes", "token_ids", "token_offset"}]}

store, delete and access are rows of `block`, config is a sample of the capacity. A batch has one time, that
of its sending: its events happened since the batch before, by default up to a second earlier. The instance is
the `service.instance.id` of the server's spans, so it is the process. Token ids are counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.lines import lines
from kvtrace.sources.lmcache_coordinator.batches import Reports
from kvtrace.sources.lmcache_coordinator.bodies import is_whole
from kvtrace.sources.stream import Limits, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "lmcache-coordinator-events"
_NAMES = (b'"incarnation"', b'"event_type"', b'"chunk_hash_hex"', b'"capacity_revision"')
_NEEDED = 2


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is such a recording; keys may be sorted, so any two names will do."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in (b"{", b"[") and sum(name in text for name in _NAMES) >= _NEEDED


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The rows of a recording in parts; losses and remarks come with the last."""
    reports = Reports(source, options.digest_key)
    body: list[bytes] = []
    size = 0
    for part in lines(stream):
        if isinstance(part, Undecodable):
            reports.lost(part.detail, part.count)
            continue
        for line in part:
            # Lines that make no body by themselves are, in all, one that was written over many lines.
            if not body and is_whole(line):
                reports.add(line)
            else:
                body.append(line)
                size += len(line)
            if size > Limits().max_message_bytes:
                reports.rest(body)
                body, size = [], 0
            if reports.full:
                yield reports.take()
    if body:
        reports.rest(body)
    yield reports.end()
