"""Which rows count in which window of which request: what the oracle stands on, from the definition in words.

    spans ──► that count ──► of one request, as intervals ──► Window, three a request ──► oracle.py
                             its steps, copies, waits of its engine ...

No interval arithmetic, no vectors. Rows are plain dicts, a missing key is null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
OBSERVERS = ("worker", "server", "client", "scheduler", "api", "router", None)  # nearest the copy first
FOREVER_NS = 2**63 - 1  # the end of an open row without a process: the window's end comes first
TIMES = ("start_ns", "end_ns", "submit_ns", "usable_ns", "first_token_ns")


@dataclass(frozen=True)
class Interval:
    """A row during [start_ns, end_ns); `is_open` when its end was not recorded."""

    start_ns: int
    end_ns: int
    row: Row
    is_open: bool

    def covers(self, tick: int) -> bool:
        """Whether the row is active during [tick, tick + 1)."""
        return self.start_ns <= tick < self.end_ns


@dataclass(frozen=True)
class Window:
    """One window of one request, with every row that can matter in it."""

    request_id: str
    name: str
    start_ns: int
    end_ns: int
    censored: bool
    exact: bool
    steps: Sequence[Interval]  # serving the request, of any engine
    waits: Sequence[Interval]  # of the request's engine, whomever they name
    copies: Sequence[Interval]  # its loads, start..end
    promises: Sequence[Interval]  # its loads, submit..usable
    queues: Sequence[Interval]
    locks: Sequence[Interval]
    lookups: Sequence[Interval]
    stores: Sequence[Interval]

    @property
    def ticks(self) -> range:
        """Every tick of the window."""
        return range(self.start_ns, self.end_ns)


# --- Which windows, and which rows count in them --------------------------------------------------------


def windows_of(spans: Sequence[Row], losses: Sequence[Row], processes: Sequence[Row]) -> list[Window]:
    """The windows of every request, by request_id; a window that ends where it starts has no ticks."""
    rows = counting(spans)
    requests = sorted((row for row in rows if row["op"] == "request"), key=lambda row: row["request_id"])
    return [
        window
        for request in requests
        for window in windows_of_request(request, rows, spans, losses, processes)
    ]


def windows_of_request(
    request: Row, rows: Sequence[Row], spans: Sequence[Row], losses: Sequence[Row], processes: Sequence[Row]
) -> list[Window]:
    """ttft, decode and e2e. `rows` are the spans that count; last records come from all `spans`."""
    request_id = request["request_id"]
    engine = engine_of(request, rows)
    found = intervals_of(request_id, engine, rows, spans, processes)
    token_ns = first_token(request, rows)
    last_ns = last_record(engine, "engine", spans, processes)
    seen = has_steps(request_id, engine, token_ns, rows)
    windows = []
    for name, start_ns, end_ns, censored in bounds(request, token_ns, last_ns):
        exact = seen and not any(spoils(loss, engine, start_ns, end_ns, spans) for loss in losses)
        windows.append(Window(request_id, name, start_ns, end_ns, censored, exact, **found))
    return windows


def intervals_of(
    request_id: str, engine: str | None, rows: Sequence[Row], spans: Sequence[Row], processes: Sequence[Row]
) -> dict[str, Any]:
    """The columns of `Window` that hold intervals; an open row ends at its process's last record."""

    def from_to(row: Row, start_ns: int, end_ns: int | None) -> Interval:
        if end_ns is not None:
            return Interval(start_ns, end_ns, row, is_open=False)
        if row.get("process") is None:
            return Interval(start_ns, FOREVER_NS, row, is_open=True)
        last_ns = last_record(row["process"], "process", spans, processes)
        return Interval(start_ns, last_ns, row, is_open=True)

    def whole(row: Row) -> Interval:
        return from_to(row, row["start_ns"], row.get("end_ns"))

    def promised(row: Row) -> Interval:
        submit_ns, usable_ns = row.get("submit_ns"), row.get("usable_ns")
        start_ns = row["start_ns"] if submit_ns is None else submit_ns
        return from_to(row, start_ns, row.get("end_ns") if usable_ns is None else usable_ns)

    own = [row for row in rows if belongs(row, request_id)]
    loads = [row for row in own if row["op"] == "load"]
    return {
        "steps": [whole(row) for row in rows if row["op"] == "step" and serves(row, request_id)],
        "waits": [whole(row) for row in rows if row["op"] == "wait" and row.get("engine") == engine],
        "copies": [whole(row) for row in loads],
        "promises": [promised(row) for row in loads],
        "queues": [whole(row) for row in own if row["op"] == "queue"],
        "locks": [whole(row) for row in own if row["op"] == "lock_wait"],
        "lookups": [whole(row) for row in own if row["op"] == "lookup"],
        "stores": [whole(row) for row in own if row["op"] == "store"],
    }


