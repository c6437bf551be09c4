"""Workload traces of Qwen on Aliyun Bailian: one JSON line a request, with its place in a conversation.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, ..., 13148]}

timestamp is seconds from the trace's beginning, parent_chat_id -1 for the first turn. A block has 16 tokens;
ids are salted hashes, counted anew for a file: they mean something inside of it alone.

Known from documents: the README of alibaba-edu/qwen-bailian-usagetraces-anon, and aiperf's page about it. The
files themselves were not at hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import attributes, first_values, whole
from kvtrace.sources.workload_mooncake import NOT_ONE, OTHER_COUNT
from kvtrace.sources.workload_rows import NO_ARRIVAL, Asked, Workload, read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "workload-bailian"
BLOCK = 16
S = 1_000_000_000
_FIELDS = (
    "chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids",
    "session_id", "time_to_parent_chat",
)  # fmt: skip
_CUT = re.compile(rb'\s*\{\s*"chat_id"\s*:\s*"?\w+"?\s*,\s*"parent_chat_id"\s*:')


def looks_like(head: bytes) -> bool:
    """Whether the first lines are such requests."""
    found = first_values(head)
    return all(map(_is_one, found)) if found else bool(_CUT.match(head) and b'"input_length"' in head)


def _is_one(value: Any) -> bool:
    named = isinstance(value, dict) and {"chat_id", "timestamp", "input_length"} <= set(value)
    return named and ("parent_chat_id" in value or "hash_ids" in value)  # else it is some bot's log of chats


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; it has no content."""
    del options
    requests = Requests(source)
    return read_requests(stream, requests.workload, requests.taken, lambda: None)


class Requests:
    """Takes lines, adds requests."""

    def __init__(self, source: str) -> None:
        self.workload = Workload(source)
        self._number = 0

    def taken(self, value: Any) -> Iterator[None]:
        """One line."""
        self._take(value)
        yield

    def _take(self, value: Any) -> None:
        workload, rows = self.workload, self.workload.rows
        self._number += 1
        if not isinstance(value, dict):
            rows.refuse(NOT_ONE, op="request")
            return
        rows.ignore("requests", [name for name in value if name not in _FIELDS])
        start, length = workload.arrival(value.get("timestamp"), S), whole(value.get("input_length"))
        if start is None or length is None:
            rows.refuse(NO_ARRIVAL, op="request", cause="impossible_time")
            return
        keys = workload.keys(value.get("hash_ids"), length)
        if keys and len(keys) != -(-length // BLOCK):
            rows.remark(OTHER_COUNT.format(BLOCK))
        workload.add(Asked(
            f"{rows.source}:{self._number:07d}", start, length, whole(value.get("output_length")), keys,
            f"bailian-trace:{BLOCK}:{rows.source}", BLOCK,
            attributes(**{name: value.get(name) for name in ("chat_id", "parent_chat_id", "type", "turn")}),
        ))  # fmt: skip
