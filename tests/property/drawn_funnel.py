"""Random requests that a cache may have served: lookups, loads, steps, routes and keys in any order.

Requests of one run share its keys, its block size and nothing else, so that a run holds many of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]
SPACES = ("vllm:sha256:m", "lmcache:unknown:m")
PLACES = (("host", "a"), ("disk", "b"))
REASONS = ("not_found", "expired", "io", "no_room", None)
OUTCOMES = ("ok", "ok", "ok", "failed", "partial", "timeout", "cancelled", "skipped", None)
LENGTHS = st.integers(0, 40)


@dataclass(frozen=True, repr=False)
class Drawn:
    """The tables of a run; a test that fails shows the rows of one request instead."""

    span: Sequence[Row]
    block: Sequence[Row]
    request_key: Sequence[Row]
    identity: Sequence[Row]

    def of(self, name: str) -> list[Row]:
        """What was recorded of a request, and all that happened to keys."""
        own = [row for row in self.span if name in str(row)]
        return [
            *own,
            *(row for row in self.request_key if row["request_id"] == name),
            *self.block,
            *self.identity,
        ]


def rarely(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly a value, sometimes null."""
    return st.one_of(values, values, values, st.none())


@st.composite
def asked(draw: st.DrawFn, name: str) -> Row:
    return {
        "op": "request", "request_id": name, "start_ns": 0, "end_ns": draw(rarely(st.just(100))),
        "observer": "scheduler", "engine": "e0", "prompt_tokens": draw(rarely(st.integers(1, 40))),
        "gpu_hit_tokens": draw(rarely(LENGTHS)), "selected_tokens": draw(rarely(LENGTHS)),
        "reported_cached_tokens": draw(rarely(LENGTHS)), "status": "ok",
    }  # fmt: skip


@st.composite
def lookup(draw: st.DrawFn, name: str) -> Row:
    observer = draw(st.sampled_from(("scheduler", "scheduler", "server")))
    start = draw(st.integers(0, 60))
    row: Row = {
        "op": "lookup", "request_id": name, "start_ns": start, "observer": observer, "engine": "e0",
        "end_ns": draw(rarely(st.just(start + 3))), "found_tokens": draw(rarely(LENGTHS)),
        "outcome": draw(st.sampled_from(("ok", "miss", "timeout", "skipped", None))),
        "attempt": draw(st.sampled_from((1, 1, 2, None))),
        "component": draw(st.sampled_from((None, "lmcache", "vllm.offloading", "mooncake"))),
        "process": "cache" if observer == "server" else "e0/scheduler",
    }  # fmt: skip
    if draw(st.booleans()):
        row["attributes"] = [("asked_from_tokens", "0")]
    return row


@st.composite
def load(draw: st.DrawFn, name: str, observer: str) -> Row:
    start = draw(st.integers(0, 60))
    path = draw(st.sampled_from((("host", "gpu"), ("host", "gpu"), ("disk", "host"), ("disk", "unknown"))))
    row: Row = {
        "op": "load", "request_id": name, "start_ns": start, "end_ns": draw(rarely(st.just(start + 5))),
        "tier_from": path[0], "tier_to": path[1], "observer": observer, "engine": "e0",
        "process": f"e0/{observer}",
        "tokens": draw(rarely(LENGTHS)), "outcome": draw(st.sampled_from(OUTCOMES)),
        "reason": draw(st.sampled_from(REASONS)), "purpose": draw(st.sampled_from(("reuse", "handoff"))),
    }  # fmt: skip
    if draw(st.booleans()):
        row["attributes"] = [("usable_tokens", str(draw(st.integers(0, 20))))]
    return row


@st.composite
def step(draw: st.DrawFn, name: str) -> Row:
    start = draw(st.integers(0, 80))
    member = {
        "request_id": name, "phase": draw(st.sampled_from(("prefill", "prefill", "decode", None))),
        "scheduled_tokens": draw(rarely(st.integers(0, 40))), "output_tokens": 0,
        "computed_before": draw(rarely(LENGTHS)),
    }  # fmt: skip
    end = draw(st.sampled_from((start + 5, start + 5, start + 5, None, start - 1)))
    return {"op": "step", "start_ns": start, "end_ns": end, "observer": "scheduler", "engine": "e0",
            "members": [member]}  # fmt: skip


