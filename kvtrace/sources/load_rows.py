"""Requests as a load generator saw them: one row each, seen by the client.

    request   |----------------------------|   start, end: its own clock
    client.ttft_ns   |                         in attributes: first_token_ns is the engine's

A generator measures from the outside: its times hold the network, too. They stay in attributes
(client.ttft_ns, client.latency_ns, client.itl_mean_ns, client.itl_max_ns) beside the engine's own row, which
a client's id or the answer's id leads to. How long a request waited to be sent is client.queue_ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import attributes, number, span_ns, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvtrace.sources.decoded import Decoded
    from kvtrace.sources.records import Rows
    from kvtrace.sources.stream import Stream

S = 1_000_000_000
NO_TIME = "requests without a time"
BACKWARDS = "ends before its start"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that a generator sent.

    generator: who sent it
    request_id: a name that it was sent with, or that the answer has; else one of the generator's own
    start_ns, end_ns: by the generator's clock, unix ns; end None where it would be held against other clocks
    prompt_tokens, output_tokens, cached_tokens: as it counted them, or as the answer said
    status: ok, error, aborted; None where nothing says so
    times: durations by name, ns
    said: all else that is worth keeping
    """

    generator: str
    request_id: str
    start_ns: int | None
    end_ns: int | None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: str | None = None
    times: dict[str, int | None] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)


def read_documents(stream: Stream, rows: Rows, taken: Callable[[Any], Iterable[None]]) -> Iterator[Decoded]:
    """The parts of a file of documents, one a line; `taken` pauses after each request of one."""
    for value in values_of(stream, rows):
        for _ in taken(value):
            if rows.full:
                yield rows.part()
    yield rows.end()


def add(sent: Sent, rows: Rows) -> bool:
    """The row of a request; whether there is one."""
    if sent.start_ns is None:
        rows.refuse(NO_TIME, op="request", cause="impossible_time")
        return False
    if sent.end_ns is not None and sent.end_ns < sent.start_ns:
        rows.refuse(BACKWARDS, op="request", cause="negative_duration")
        return False
    times = {f"client.{name}": value for name, value in sent.times.items()}
    rows.add("span", {
        "op": "request", "name": sent.generator, "request_id": sent.request_id, "id_kind": None,
        "start_ns": sent.start_ns, "end_ns": sent.end_ns, "prompt_tokens": sent.prompt_tokens,
        "output_tokens": sent.output_tokens, "reported_cached_tokens": sent.cached_tokens,
        "status": sent.status, "observer": "client", "attribution": "request", "evidence": "native",
        "attributes": attributes(**times, **sent.said),
    })  # fmt: skip
    return True


def gaps(found: Any, unit_ns: int) -> dict[str, int | None]:
    """Mean and largest of the times between an answer's parts; nothing where one of them is no time."""
    times = [span_ns(each, unit_ns) for each in found] if isinstance(found, list) else []
    known = [each for each in times if each is not None]
    if not known or len(known) < len(times):
        return {}
    return {"itl_mean_ns": round(sum(known) / len(known)), "itl_max_ns": max(known)}


def seconds_ns(value: Any) -> int | None:
    """A duration in seconds as ns; None for none, and for 0 or less: what was not measured is not 0."""
    found = number(value)
    return span_ns(found, S) if found is not None and found > 0 else None
