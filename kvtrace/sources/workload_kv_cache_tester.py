"""Agents' conversations as kv-cache-tester (and others that read "Weka" traces) replay them: a document each.

    {"id": "trace_0303", "models": [...], "block_size": 64, "hash_id_scope": "global", "tool_tokens": 8014,
     "system_tokens": 1210, "requests": [
        {"t": 0.0, "type": "s", "model": "...", "in": 12343, "out": 246, "hash_ids": [4426, ...],
         "input_types": ["text"], "output_types": ["text"], "stop": "", "api_time": 5.5, "think_time": 0.0},
        {"t": 9.0, "type": "subagent", "agent_id": "...", "requests": [...]}], "totals": {...}}

One row a request, those of subagents too. t is seconds from the conversation's beginning, and a subagent's
from its own where it would be before it. Keys are only of whole blocks: the rest of a prompt has none. Ids of
scope global mean the same in all conversations, those of scope local, or of none, in one alone. A file is a
document, or one a line.

Known from public files: traces/trace_0104.json and trace_0303.json of callanjfox/kv-cache-tester, and its
docs/trace_replay_tester.md; subagents from the documents alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import at, attributes, first_values, number, text, whole
from kvtrace.sources.workload_rows import NO_ARRIVAL, Asked, Workload, read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "workload-kv-cache-tester"
S = 1_000_000_000
MAX_DEPTH = 20
"""How deep subagents may start subagents."""
_FIELDS = (
    "t", "type", "model", "in", "out", "hash_ids", "input_types", "output_types", "stop", "api_time",
    "think_time", "ttft",
)  # fmt: skip
_KEPT = ("type", "model", "stop", "api_time", "think_time", "ttft")
_CUT = re.compile(
    rb'\s*\{ ?"id" ?: ?"[^"\n]*"[^{\n]*"block_size" ?: ?\d+[^{\n]*"requests" ?: ?\[ ?\{ ?"(?:t|type)" ?:'
)
NOT_ONE = "lines that are no conversation with requests"


def looks_like(head: bytes) -> bool:
    """Whether the first line is such a conversation, or the beginning of a long one."""
    found = first_values(head, 2)
    return all(map(_is_one, found)) if found else bool(_CUT.match(head))


def _is_one(value: Any) -> bool:
    first = at(value, "requests")
    return isinstance(first, list) and "block_size" in value and at((*first, None)[0], "t") is not None


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; it has no content."""
    del options
    conversations = Conversations(source)
    return read_requests(stream, conversations.workload, conversations.taken, lambda: None)


class Conversations:
    """Takes conversations, adds requests."""

    def __init__(self, source: str) -> None:
        self.workload = Workload(source)
        self._number = 0

    def taken(self, value: Any) -> Iterator[None]:
        """One conversation, request by request."""
        self._number += 1
        requests, block = at(value, "requests"), whole(at(value, "block_size"))
        if not isinstance(requests, list):
            self.workload.rows.refuse(NOT_ONE, op="request")
            return
        source = self.workload.rows.source
        name = text(value.get("id")) or f"{source}:{self._number}"
        scope = value.get("hash_id_scope")
        own = "all" if scope == "global" else f"{source}:{name}"
        of = {
            "name": f"{source}:{name}",
            "space": f"kv-cache-tester:{block or 'unknown'}:{own}",
            "block": block or None,
        }
        yield from self._all(requests, of, {"conversation": name}, 0.0, 0)

    def _all(
        self, requests: list[Any], of: dict[str, Any], said: dict[str, Any], began: float, depth: int
    ) -> Iterator[None]:
        """The requests of a conversation or of a subagent that began at some second of it."""
        times = [found for each in requests if (found := number(at(each, "t"))) is not None]
        late = began if times and times[0] < began else 0.0
        for request in requests:
            if at(request, "type") == "subagent":
                inner, since = at(request, "requests"), number(at(request, "t"))
                if isinstance(inner, list) and depth < MAX_DEPTH:
                    agent = {**said, "agent_id": request.get("agent_id"), "depth": depth + 1}
                    yield from self._all(
                        inner, of, agent, late + since if since is not None else began, depth + 1
                    )
                else:
                    self.workload.rows.refuse("subagents without requests, or too deep", op="request")
                continue
            self._one(request, of, said, late)
            yield

    def _one(self, request: Any, of: dict[str, Any], said: dict[str, Any], late: float) -> None:
        """One request."""
        workload, rows = self.workload, self.workload.rows
        since, length = number(at(request, "t")), whole(at(request, "in"))
        start = None if since is None else workload.arrival(since + late, S)
        if start is None or length is None:
            rows.refuse(NO_ARRIVAL, op="request", cause="impossible_time")
            return
        rows.ignore("requests", [field for field in request if field not in _FIELDS])
        of["count"] = of.get("count", 0) + 1
        workload.add(Asked(
            f"{of['name']}:{of['count']:06d}", start, length, whole(request.get("out")),
            workload.keys(request.get("hash_ids"), length), of["space"], of["block"],
            attributes(**said, **{field: request.get(field) for field in _KEPT}),
        ))  # fmt: skip