@st.composite
def admission(draw: st.DrawFn, name: str) -> list[Row]:
    """A request that went as an engine would have it, so that the three known lengths add up."""
    prompt, hit = draw(st.integers(2, 40)), draw(st.integers(0, 20))
    hit = min(hit, prompt - 1)
    found = draw(st.integers(0, prompt))
    selected = draw(st.integers(0, max(0, found - hit)))
    used = draw(st.integers(0, min(selected, prompt - hit - 1)))
    cut = draw(st.integers(1, prompt - hit - used))
    before = hit + used
    steps = [(before, cut), (before + cut, prompt - before - cut)]
    request = draw(asked(name)) | {
        "prompt_tokens": prompt,
        "gpu_hit_tokens": hit,
        "selected_tokens": selected,
    }
    inquiry = draw(lookup(name)) | {"start_ns": 1, "found_tokens": found, "attempt": 1}
    rows = [request, inquiry]
    for at, (there, tokens) in enumerate(steps):
        if tokens:
            chunk = {
                "request_id": name,
                "phase": "prefill",
                "scheduled_tokens": tokens,
                "computed_before": there,
            }
            rows.append(draw(step(name)) | {"start_ns": 50 + at, "end_ns": 60 + at, "members": [chunk]})
    return rows


@st.composite
def served(draw: st.DrawFn, name: str) -> list[Row]:
    """Everything that was recorded of one request; sometimes no row of the request itself."""
    rows: list[Row] = []
    if draw(st.booleans()):
        rows += draw(admission(name))
    else:
        if draw(st.integers(0, 9)):
            rows.append(draw(asked(name)))
        rows += draw(st.lists(lookup(name), max_size=3)) + draw(st.lists(step(name), max_size=3))
    if draw(st.booleans()):
        rows += draw(st.lists(load(name, "worker"), max_size=3))
    else:
        rows += draw(st.lists(load(name, "scheduler"), max_size=1))
    if draw(st.integers(0, 3)) == 0:
        rows.append({"op": "queue", "request_id": name, "start_ns": draw(st.integers(0, 90)), "end_ns": 95,
                     "observer": "scheduler", "reason": "preempted"})  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        outcome = draw(st.sampled_from(("ok", "failed", "timeout")))
        rows.append({"op": "lock_wait", "request_id": name, "start_ns": 2, "end_ns": 4, "outcome": outcome})
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        rows.append({"op": "route", "request_id": name, "start_ns": draw(st.integers(0, 9)),
                     "observer": "router", "found_tokens": draw(rarely(LENGTHS))})  # fmt: skip
    return rows


@st.composite
def event(draw: st.DrawFn) -> Row:
    tier, component = draw(st.sampled_from(PLACES))
    kind = draw(st.sampled_from(("stored", "stored", "written", "removed", "expired", "cleared", "accessed")))
    row = {"event": kind, "time_ns": draw(rarely(st.integers(-5, 70))), "tier": tier, "component": component}
    row |= {"engine": draw(st.sampled_from(("e0", "e1", None)))}
    if kind != "cleared":
        row |= {"key_space": draw(st.sampled_from(SPACES)), "key": f"k{draw(st.integers(0, 3))}"}
    elif draw(st.booleans()):
        row["component"] = None
    return row


@st.composite
def keys(draw: st.DrawFn, name: str) -> list[Row]:
    """The first keys of a prompt; sometimes one is missing, or its tokens are."""
    space = draw(st.sampled_from(SPACES))
    every = [
        {"request_id": name, "attempt": draw(st.sampled_from((1, 1, 1, None, 2))), "position": at,
         "key_space": space, "key": f"k{at}", "time_ns": 20,
         "tokens": draw(st.sampled_from((8, 8, 8, 8, None)))}
        for at in range(draw(st.integers(0, 4)))
    ]  # fmt: skip
    return [row for row in every if draw(st.integers(0, 9))]


@st.composite
def runs(draw: st.DrawFn, requests: int = 24) -> Drawn:
    """A run of so many requests."""
    names = [f"r{number:02}" for number in range(requests)]
    spans = [row for name in names for row in draw(served(name))]
    spans = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    block = draw(st.sampled_from((None, 1, 8, 16)))
    # one event a time and place: what happens in the same nanosecond has no order
    events = draw(st.lists(event(), max_size=30, unique_by=lambda row: row["time_ns"] or id(row)))
    return Drawn(
        span=spans,
        block=[{"run_id": "r", **row} for row in events],
        request_key=[{"run_id": "r", **row} for name in names for row in draw(keys(name))],
        identity=[]
        if block is None
        else [{"identity_id": "e0", "field": "block_size", "value": str(block), "side": "writer"}],
    )
