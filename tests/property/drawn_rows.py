"""Random single rows of small runs: what one step, wait, transfer, queue or loss can look like.

    closed  |----|      open  |----      empty  |      negative  -|  |-

Times come mostly from a few shared instants, so that starts and ends meet; a missing key is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Row = dict[str, Any]

PATHS = (  # the hops of one transfer
    *((("disk", "host"), ("host", "gpu")), (("object", "disk"), ("disk", "host"), ("host", "gpu"))) * 3,
    *((("disk", "host"),), (("host", "gpu"),), (("disk", "gpu"),), (("peer", "host"),)) * 2,
    *((("unknown", "gpu"),), ((None, "gpu"),), (("host", None),), ((None, None),)),
)
WAIT_REASONS = ("load", "store", "lookup", "lock", None)
QUEUE_REASONS = (
    "capacity",
    "capacity",
    "capacity",
    "remote_kv",
    "lookup",
    "preempted",
    "policy",
    "unknown",
    None,
)
OWN_OPS = ("load", "store", "lookup", "lock_wait", "queue")  # weaker than compute and wait, of one request
LATEST_NS = 100


@dataclass(frozen=True)
class Clock:
    """Instants that many rows of one run share."""

    shared: tuple[int, ...]

    def instants(self) -> st.SearchStrategy[int]:
        """A time of the run, most often a shared one."""
        return st.one_of(
            st.sampled_from(self.shared), st.sampled_from(self.shared), st.integers(0, LATEST_NS)
        )


@st.composite
def interval(draw: st.DrawFn, clock: Clock) -> Row:
    """Mostly closed; sometimes open, empty, or ending before it starts."""
    shape = draw(st.sampled_from(("closed",) * 9 + ("open", "open", "empty", "negative")))
    one, two = sorted((draw(clock.instants()), draw(clock.instants())))
    return {
        "closed": {"start_ns": one, "end_ns": two},
        "open": {"start_ns": one},
        "empty": {"start_ns": one, "end_ns": one},
        "negative": {"start_ns": two, "end_ns": one},
    }[shape]


@st.composite
def seen_by(draw: st.DrawFn, engines: Sequence[str], observers: Sequence[str | None]) -> Row:
    """Who saw a row: nearly always the engine's process of that kind, rarely an unknown or another one."""
    engine, observer = draw(st.sampled_from(engines)), draw(st.sampled_from(observers))
    kind = observer if observer in ("api", "scheduler") else "worker"
    other = draw(st.sampled_from((kind,) * 8 + ("api", "scheduler", None)))
    process = None if other is None else f"{engine}/{other}"
    return {"engine": engine, "process": process, "observer": observer}


@st.composite
def whose(draw: st.DrawFn, ids: Sequence[str], kinds: Sequence[str]) -> Row:
    """By request_id, by members, by both (not always of the same requests), or nobody's."""
    kind = draw(st.sampled_from(kinds))
    row: Row = {}
    if kind in ("request", "both"):
        row["request_id"] = draw(st.sampled_from(ids))
    if kind in ("members", "both"):
        members = draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
        row["members"] = [{"request_id": member} for member in members]
    if kind == "nobody" and draw(st.booleans()):
        row["members"] = []
    return row


@st.composite
def request(draw: st.DrawFn, clock: Clock, engines: Sequence[str], request_id: str) -> Row:
    row: Row = {"op": "request", "request_id": request_id, **draw(seen_by(engines, ("api",)))}
    if draw(st.integers(0, 9)) == 9:
        row |= draw(interval(clock))
    else:
        row |= {"start_ns": draw(st.integers(0, 30)), "end_ns": draw(st.integers(60, LATEST_NS))}
    if draw(st.integers(0, 4)) == 4:
        row["end_ns"] = None
    if draw(st.booleans()):
        row["first_token_ns"] = draw(clock.instants())
    return row


