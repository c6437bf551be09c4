"""Exposure and critical path by brute force: every tick [t, t+1) of a window is classified on its own.

Written from the definition in words, apart from the implementation, to be read beside it line by line: no
interval arithmetic, no vectors. Times are small integers. Rows are plain dicts, a missing key is null.

    steps     ......########....   serving the request     found at the tick, strongest first:
    waits     ..........###.....   of its engine           {("wait_load", None): [the wait],
    copies    ..###########.....   of its loads, by hop     ("load", "disk->host"): [the load]}
    tick                ^                                  the first wins, the others are hidden by it
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.property.oracle_rows import Interval, Row, Window, named_by, windows_of

Key = tuple[str, str | None]  # (class, hop)
WINDOWS = ("ttft", "decode", "e2e")
WAIT_REASONS = ("load", "store", "lookup", "lock")  # strongest first
WAIT_CLASSES = tuple(f"wait_{reason}" for reason in WAIT_REASONS)
STALL_CLASSES = (*WAIT_CLASSES, "load", "load_wait", "lock", "lookup", "store")  # compared by `agreement`
TIERS = ("gpu", "host", "peer", "disk", "object", "unknown")
HIDERS = ("compute", "wait", "queue", "load", "rest")
HIDER_OF = {
    "compute": "compute",
    **dict.fromkeys(WAIT_CLASSES, "wait"),
    "queue_capacity": "queue",
    **dict.fromkeys(("load", "load_wait"), "load"),
    **dict.fromkeys(("lock", "lookup", "store", "interference"), "rest"),
}
MEASURES = ("exposed_ns", "total_ns", *(f"hidden_by_{hider}_ns" for hider in HIDERS), "work_ns", "open_ns")
OTHER: Key = ("other", None)
COMPUTE: Key = ("compute", None)

# --- The two answers ------------------------------------------------------------------------------------


def exposure_by_ticks(
    spans: Sequence[Row], losses: Sequence[Row] = (), processes: Sequence[Row] = ()
) -> list[dict[str, Any]]:
    """The rows of `exposure`, all three windows, by request, window, class and hop."""
    return [
        row
        for window in windows_of(spans, losses, processes)
        if window.end_ns > window.start_ns
        for row in exposure_of(window)
    ]


def critical_path_by_ticks(
    spans: Sequence[Row], losses: Sequence[Row] = (), processes: Sequence[Row] = (), window: str = "e2e"
) -> list[dict[str, Any]]:
    """The rows of `critical_path` in one window: maximal runs of ticks with one (class, hop, span_id)."""
    segments: list[dict[str, Any]] = []
    for seen in windows_of(spans, losses, processes):
        if seen.name != window:
            continue
        hops = bottleneck_first(seen)
        previous = None
        for tick in seen.ticks:
            found = holding(seen, tick, hops)
            winner = next(iter(found), OTHER)
            here = (winner, first_started(found.get(winner, [])))
            if here == previous:
                segments[-1]["end_ns"] = tick + 1
                continue
            seq = 0 if previous is None else segments[-1]["seq"] + 1
            time = {"seq": seq, "start_ns": tick, "end_ns": tick + 1}
            what = {"class": winner[0], "hop": winner[1], "span_id": here[1]}
            segments.append({"request_id": seen.request_id, "window": window, **time, **what})
            previous = here
    return segments


def first_started(rows: Sequence[Interval]) -> int | str | None:
    """The span_id of the earliest started row, of two the smaller; null when nothing was recorded."""
    started = [(row.start_ns, row.row["span_id"]) for row in rows]
    return min(started)[1] if started else None


# --- One tick -------------------------------------------------------------------------------------------


def holding(window: Window, tick: int, hops: Sequence[str]) -> dict[Key, list[Interval]]:
    """The classes active during [tick, tick + 1), strongest first, each with the rows it holds through.

    The first one wins the tick; with none it is `other`. `hops` come with the bottleneck first.
    """
    steps = active(window.steps, tick)
    waits = active(window.waits, tick)
    copies = active(window.copies, tick)
    queues = active(window.queues, tick)
    found: dict[Key, list[Interval]] = {}

    if window.exact and not waits:
        found[COMPUTE] = steps
    for reason in WAIT_REASONS:
        found[f"wait_{reason}", None] = [
            wait for wait in waits if wait.row.get("reason") == reason and applies(wait, window, steps)
        ]
    found["queue_capacity", None] = [queue for queue in queues if queue.row.get("reason") == "capacity"]
    for hop in hops:
        found["load", hop] = [copy for copy in copies if hop_of(copy.row) == hop]
    found["load_wait", None] = [] if copies else active(window.promises, tick)
    found["lock", None] = active(window.locks, tick)
    found["lookup", None] = active(window.lookups, tick)
    found["store", None] = active(window.stores, tick)
    found["interference", None] = [wait for wait in waits if interferes(wait, window, steps)]
    found["queue", None] = [queue for queue in queues if queue.row.get("reason") != "capacity"]

    return {key: rows for key, rows in found.items() if rows}


def applies(wait: Interval, window: Window, steps: Sequence[Interval]) -> bool:
    """A wait holds up the request when a step serving it is active, or when the wait names it."""
    return bool(steps) or window.request_id in named_by(wait.row)


def interferes(wait: Interval, window: Window, steps: Sequence[Interval]) -> bool:
    """A wait is another's when it does not name the request; nobody's wait only outside its steps."""
    if not named_by(wait.row):
        return not steps
    return window.request_id not in named_by(wait.row)


def bottleneck_first(window: Window) -> list[str]:
    """The hops of the window, the most copying ticks first; ties by tier_to, then tier_from."""
    ticks = Counter(
        hop for tick in window.ticks for hop in {hop_of(copy.row) for copy in active(window.copies, tick)}
    )

    def rank(hop: str) -> tuple[int, int, int]:
        tier_from, tier_to = hop.split("->")
        return -ticks[hop], TIERS.index(tier_to), TIERS.index(tier_from)

    return sorted(ticks, key=rank)


def active(rows: Iterable[Interval], tick: int) -> list[Interval]:
    """Those of the rows that are active during [tick, tick + 1)."""
    return [row for row in rows if row.covers(tick)]


def hop_of(load: Row) -> str:
    """`tier_from->tier_to`; a null tier is unknown."""
    return f"{load.get('tier_from') or 'unknown'}->{load.get('tier_to') or 'unknown'}"


# --- One window -----------------------------------------------------------------------------------------


def exposure_of(window: Window) -> list[dict[str, Any]]:
    """Counts ticks: who won, who was active, hidden by whom, through an open row, in how many rows."""
    exposed: Counter[Key] = Counter()
    total: Counter[Key] = Counter()
    hidden: Counter[tuple[Key, str]] = Counter()
    opened: Counter[Key] = Counter()
    work: Counter[Key] = Counter()
    hops = bottleneck_first(window)
    for tick in window.ticks:
        found = holding(window, tick, hops)
        winner = next(iter(found), OTHER)
        exposed[winner] += 1
        if winner == OTHER:
            total[OTHER] += 1
        for key, rows in found.items():
            total[key] += 1
            if key != winner:
                hidden[key, HIDER_OF[winner[0]]] += 1
            if any(row.is_open for row in rows):
                opened[key] += 1
            if key[0] != "load_wait":
                work[key] += len(rows)
        work["load_wait", None] += len(active(window.promises, tick))  # copying is not subtracted

    out = []
    for key in class_order(hops):
        parts = [hidden[key, hider] for hider in HIDERS]
        has_work = key[0] not in ("compute", "other", "interference")
        values = [exposed[key], total[key], *parts, work[key] if has_work else None, opened[key]]
        if key == COMPUTE and not window.exact:
            out.append(answer(window, key, dict.fromkeys(MEASURES), exposed))
        elif total[key] > 0 or exposed[key] > 0:
            out.append(answer(window, key, dict(zip(MEASURES, values, strict=True)), exposed))
    return out


def answer(
    window: Window, key: Key, measures: Mapping[str, int | None], exposed: Mapping[Key, int]
) -> dict[str, Any]:
    """One row of `exposure`; an upper bound knows neither what compute hid nor the agreement."""
    row = {"request_id": window.request_id, "window": window.name, "class": key[0], "hop": key[1], **measures}
    if window.exact:
        row |= {"bound": "exact", "censored": window.censored, "agreement": agreement(window, exposed)}
    else:
        row |= {"hidden_by_compute_ns": None}
        row |= {"bound": "upper", "censored": window.censored, "agreement": None}
    return row


def class_order(hops: Sequence[str]) -> list[Key]:
    """All classes, strongest first."""
    before: list[Key] = [(name, None) for name in ("compute", *WAIT_CLASSES, "queue_capacity")]
    loads: list[Key] = [("load", hop) for hop in hops]
    after = ("load_wait", "lock", "lookup", "store", "interference", "queue", "other")
    return [*before, *loads, *((name, None) for name in after)]


def agreement(window: Window, exposed: Mapping[Key, int]) -> int:
    """Interval exposure minus measured stall.

    Stalled: a wait names the request, or a step serving it is inside a wait, or it queues for remote_kv or
    lookup.
    """
    interval_exposure = sum(ns for (name, _), ns in exposed.items() if name in STALL_CLASSES)
    measured_stall = 0
    for tick in window.ticks:
        steps = active(window.steps, tick)
        in_wait = any(applies(wait, window, steps) for wait in active(window.waits, tick))
        queues = active(window.queues, tick)
        in_queue = any(queue.row.get("reason") in ("remote_kv", "lookup") for queue in queues)
        if in_wait or in_queue:
            measured_stall += 1
    return interval_exposure - measured_stall
