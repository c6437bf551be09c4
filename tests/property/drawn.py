"""Random small runs for the laws of `exposure` and `critical_path`, as lists of plain dicts.

    e0/api         request  |-----------------------|    finished or not, with a first token or without
    e0/scheduler   queue    |-----|  step |--|--||---|   back to back, overlapping, of any members
    e0/worker      load        |------|   wait  |---|    waits cross step ends, of two ranks, of anybody

Times come mostly from a few shared instants, so that starts and ends meet; a missing key is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume
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
class Run:
    """The three tables that the partition reads."""

    spans: tuple[Row, ...]
    losses: tuple[Row, ...] = ()
    processes: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Clock:
    """Instants that many rows of one run share."""

    shared: tuple[int, ...]

    def instants(self) -> st.SearchStrategy[int]:
        """A time of the run, most often a shared one."""
        return st.one_of(
            st.sampled_from(self.shared), st.sampled_from(self.shared), st.integers(0, LATEST_NS)
        )


# --- The worked example of questions.md -----------------------------------------------------------------

_E = {"run_id": "r", "engine": "e0", "request_id": "r0"}
_SCHEDULER = {**_E, "process": "e0/scheduler", "observer": "scheduler"}
_WORKER = {**_E, "process": "e0/worker", "observer": "worker"}
_STEP = {"request_id": None, "members": [{"request_id": "r0", "scheduled_tokens": 7, "output_tokens": 1}]}

EXAMPLE = Run(
    spans=(
        {
            **_E,
            "process": "e0/api",
            "observer": "api",
            "span_id": 0,
            "op": "request",
            "start_ns": 0,
            "end_ns": 100,
        }
        | {"first_token_ns": 100},
        {**_SCHEDULER, "span_id": 1, "op": "queue", "reason": "capacity", "start_ns": 0, "end_ns": 20},
        {**_SCHEDULER, "span_id": 2, "op": "lookup", "start_ns": 5, "end_ns": 12},
        {**_WORKER, "span_id": 3, "op": "load", "tier_from": "disk", "tier_to": "host"}
        | {"start_ns": 10, "end_ns": 50},
        {**_WORKER, "span_id": 4, "op": "load", "tier_from": "host", "tier_to": "gpu"}
        | {"submit_ns": 9, "start_ns": 30, "end_ns": 62, "usable_ns": 68},
        {**_SCHEDULER, **_STEP, "span_id": 5, "op": "step", "start_ns": 70, "end_ns": 100},
        {
            **_WORKER,
            "request_id": None,
            "span_id": 6,
            "op": "wait",
            "reason": "load",
            "start_ns": 70,
            "end_ns": 75,
        },
    )
)


# --- Whole runs -----------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run of one or two engines and one to four requests, with everything that a recording can show."""
    clock = Clock(tuple(draw(st.lists(st.integers(0, LATEST_NS), min_size=4, max_size=9))))
    engines = draw(st.sampled_from((("e0",), ("e0",), ("e0", "e1"))))
    ids = tuple(f"r{number}" for number in range(draw(st.sampled_from((1, 1, 2, 2, 3, 4)))))
    rows = [draw(_request(clock, engines, request_id)) for request_id in ids]
    rows += draw(_many(_step(clock, engines, ids), 5))
    rows += [rank for ranks in draw(_many(_wait(clock, engines, ids), 4)) for rank in ranks]
    for number in range(draw(st.integers(0, 5))):
        rows += draw(_transfer(clock, engines, ids, f"t{number}"))
    rows += draw(_many(_queue(clock, engines, ids), 4))
    rows += draw(_many(_inquiry(clock, engines, ids), 4))
    spans = tuple({"run_id": "r", "span_id": number, **row} for number, row in enumerate(rows))
    names = [f"{engine}/{kind}" for engine in engines for kind in ("api", "scheduler", "worker")]
    processes = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
    return Run(
        spans=tuple(draw(st.permutations(spans))),
        losses=tuple(draw(st.one_of(st.just([]), _many(_loss(clock, names), 2)))),
        processes=tuple(draw(_process(clock, name)) for name in processes),
    )