@st.composite
def step(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    members = []
    for request_id in draw(st.lists(st.sampled_from(ids), unique=True)):
        scheduled = draw(st.sampled_from((1, 5, 8, 0, None)))
        member: Row = {"request_id": request_id, "scheduled_tokens": scheduled}
        member["output_tokens"] = draw(st.sampled_from((None, 0, 0, 1)))
        members.append(member)
    return {
        "op": "step",
        "members": members,
        **draw(seen_by(engines, ("scheduler",))),
        **draw(interval(clock)),
    }


@st.composite
def wait(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> list[Row]:
    """One blocking wait; sometimes rank 1 is in it too, at times of its own."""
    named = draw(whose(ids, ("members", "request", "both", "nobody", "nobody")))
    row = {"op": "wait", "reason": draw(st.sampled_from(WAIT_REASONS)), "rank": 0, **named}
    row |= draw(seen_by(engines, ("worker", "worker", "scheduler")))
    ranks = [{**row, **draw(interval(clock))}]
    if draw(st.booleans()):
        ranks.append({**row, "rank": 1, **draw(interval(clock))})
    return ranks


@st.composite
def transfer(
    draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str], transfer_id: str
) -> list[Row]:
    """One load or store over its hops, each seen by one observer or, under one transfer_id, by several."""
    row: Row = {"op": draw(st.sampled_from(("load", "load", "load", "load", "store")))}
    row |= draw(whose(ids, ("request", "request", "request", "members", "nobody")))
    observers: list[str | None] = ["worker", "server", "client", "scheduler", None]
    views = draw(st.sampled_from((1, 1, 1, 2, 3)))
    if views > 1 or draw(st.booleans()):
        row["transfer_id"] = transfer_id
    rows: list[Row] = []
    for tier_from, tier_to in draw(st.sampled_from(PATHS)):
        hop = {**row, "tier_from": tier_from, "tier_to": tier_to}
        rows += [
            {**hop, **draw(seen_by(engines, observers)), **draw(four_times(clock))} for _ in range(views)
        ]
    return rows


@st.composite
def four_times(draw: st.DrawFn, clock: Clock) -> Row:
    """Ordered submit <= start <= end <= usable where they are known; rarely in no order, or none of them."""
    shape = draw(st.sampled_from(("ordered",) * 8 + ("open", "disordered", "copy")))
    if shape == "copy":
        return draw(interval(clock))
    times = [draw(clock.instants()) for _ in range(4)]
    if shape != "disordered":
        times.sort()
    row = dict(zip(("submit_ns", "start_ns", "end_ns", "usable_ns"), times, strict=True))
    unknown = draw(st.sets(st.sampled_from(("submit_ns", "usable_ns"))))
    if shape == "open":
        unknown |= {"end_ns", draw(st.sampled_from(("end_ns", "usable_ns")))}
    return {key: value for key, value in row.items() if key not in unknown}


@st.composite
def queue(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    row = {
        "op": "queue",
        "reason": draw(st.sampled_from(QUEUE_REASONS)),
        "request_id": draw(st.sampled_from(ids)),
    }
    return {**row, **draw(seen_by(engines, ("scheduler", "scheduler", "router"))), **draw(interval(clock))}


@st.composite
def inquiry(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    row = {"op": draw(st.sampled_from(("lookup", "lookup", "lock_wait")))}
    row |= draw(whose(ids, ("request", "request", "request", "members", "nobody")))
    return {**row, **draw(seen_by(engines, ("scheduler", "client", "server"))), **draw(interval(clock))}


@st.composite
def loss(draw: st.DrawFn, clock: Clock, processes: Sequence[str]) -> Row:
    row: Row = {
        "source": "spool",
        "count": 1,
        "cause": draw(st.sampled_from(("dropped", "late", "duplicate"))),
    }
    row["op"] = draw(st.sampled_from((None, "step", "queue", "wait", "load", "lookup")))
    row["process"] = draw(st.one_of(st.none(), st.sampled_from(processes)))
    from_ns, to_ns = sorted((draw(clock.instants()), draw(clock.instants())))
    row["from_ns"] = draw(st.sampled_from((from_ns, from_ns, None)))
    row["to_ns"] = draw(st.sampled_from((to_ns, to_ns, None)))
    return row


@st.composite
def process(draw: st.DrawFn, clock: Clock, name: str) -> Row:
    last_ns = draw(st.one_of(st.none(), clock.instants(), st.integers(LATEST_NS, LATEST_NS + 30)))
    return {
        "run_id": "r",
        "process": name,
        "engine": name.partition("/")[0],
        "first_ns": 0,
        "last_ns": last_ns,
    }
