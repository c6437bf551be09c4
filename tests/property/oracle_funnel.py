"""hit_funnel in plain loops over rows, straight from its definition: slow, and easy to believe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.property.drawn_funnel import Drawn

Row = dict[str, Any]
WRONG = ("failed", "timeout", "cancelled")


def funnel_by_loops(run: Drawn) -> dict[str, Row]:
    """Request -> its row."""
    names = {row["request_id"] for row in run.span if row.get("request_id") and row["op"] in (
        "request", "lookup", "load", "route")}  # fmt: skip
    names |= {row["request_id"] for row in run.request_key}
    telling = {row["process"] for row in run.span if row["op"] == "load"}
    block = next((int(row["value"]) for row in run.identity), None)
    return {name: _row(run, name, telling, block) for name in names}


def _of(run: Drawn, name: str, op: str) -> list[Row]:
    return [row for row in run.span if row["op"] == op and row.get("request_id") == name]


def _row(run: Drawn, name: str, telling: set[str], block: int | None) -> Row:
    request = next(iter(_of(run, name, "request")), {})
    prompt = request.get("prompt_tokens")
    steps = _prompt_steps(run, name, prompt)
    begin = min((step["start"] for step in steps), default=None)
    again = _again(run, name, begin)
    first = [step for step in steps if again is None or step["start"] < again]
    later = [step for step in steps if step not in first]
    loads = _of(run, name, "load")
    early = [row for row in loads if again is None or row["start_ns"] < again]
    found, beyond_only, answerer = _found(_of(run, name, "lookup"), again)
    selected = _selected(request, loads, begin)
    moved = _moved(request, loads, early, answerer, telling)
    gpu = request.get("gpu_hit_tokens")
    if gpu is None and not loads and moved == 0:
        gpu = request.get("reported_cached_tokens")
    computed, twice = _computed(first)
    before = _all_known([step["before"] for step in first], min)
    if before is None and prompt is not None and computed is not None:
        before = prompt - computed
    own, said = request.get("gpu_hit_tokens"), request.get("reported_cached_tokens")
    unselected = (
        request.get("selected_tokens") is None
    )  # who sees that is a scheduler's eye, and sees steps too
    if before is None and not steps and unselected and own is not None and said is not None and said >= own:
        before = said
    loaded = None if gpu is None or before is None else max(0, before - gpu)
    if None not in (gpu, loaded, computed, prompt) and gpu + loaded + computed != prompt:
        computed = None
    row = {
        "request_id": name, "prompt_tokens": prompt, "gpu_hit_tokens": gpu, "found_tokens": found,
        "exists_tokens": _exists(run, name, request), "selected_tokens": selected, "loaded_tokens": loaded,
        "moved_tokens": moved, "computed_tokens": computed,
        "visible_tokens": _visible(_of(run, name, "route")),
        "recomputed_tokens": _recomputed(prompt, gpu, selected, loaded, later, twice, steps),
    }  # fmt: skip
    return row | _lost(row, early, _of(run, name, "lock_wait"), block, beyond_only=beyond_only)


def _prompt_steps(run: Drawn, name: str, prompt: int | None) -> list[Row]:
    found = []
    for row in run.span:
        if row["op"] != "step" or (row["end_ns"] is not None and row["end_ns"] < row["start_ns"]):
            continue
        for member in row["members"]:
            if member["request_id"] != name:
                continue
            before, tokens, phase = (
                member.get(key) for key in ("computed_before", "scheduled_tokens", "phase")
            )
            if before is not None and prompt is not None:
                if before >= prompt:
                    continue
                tokens = None if tokens is None else min(tokens, prompt - before)
            elif phase != "prefill":
                continue
            found.append({"start": row["start_ns"], "before": before, "tokens": tokens})
    return found


def _again(run: Drawn, name: str, begin: int | None) -> int | None:
    """When the first admission ends."""
    ends = [
        row["start_ns"]
        for row in (*_of(run, name, "queue"), *_of(run, name, "lookup"))
        if begin is not None and row["start_ns"] >= begin
        and (row.get("reason") == "preempted" or (row.get("attempt") or 0) > 1)
    ]  # fmt: skip
    return min(ends, default=None)


def _found(lookups: list[Row], again: int | None) -> tuple[int | None, bool, str | None]:
    lookups.sort(key=lambda row: (row["attempt"] or 1, row["start_ns"], row["span_id"]))
    decisive = [
        row for row in lookups if row["outcome"] != "skipped" and (again is None or row["start_ns"] < again)
    ]
    own = [row for row in decisive if row["observer"] == "scheduler"]
    caches = [row for row in decisive if row["observer"] != "scheduler"]
    answerer = next((row["process"] for row in lookups if row["observer"] != "scheduler"), None)
    told = [row for row in own if row["found_tokens"] is not None]
    if told:
        return told[0]["found_tokens"], _beyond(told[0]) and not caches, answerer
    if any(row["outcome"] == "timeout" for row in own):
        return None, False, answerer
    told = [row for row in caches if row["found_tokens"] is not None]
    return (told[0]["found_tokens"], _beyond(told[0]), answerer) if told else (None, False, answerer)


def _beyond(row: Row) -> bool:
    component = row["component"]
    if component is not None and component.startswith("vllm."):
        return True
    return "attributes" in row and component is not None and not component.startswith("lmcache")


def _selected(request: Row, loads: list[Row], begin: int | None) -> int | None:
    selected = request.get("selected_tokens")
    if selected is None:
        return None
    for row in loads:
        early = begin is None or row["start_ns"] < begin
        failed = row["observer"] == "scheduler" and row["outcome"] in ("failed", "timeout")
        if early and failed and row["tokens"] is not None:
            selected = max(selected, row["tokens"])
    return selected


def _usable(row: Row) -> int | None:
    text = dict(row.get("attributes", {})).get("usable_tokens")
    return None if text is None else int(text)


def _moved(
    request: Row, loads: list[Row], early: list[Row], answerer: str | None, telling: set[str]
) -> int | None:
    if not loads:
        return 0 if request.get("selected_tokens") == 0 or answerer in telling else None
    total = 0
    for row in early:
        if row["tier_to"] not in ("gpu", "unknown"):
            continue
        usable = _usable(row)
        if row["outcome"] in (*WRONG, "skipped"):
            total += usable or 0
            continue
        known = [value for value in (usable, row["tokens"]) if value is not None]
        if row["end_ns"] is None or not known:
            return None
        total += min(known)
    return total


def _all_known(values: Sequence[Any], together: Any) -> int | None:
    if not values or any(value is None for value in values):
        return None
    return int(together(values))


def _computed(first: list[Row]) -> tuple[int | None, int]:
    """Prompt tokens that the first admission scheduled, each once; and how many it scheduled again."""
    seen: set[int] = set()
    twice = 0
    for step in first:
        if step["before"] is None or step["tokens"] is None:
            continue
        covered = set(range(step["before"], step["before"] + step["tokens"]))
        twice += len(covered & seen)
        seen |= covered
    scheduled = _all_known([step["tokens"] for step in first], sum)
    return (None if scheduled is None else scheduled - twice), twice


def _visible(routes: list[Row]) -> int | None:
    seen = [row for row in routes if row["found_tokens"] is not None]
    return min(seen, key=lambda row: row["start_ns"])["found_tokens"] if seen else None


def _recomputed(
    prompt: int | None, gpu: int | None, selected: int | None, loaded: int | None, later: list[Row],
    twice: int, steps: list[Row],
) -> int | None:  # fmt: skip
    if not steps or selected is None or loaded is None:
        return None
    again = sum(step["tokens"] for step in later) if all(s["tokens"] is not None for s in later) else None
    if again is None:
        return None
    usable = selected if prompt is None or gpu is None else min(selected, max(0, prompt - gpu - 1))
    return max(0, usable - loaded) + again + twice


def _exists(run: Drawn, name: str, request: Row) -> int | None:
    keys = [row for row in run.request_key if row["request_id"] == name]
    first = [row for row in keys if row["attempt"] in (1, None)]
    asks = [row["start_ns"] for op in ("lookup", "route") for row in _of(run, name, op)]
    at = min(asks) if asks else request.get("start_ns", min((row["time_ns"] for row in keys), default=None))
    if not first or at is None:
        return None
    space = first[0]["key_space"]
    events = [row for row in run.block if row["time_ns"] is not None]
    places = {_place(row) for row in events if row.get("key_space") == space and row["event"] != "accessed"}
    tracked = {place for place in places if _tracked(events, space, place)}
    if not tracked:
        return None
    by_position = {row["position"]: row for row in first}
    total, position = 0, 0
    for position in range(max(by_position) + 2):
        row = by_position.get(position)
        if row is None:
            # beyond the last key all is known; a hole in the middle hides the rest
            return total if position > max(by_position) else None
        there = {place for place in places if _there(events, space, row["key"], place, at)}
        if not there & tracked:
            return None if there else total
        if row["tokens"] is None:
            return None
        total += row["tokens"]
    return total


def _place(row: Row) -> tuple[str | None, str | None, str | None]:
    return row["engine"], row["tier"], row["component"]


def _clears(row: Row, place: tuple[str | None, str | None, str | None]) -> bool:
    return (row["event"] == "cleared" and row["engine"] == place[0] and row["tier"] == place[1]
            and row["component"] in (None, place[2]))  # fmt: skip


def _tracked(events: list[Row], space: str, place: tuple[str | None, str | None, str | None]) -> bool:
    if space.startswith("vllm"):
        return True
    return any(
        _clears(row, place)
        or (row["event"] in ("removed", "expired") and row["key_space"] == space and _place(row) == place)
        for row in events
    )


def _there(
    events: list[Row], space: str, key: str, place: tuple[str | None, str | None, str | None], at: int
) -> bool:
    is_there = False
    for row in sorted(events, key=lambda row: row["time_ns"]):
        if row["time_ns"] > at:
            break
        if _clears(row, place):
            is_there = False
        elif row.get("key_space") == space and row.get("key") == key and _place(row) == place:
            is_there = row["event"] in ("stored", "written") or (is_there and row["event"] == "accessed")
    return is_there


def _lost(row: Row, early: list[Row], locks: list[Row], block: int | None, *, beyond_only: bool) -> Row:
    prompt, gpu, found = row["prompt_tokens"], row["gpu_hit_tokens"], row["found_tokens"]
    exists, visible, selected, loaded = (
        row[f"{name}_tokens"] for name in ("exists", "visible", "selected", "loaded")
    )
    beyond = None if found is None or gpu is None else max(0, found - gpu)
    lost: Row = {
        "lost_invisible": None if exists is None or visible is None else exists - visible,
        "lost_unreported": None if visible is None or found is None else visible - found,
        "lost_shadowed": None if beyond is None or beyond_only else min(found, gpu),
    }
    lasts: list[int | None] = []
    left: list[int] = []
    lost |= dict.fromkeys(("lost_rounding", "lost_declined", "lost_vanished", "lost_lock", "lost_failed"))
    if beyond is not None and selected is not None:
        rest = beyond - selected
        if rest >= 1:
            lasts.append(None if prompt is None else int(found >= prompt))
            rest -= lasts[0] or 0
        else:
            lasts.append(0)
        if rest <= 0:
            lost |= {"lost_rounding": 0, "lost_declined": 0}
        elif block is not None:
            lost |= {"lost_rounding": rest % block, "lost_declined": rest - rest % block}
        elif selected == 0:
            lost["lost_declined"] = rest
        left.append(rest - (lost["lost_rounding"] or 0) - (lost["lost_declined"] or 0))
    if selected is not None and loaded is not None:
        rest = selected - loaded
        untaken = not any(lasts)
        if rest >= 1:
            whole = None if prompt is None else int(gpu + selected >= prompt and untaken)
            lasts.append(whole)
            rest -= whole or 0
        else:
            lasts.append(0)
        for part, most in _limits(early, locks).items():
            lost[part] = min(max(0, rest), most)
            rest -= lost[part]
        left.append(rest)
    known = [last for last in lasts if last is not None]
    lost["lost_last_token"] = sum(known) if known else None
    if selected is None:
        lost["lost_unexplained"] = None if beyond is None or loaded is None else beyond - loaded
    else:
        lost["lost_unexplained"] = sum(left) if left else None
    return lost


def _limits(early: list[Row], locks: list[Row]) -> dict[str, float]:
    """How much each cause can account for."""
    most: dict[str, float] = {"lost_vanished": 0, "lost_lock": 0, "lost_failed": 0}
    for row in early:
        if row["outcome"] not in (*WRONG, "partial") and row["reason"] != "no_room":
            continue
        part = {"not_found": "lost_vanished", "expired": "lost_lock"}.get(row["reason"], "lost_failed")
        usable = _usable(row)
        if usable is not None and row["tokens"] is not None:
            most[part] += row["tokens"] - usable
        elif row["outcome"] != "partial" and row["tokens"]:
            most[part] += row["tokens"]
        else:
            most[part] = float("inf")
    if any(row["outcome"] in WRONG for row in locks):
        most["lost_lock"] = float("inf")
    return most