def bounds(request: Row, token_ns: int | None, last_ns: int) -> list[tuple[str, int, int, bool]]:
    """(window, start, end, censored): no first token: the finish, no finish: the last record."""
    arrival_ns = request["start_ns"]
    unfinished = request.get("end_ns") is None
    end_ns = last_ns if unfinished else request["end_ns"]
    e2e = ("e2e", arrival_ns, end_ns, unfinished)
    if token_ns is None:
        return [("ttft", arrival_ns, end_ns, True), e2e]
    return [("ttft", arrival_ns, token_ns, False), ("decode", token_ns, end_ns, unfinished), e2e]


def counting(spans: Sequence[Row]) -> list[Row]:
    """The rows that count: none that ends before it starts; of one transfer, only the observer nearest it.

    A scheduler sees the whole of a transfer, from its decision to the report of its end, and no copy: where
    somebody nearer saw copies that began inside, those stay and get its times, else it stands for them.
    Each observer of a transfer may have waited longer for it: the earliest submit is everybody's.
    An inquiry that the scheduler waited for is its row alone, not those of the cache that it asked.
    """
    rows = [row for row in spans if row.get("end_ns") is None or row["end_ns"] >= row["start_ns"]]
    rows = [row for row in rows if not is_answer(row, spans)]
    wholes = [whole for row in rows for whole in wholes_of(row, rows)]
    rows = [told(row, wholes_of(row, rows)) for row in rows if row not in wholes]
    return [
        asked_first(row, rows)
        for row in rows
        if not any(is_same_transfer(row, near) and is_nearer(near, row) for near in rows)
    ]


def is_answer(lookup: Row, rows: Sequence[Row]) -> bool:
    """Whether it is what a cache saw of a scheduler's inquiry: begun, or at least ended, inside that."""
    if lookup["op"] != "lookup" or lookup.get("observer") not in ("worker", "server", "client"):
        return False
    from_ns, to_ns = lookup["start_ns"], lookup.get("end_ns")
    asked = [row for row in rows if row["op"] == "lookup" and row.get("observer") == "scheduler"]
    inside = [
        (row["start_ns"], FOREVER_NS if row.get("end_ns") is None else row["end_ns"])
        for row in asked
        if row.get("request_id") == lookup.get("request_id") is not None
    ]
    return any(
        begin <= from_ns < stop or (to_ns is not None and from_ns < stop and begin < to_ns <= stop)
        for begin, stop in inside
    )


def asked_first(copy: Row, rows: Sequence[Row]) -> Row:
    """The copy with the earliest submit that an observer of the same transfer knows."""
    submits = known(
        *(row.get("submit_ns") for row in (copy, *rows) if row is copy or is_same_transfer(copy, row))
    )
    return {**copy, "submit_ns": min(submits)} if submits else copy


def wholes_of(copy: Row, rows: Sequence[Row]) -> list[Row]:
    """What the scheduler saw of a copy: loads or stores of the request inside which the copy began."""
    if copy["op"] not in ("load", "store") or copy.get("observer") not in ("worker", "server", "client"):
        return []
    return [
        row
        for row in rows
        if row["op"] == copy["op"]
        and row.get("observer") == "scheduler"
        and row.get("request_id") == copy.get("request_id") is not None
        and asked_ns(row) <= copy["start_ns"]
        and copy["start_ns"] < max(known(row.get("end_ns"), row.get("usable_ns")), default=FOREVER_NS)
    ]


def told(copy: Row, wholes: Sequence[Row]) -> Row:
    """The copy with the earliest submit and the latest usable time that anybody knows."""
    if not wholes:
        return copy
    submits = known(copy.get("submit_ns"), *map(asked_ns, wholes))
    usables = known(copy.get("usable_ns"), *(whole.get("usable_ns") for whole in wholes))
    return {**copy, "submit_ns": min(submits), "usable_ns": max(usables, default=None)}


def asked_ns(row: Row) -> int:
    """When a transfer was asked for, as far as the row knows."""
    submit_ns: int | None = row.get("submit_ns")
    start_ns: int = row["start_ns"]
    return start_ns if submit_ns is None else submit_ns


def known(*times: int | None) -> list[int]:
    """Those that are not null."""
    return [time for time in times if time is not None]