def _many(rows: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    """Any number as likely as another; lists() alone prefers few."""
    return st.integers(0, most).flatmap(lambda size: st.lists(rows, min_size=size, max_size=size))


# --- One row --------------------------------------------------------------------------------------------


@st.composite
def _interval(draw: st.DrawFn, clock: Clock) -> Row:
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
def _seen_by(draw: st.DrawFn, engines: Sequence[str], observers: Sequence[str | None]) -> Row:
    """Who saw a row: nearly always the engine's process of that kind, rarely an unknown or another one."""
    engine, observer = draw(st.sampled_from(engines)), draw(st.sampled_from(observers))
    kind = observer if observer in ("api", "scheduler") else "worker"
    other = draw(st.sampled_from((kind,) * 8 + ("api", "scheduler", None)))
    process = None if other is None else f"{engine}/{other}"
    return {"engine": engine, "process": process, "observer": observer}


@st.composite
def _whose(draw: st.DrawFn, ids: Sequence[str], kinds: Sequence[str]) -> Row:
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
def _request(draw: st.DrawFn, clock: Clock, engines: Sequence[str], request_id: str) -> Row:
    row: Row = {"op": "request", "request_id": request_id, **draw(_seen_by(engines, ("api",)))}
    if draw(st.integers(0, 9)) == 9:
        row |= draw(_interval(clock))
    else:
        row |= {"start_ns": draw(st.integers(0, 30)), "end_ns": draw(st.integers(60, LATEST_NS))}
    if draw(st.integers(0, 4)) == 4:
        row["end_ns"] = None
    if draw(st.booleans()):
        row["first_token_ns"] = draw(clock.instants())
    return row


@st.composite
def _step(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    members = []
    for request_id in draw(st.lists(st.sampled_from(ids), unique=True)):
        scheduled = draw(st.sampled_from((1, 5, 8, 0, None)))
        member: Row = {"request_id": request_id, "scheduled_tokens": scheduled}
        member["output_tokens"] = draw(st.sampled_from((None, 0, 0, 1)))
        members.append(member)
    return {
        "op": "step",
        "members": members,
        **draw(_seen_by(engines, ("scheduler",))),
        **draw(_interval(clock)),
    }


@st.composite
def _wait(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> list[Row]:
    """One blocking wait; sometimes rank 1 is in it too, at times of its own."""
    whose = draw(_whose(ids, ("members", "request", "both", "nobody", "nobody")))
    row = {"op": "wait", "reason": draw(st.sampled_from(WAIT_REASONS)), "rank": 0, **whose}
    row |= draw(_seen_by(engines, ("worker", "worker", "scheduler")))
    ranks = [{**row, **draw(_interval(clock))}]
    if draw(st.booleans()):
        ranks.append({**row, "rank": 1, **draw(_interval(clock))})
    return ranks


@st.composite
def _transfer(
    draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str], transfer_id: str
) -> list[Row]:
    """One load or store over its hops, each seen by one observer or, under one transfer_id, by several."""
    row: Row = {"op": draw(st.sampled_from(("load", "load", "load", "load", "store")))}
    row |= draw(_whose(ids, ("request", "request", "request", "members", "nobody")))
    observers: list[str | None] = ["worker", "server", "client", "scheduler", None]
    views = draw(st.sampled_from((1, 1, 1, 2, 3)))
    if views > 1 or draw(st.booleans()):
        row["transfer_id"] = transfer_id
    rows: list[Row] = []
    for tier_from, tier_to in draw(st.sampled_from(PATHS)):
        hop = {**row, "tier_from": tier_from, "tier_to": tier_to}
        rows += [
            {**hop, **draw(_seen_by(engines, observers)), **draw(_four_times(clock))} for _ in range(views)
        ]
    return rows


@st.composite
def _four_times(draw: st.DrawFn, clock: Clock) -> Row:
    """Ordered submit <= start <= end <= usable where they are known; rarely in no order, or none of them."""
    shape = draw(st.sampled_from(("ordered",) * 8 + ("open", "disordered", "copy")))
    if shape == "copy":
        return draw(_interval(clock))
    times = [draw(clock.instants()) for _ in range(4)]
    if shape != "disordered":
        times.sort()
    row = dict(zip(("submit_ns", "start_ns", "end_ns", "usable_ns"), times, strict=True))
    unknown = draw(st.sets(st.sampled_from(("submit_ns", "usable_ns"))))
    if shape == "open":
        unknown |= {"end_ns", draw(st.sampled_from(("end_ns", "usable_ns")))}
    return {key: value for key, value in row.items() if key not in unknown}


@st.composite
def _queue(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    row = {
        "op": "queue",
        "reason": draw(st.sampled_from(QUEUE_REASONS)),
        "request_id": draw(st.sampled_from(ids)),
    }
    return {**row, **draw(_seen_by(engines, ("scheduler", "scheduler", "router"))), **draw(_interval(clock))}


@st.composite
def _inquiry(draw: st.DrawFn, clock: Clock, engines: Sequence[str], ids: Sequence[str]) -> Row:
    row = {"op": draw(st.sampled_from(("lookup", "lookup", "lock_wait")))}
    row |= draw(_whose(ids, ("request", "request", "request", "members", "nobody")))
    return {**row, **draw(_seen_by(engines, ("scheduler", "client", "server"))), **draw(_interval(clock))}


@st.composite
def _loss(draw: st.DrawFn, clock: Clock, processes: Sequence[str]) -> Row:
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
def _process(draw: st.DrawFn, clock: Clock, name: str) -> Row:
    last_ns = draw(st.one_of(st.none(), clock.instants(), st.integers(LATEST_NS, LATEST_NS + 30)))
    return {
        "run_id": "r",
        "process": name,
        "engine": name.partition("/")[0],
        "first_ns": 0,
        "last_ns": last_ns,
    }


# --- Runs for the laws ----------------------------------------------------------------------------------


def shifted(run: Run, by_ns: int) -> Run:
    """The same run, all times later."""

    def later(row: Row) -> Row:
        times = {
            key: value + by_ns for key, value in row.items() if key.endswith("_ns") and value is not None
        }
        return {**row, **times}

    tables = (run.spans, run.losses, run.processes)
    return Run(*(tuple(later(row) for row in table) for table in tables))


def runs_and_shifts() -> st.SearchStrategy[tuple[Run, int]]:
    """A run and how much later to move it; up to real times in nanoseconds."""
    return st.tuples(runs(), st.one_of(st.integers(0, 50), st.just(1_790_000_000_000_000_000)))


def is_cuttable(row: Row) -> bool:
    """Closed, two ticks or more, and its meaning is only that it lasts: a step's end may be a first token."""
    if row["op"] == "request" or row.get("end_ns") is None or row["end_ns"] - row["start_ns"] < 2:
        return False
    in_order = (row.get("submit_ns") or 0) <= row["start_ns"] and row["end_ns"] <= (
        row.get("usable_ns") or 2**63
    )
    return in_order and not any(member.get("output_tokens") for member in row.get("members") or [])


def cut(run: Run, row: Row, at_ns: int) -> Run:
    """The same run with this row as two adjacent ones; what was submitted and usable is cut with the copy."""
    first = {**row, "end_ns": at_ns}
    second = {**row, "start_ns": at_ns, "span_id": len(run.spans)}
    if row.get("usable_ns") is not None:
        first["usable_ns"] = at_ns
    if row.get("submit_ns") is not None:
        second["submit_ns"] = at_ns
    others = tuple(span for span in run.spans if span["span_id"] != row["span_id"])
    return replace(run, spans=(*others, second, first))


@st.composite
def runs_and_cuts(draw: st.DrawFn) -> tuple[Run, Row, int]:
    """A run, one of its rows, and a time inside of that row: the arguments of `cut`."""
    run = draw(runs())
    cuttable = [span for span in run.spans if is_cuttable(span)]
    assume(cuttable)
    row = draw(st.sampled_from(cuttable))
    return run, row, draw(st.integers(row["start_ns"] + 1, row["end_ns"] - 1))


def added(run: Run, op: str, request_id: str, start_ns: int, end_ns: int) -> Run:
    """The same run with one more row of the request, of no engine and process: it moves no last record."""
    row: Row = {
        "run_id": "r",
        "span_id": len(run.spans),
        "op": op,
        "request_id": request_id,
        "observer": "client",
    }
    return replace(run, spans=(*run.spans, {**row, "start_ns": start_ns, "end_ns": end_ns}))


def runs_and_additions() -> st.SearchStrategy[tuple[Run, str, int]]:
    """A run, the op of a row to add and a number to pick where: a segment where a stronger class wins."""
    return st.tuples(runs(), st.sampled_from(OWN_OPS), st.integers(0, 2**16))


@st.composite
def runs_and_strangers(draw: st.DrawFn) -> tuple[Run, Run]:
    """A run without and with a further request that shares no step and is in no wait.

    Its rows come from processes of the run and lie before their last records, which end what is open.
    """
    run = draw(runs())
    rows: list[Row] = []
    for number in range(draw(st.integers(1, 4))):
        like = draw(st.sampled_from(run.spans))
        last_ns = max(like[key] for key in ("start_ns", "end_ns") if like.get(key) is not None)
        start_ns, end_ns = sorted((draw(st.integers(0, last_ns)), draw(st.integers(0, last_ns))))
        who = {key: like.get(key) for key in ("engine", "process", "observer")}
        scheduling = like["op"] in ("step", "queue") or like["observer"] == "scheduler"
        op = "request" if number == 0 else draw(st.sampled_from(OWN_OPS if scheduling else OWN_OPS[:-1]))
        row = {"run_id": "r", "span_id": len(run.spans) + number, "op": op, "request_id": "stranger", **who}
        rows.append({**row, "start_ns": start_ns, "end_ns": end_ns})
    return run, replace(run, spans=(*run.spans, *rows))
