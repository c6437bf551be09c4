"""Mooncake's workload traces (FAST'25): one JSON line a request, with its arrival, lengths and keys.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2354]}

timestamp is ms from the trace's beginning. Equal ids mean equal prompts up to the end of that block, inside
one file: the ids were counted anew for it. A block has 512 tokens, which a file does not say: it is told from
the first requests, as others write this form with blocks of their own (workload_blocks.py). Text that some
writers add is counted and dropped; so are requests that have a delay after another one and no time.

Known from the public files conversation_trace.jsonl and README.md of kvcache-ai/Mooncake (FAST25-release).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import at, attributes, first_values, whole
from kvtrace.sources.workload_blocks import LOOKED_AT, block_tokens
from kvtrace.sources.workload_rows import NO_ARRIVAL, Asked, Workload, read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "workload-mooncake"
USUAL_BLOCK = 512
MS = 1_000_000
MOST_WAITING = 1_000_000
"""Keys that wait until the size of a block is told."""
_FIELDS = (
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
    "session_id",
    "delay",
    "type",
    "priority",
)
_CONTENT = ("text_input", "messages", "payload", "tools", "extra", "input", "prompt")
_CUT = re.compile(rb'\s*\{ ?"timestamp" ?: ?[\d.]+, ?"input_length" ?: ?\d+[^{}\n]*"hash_ids" ?: ?\[')
NOT_ONE = "lines that are no request of a workload trace"
OTHER_COUNT = "requests whose keys are not as many as blocks of {} tokens in their prompt"
NO_BLOCK = "requests whose keys tell no block size: the tokens of their keys are not known"


def looks_like(head: bytes) -> bool:
    """Whether the first lines are such requests."""
    found = first_values(head)
    return all(map(_is_one, found)) if found else bool(_CUT.match(head))


def _is_one(value: Any) -> bool:
    known = isinstance(value, dict) and isinstance(value.get("hash_ids"), list) and "timestamp" in value
    return known and "input_length" in value and "chat_id" not in value


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    requests = Requests(source)
    return read_requests(stream, requests.workload, requests.taken, requests.finish)


class Requests:
    """Takes lines, adds requests; the first ones wait until they tell how large a block is."""

    def __init__(self, source: str) -> None:
        self.workload = Workload(source)
        self._waiting: list[tuple[int, int, dict[str, Any], list[str]]] = []
        self._waiting_keys = 0
        self._block: int | None = None
        self._decided = False
        self._number = 0

    def taken(self, value: Any) -> Iterator[None]:
        """One line."""
        self._take(value)
        yield

    def _take(self, value: Any) -> None:
        rows = self.workload.rows
        self._number += 1
        if not isinstance(value, dict):
            rows.refuse(NOT_ONE, op="request")
            return
        for name in _CONTENT:
            rows.drop(name, int(value.get(name) is not None))
        rows.ignore("requests", [name for name in value if name not in (*_FIELDS, *_CONTENT)])
        start, length = self.workload.arrival(value.get("timestamp"), MS), whole(value.get("input_length"))
        if start is None or length is None:
            rows.refuse(NO_ARRIVAL, op="request", cause="impossible_time")
            return
        known = {"number": self._number, "start": start, "output": whole(value.get("output_length")),
                 "said": attributes(session_id=value.get("session_id"), type=at(value, "type"))}  # fmt: skip
        keys = self.workload.keys(value.get("hash_ids"), length)
        if self._decided:
            self._add(length, known, keys)
            return
        self._waiting.append((length, len(keys), known, keys))
        self._waiting_keys += len(keys)
        if len(self._waiting) >= LOOKED_AT or self._waiting_keys >= MOST_WAITING:
            self._decide()

    def finish(self) -> None:
        """What still waits."""
        self._decide()

    def _decide(self) -> None:
        self._block = block_tokens(((length, keys) for length, keys, _, _ in self._waiting), USUAL_BLOCK)
        self._decided = True
        for length, _, known, keys in self._waiting:
            self._add(length, known, keys)
        self._waiting = []

    def _add(self, length: int, known: dict[str, Any], keys: list[str]) -> None:
        block, source = self._block, self.workload.rows.source
        if keys and block is None:
            self.workload.rows.remark(NO_BLOCK)
        elif block is not None and keys and len(keys) != -(-length // block):
            self.workload.rows.remark(OTHER_COUNT.format(block))
        space = f"mooncake-trace:{block or 'unknown'}:{source}"
        self.workload.add(Asked(f"{source}:{known['number']:07d}", known["start"], length, known["output"],
                                keys, space, block, known["said"]))  # fmt: skip