def is_same_transfer(one: Row, two: Row) -> bool:
    """Loads or stores with the same (request, hop, transfer_id); without transfer_id each is its own."""
    columns = ("op", "request_id", "tier_from", "tier_to", "transfer_id")
    return (
        one["op"] in ("load", "store")
        and one.get("transfer_id") is not None
        and all(one.get(column) == two.get(column) for column in columns)
    )


def is_nearer(one: Row, two: Row) -> bool:
    """Whether the observer of `one` is nearer the copy than that of `two`."""
    return OBSERVERS.index(one.get("observer")) < OBSERVERS.index(two.get("observer"))


# --- Who: members, names, engines -----------------------------------------------------------------------


def member_ids(row: Row) -> list[str]:
    """The request ids among the members; no members and null members are the same."""
    return [member["request_id"] for member in row.get("members") or []]


def belongs(row: Row, request_id: str) -> bool:
    """A row is the request's when it carries its id or lists it as a member."""
    return row.get("request_id") == request_id or request_id in member_ids(row)


def named_by(wait: Row) -> list[str]:
    """Whom a wait names: its members, else its request, else nobody."""
    if member_ids(wait):
        return member_ids(wait)
    return [] if wait.get("request_id") is None else [wait["request_id"]]


def serves(step: Row, request_id: str) -> bool:
    """A step serves a member with scheduled tokens; unknown (null) is not none (0)."""
    return any(
        member["request_id"] == request_id
        and (member.get("scheduled_tokens") is None or member["scheduled_tokens"] > 0)
        for member in step.get("members") or []
    )


def engine_of(request: Row, rows: Sequence[Row]) -> str | None:
    """The engine of its steps, else of what the scheduler saw of it (queue, lookup), else of its own row."""
    request_id = request["request_id"]
    steps = [row for row in rows if row["op"] == "step" and request_id in member_ids(row)]
    asked = [row for row in rows if row["op"] in ("queue", "lookup") and belongs(row, request_id)]
    scheduled = [row for row in asked if row.get("observer") == "scheduler"]
    for candidates in (steps, scheduled):
        if candidates:
            earliest = min(candidates, key=lambda row: (row["start_ns"], str(row.get("engine"))))
            return earliest.get("engine")
    return request.get("engine")


# --- When: first token, last record ---------------------------------------------------------------------


def first_token(request: Row, rows: Sequence[Row]) -> int | None:
    """first_token_ns, else the end of the first closed step that gave it a token; never before arrival."""
    steps = [
        (row["start_ns"], row["end_ns"])
        for row in rows
        if row["op"] == "step" and row.get("end_ns") is not None
        for member in row.get("members") or []
        if member["request_id"] == request["request_id"] and (member.get("output_tokens") or 0) > 0
    ]
    token_ns: int | None = request.get("first_token_ns")
    if token_ns is None and steps:
        token_ns = min(steps)[1]
    return None if token_ns is None or token_ns < request["start_ns"] else token_ns


def last_record(name: str | None, column: str, spans: Sequence[Row], processes: Sequence[Row]) -> int:
    """The last time that an engine or a process recorded, in any span of it, whether it counts or not."""
    times = [row.get(time) for row in spans if row.get(column) == name for time in TIMES]
    times += [row.get("last_ns") for row in processes if row.get(column) == name]
    return int(max(time for time in times if time is not None))


# --- How sure -------------------------------------------------------------------------------------------


def has_steps(request_id: str, engine: str | None, token_ns: int | None, rows: Sequence[Row]) -> bool:
    """The request is a member of a step of its engine, or has no first token and its engine has steps."""
    steps = [row for row in rows if row["op"] == "step" and row.get("engine") == engine]
    return any(request_id in member_ids(step) for step in steps) or (token_ns is None and bool(steps))


def spoils(loss: Row, engine: str | None, start_ns: int, end_ns: int, spans: Sequence[Row]) -> bool:
    """A loss of the engine's scheduler process overlaps the window; an unknown process or time may."""
    rows = [row for row in spans if row.get("engine") == engine]
    schedulers = [
        row.get("process")
        for row in rows
        if row.get("observer") == "scheduler" or row["op"] in ("step", "queue")
    ]
    return (
        loss.get("cause") != "duplicate"
        and loss.get("op") in (None, "step", "queue", "wait")
        and (loss.get("process") is None or loss["process"] in schedulers)
        and (loss.get("from_ns") is None or loss["from_ns"] < end_ns)
        and (loss.get("to_ns") is None or loss["to_ns"] >= start_ns)
    )
