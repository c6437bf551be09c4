"""Random small runs for the laws of `exposure` and `critical_path`, as lists of plain dicts.

    e0/api         request  |-----------------------|    finished or not, with a first token or without
    e0/scheduler   queue    |-----|  step |--|--||---|   back to back, overlapping, of any members
    e0/worker      load        |------|   wait  |---|    waits cross step ends, of two ranks, of anybody

Times come mostly from a few shared instants, so that starts and ends meet; a missing key is null.
"""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from tests.property import drawn_rows
from tests.property.drawn_rows import LATEST_NS, OWN_OPS, Clock, Row


@dataclass(frozen=True)
class Run:
    """The three tables that the partition reads."""

    spans: tuple[Row, ...]
    losses: tuple[Row, ...] = ()
    processes: tuple[Row, ...] = ()


# --- The worked example of docs/exposure.md -----------------------------------------------------------------

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
    rows = [draw(drawn_rows.request(clock, engines, request_id)) for request_id in ids]
    rows += draw(_many(drawn_rows.step(clock, engines, ids), 5))
    rows += [rank for ranks in draw(_many(drawn_rows.wait(clock, engines, ids), 4)) for rank in ranks]
    moved = [
        row
        for number in range(draw(st.integers(0, 5)))
        for row in draw(drawn_rows.transfer(clock, engines, ids, f"t{number}"))
    ]
    rows += moved
    rows += draw(_many(drawn_rows.queue(clock, engines, ids), 4))
    rows += draw(_many(drawn_rows.inquiry(clock, engines, ids), 4))
    spans = tuple({"run_id": "r", "span_id": number, **row} for number, row in enumerate(rows))
    names = [f"{engine}/{kind}" for engine in engines for kind in ("api", "scheduler", "worker")]
    processes = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
    return Run(
        spans=tuple(draw(st.permutations(spans))),
        losses=tuple(draw(st.one_of(st.just([]), _many(drawn_rows.loss(clock, names), 2)))),
        processes=tuple(draw(drawn_rows.process(clock, name)) for name in processes),
    )


@st.composite
def of_users(draw: st.DrawFn) -> Run:
    """A run in which some requests are of one user; a user's name may be that of a request."""
    users = st.sampled_from((None, "u0", "u0", "u1", "r0", "r1"))

    def named(row: Row) -> Row:
        return {**row, "user_request_id": draw(users)} if row["op"] == "request" else row

    run = draw(runs())
    return replace(run, spans=tuple(named(row) for row in run.spans))


def _many(rows: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    """Any number as likely as another; lists() alone prefers few."""
    return st.integers(0, most).flatmap(lambda size: st.lists(rows, min_size=size, max_size=size))


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


def is_cuttable(row: Row, run: Run) -> bool:
    """Closed, two ticks or more, and its meaning is only that it lasts.

    A step's end may be a first token; a scheduler's load lends its times to the copies that begin inside, and
    its inquiry stands for those of the cache that begin inside. All rows of a transfer have its first submit.
    """
    if row.get("transfer_id") is not None and any(
        span.get("transfer_id") == row["transfer_id"] and span.get("submit_ns") is not None
        for span in run.spans
    ):
        return False
    if row["op"] in ("load", "store", "lookup") and any(
        span["op"] == row["op"] and span["observer"] == "scheduler" for span in run.spans
    ):
        return False
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
    cuttable = [span for span in run.spans if is_cuttable(span, run)]
    assume(cuttable)
    row = draw(st.sampled_from(cuttable))
    return run, row, draw(st.integers(row["start_ns"] + 1, row["end_ns"] - 1))


def added(run: Run, op: str, request_id: str, start_ns: int, end_ns: int) -> Run:
    """The same run with one more row of the request, of no engine and process: it moves no last record.

    Nor is it nearer to any copy than another row is.
    """
    row: Row = {
        "run_id": "r",
        "span_id": len(run.spans),
        "op": op,
        "request_id": request_id,
        "observer": "router",
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
