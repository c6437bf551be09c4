"""`critical_path --by user` by brute force: every tick is asked of every request of the user.

prefill   [lookup)[compute)          a tick of the user has all classes that its requests have there,
decode         [queue)[load)[comp.)  each on its own engine and in its own time; the strongest wins
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.property.oracle import OTHER, TIERS, Key, active, class_order, first_started, holding, hop_of
from tests.property.oracle_rows import (
    Interval,
    Row,
    Window,
    bounds,
    counting,
    engine_of,
    first_token,
    has_steps,
    intervals_of,
    last_record,
    spoils,
)


@dataclass(frozen=True)
class Part:
    """A request of a user, from its arrival to its end (or its first token, if that is later)."""

    life: Window
    stop_ns: int
    token_ns: int | None
    engine: str | None
    seen: bool


def user_of(request: Row) -> str:
    """A request without a user_request_id stands alone, under its own name."""
    user: str = request.get("user_request_id") or request["request_id"]
    return user


def parts_of(
    requests: Sequence[Row], rows: Sequence[Row], spans: Sequence[Row], processes: Sequence[Row]
) -> list[Part]:
    """The requests of one user."""
    parts = []
    for request in requests:
        engine, token_ns = engine_of(request, rows), first_token(request, rows)
        *_, (_, start_ns, stop_ns, _) = bounds(
            request, token_ns, last_record(engine, "engine", spans, processes)
        )
        seen = has_steps(request["request_id"], engine, token_ns, rows)
        found = intervals_of(request["request_id"], engine, rows, spans, processes)
        end_ns = max(stop_ns, token_ns or 0)
        life = Window(request["request_id"], "life", start_ns, end_ns, censored=False, exact=seen, **found)
        parts.append(Part(life, stop_ns, token_ns, engine, seen))
    return parts


def window_of(parts: Sequence[Part], name: str) -> range:
    """First arrival, the first token of the request that ends last, last end."""
    start_ns = min(part.life.start_ns for part in parts)
    stop_ns = max(part.stop_ns for part in parts)
    answers = [part.token_ns for part in parts if part.stop_ns == stop_ns and part.token_ns is not None]
    token_ns = max(answers, default=stop_ns)
    return {
        "ttft": range(start_ns, token_ns),
        "decode": range(token_ns, stop_ns),
        "e2e": range(start_ns, stop_ns),
    }[name]


def is_exact(parts: Sequence[Part], ticks: range, spans: Sequence[Row], losses: Sequence[Row]) -> bool:
    """Every request that is there in the window has its steps recorded, as long as it is there."""
    for part in parts:
        start_ns, end_ns = max(ticks.start, part.life.start_ns), min(ticks.stop, part.life.end_ns)
        if end_ns <= start_ns:
            continue
        if not part.seen or any(spoils(loss, part.engine, start_ns, end_ns, spans) for loss in losses):
            return False
    return True


def there(parts: Sequence[Part], tick: int) -> list[Window]:
    """The requests between whose arrival and end the tick lies."""
    return [part.life for part in parts if tick in part.life.ticks]


def bottleneck_first(parts: Sequence[Part], ticks: range) -> list[str]:
    """The hops of all requests, the most copying ticks first; ties by tier_to, then tier_from."""
    copying = Counter(
        hop
        for tick in ticks
        for hop in {hop_of(copy.row) for life in there(parts, tick) for copy in active(life.copies, tick)}
    )

    def rank(hop: str) -> tuple[int, int, int]:
        tier_from, tier_to = hop.split("->")
        return -copying[hop], TIERS.index(tier_to), TIERS.index(tier_from)

    return sorted(copying, key=rank)


def user_path_by_ticks(
    spans: Sequence[Row], losses: Sequence[Row] = (), processes: Sequence[Row] = (), window: str = "e2e"
) -> list[dict[str, Any]]:
    """The rows of `critical_path` by user: maximal runs of ticks with one (class, hop, span_id)."""
    rows = counting(spans)
    users: defaultdict[str, list[Row]] = defaultdict(list)
    for request in rows:
        if request["op"] == "request":
            users[user_of(request)].append(request)
    segments: list[dict[str, Any]] = []
    for user in sorted(users):
        parts = parts_of(users[user], rows, spans, processes)
        ticks = window_of(parts, window)
        exact = is_exact(parts, ticks, spans, losses)
        hops = bottleneck_first(parts, ticks)
        order = class_order(hops)
        previous = None
        for tick in ticks:
            found: defaultdict[Key, list[Interval]] = defaultdict(list)
            for life in there(parts, tick):
                for key, held in holding(replace(life, exact=exact), tick, hops).items():
                    found[key] += held
            winner = min(found, key=order.index, default=OTHER)
            here = winner, first_started(found.get(winner, []))
            if here == previous:
                segments[-1]["end_ns"] = tick + 1
                continue
            seq = 0 if previous is None else segments[-1]["seq"] + 1
            what = {"class": winner[0], "hop": winner[1], "span_id": here[1]}
            time = {"seq": seq, "start_ns": tick, "end_ns": tick + 1}
            segments.append({"request_id": user, "window": window, **time, **what})
            previous = here
    return segments
