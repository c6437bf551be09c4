"""four_events against a replay of every event up to the decision, position by position; many worlds a run."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.four_events import four_events
from tests.property.oracle_residency import states
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
World = tuple[list[Row], list[Row], list[Row]]
SIZE = 8
TIERS = ("gpu", "host", "disk")
COUNTS = ("device_blocks", "host_pinned_blocks", "disk_blocks")


@st.composite
def world(draw: st.DrawFn) -> World:
    """Two workers with copies of three keys, a router that counts, requests that report."""
    spans: list[Row] = []
    keys: list[Row] = []
    blocks: list[Row] = [block(0, "stored", "gpu", worker, "z") for worker in ("w0", "w1")]
    for _ in range(draw(st.integers(0, 12))):
        word = draw(st.sampled_from(("stored", "stored", "stored", "removed", "cleared")))
        key = None if word == "cleared" else draw(st.sampled_from("abc"))
        place = draw(st.sampled_from(TIERS)), draw(st.sampled_from(("w0", "w1")))
        blocks.append(block(draw(st.integers(1, 30)), word, *place, key))
    for name in ("r0", "r1"):
        start = draw(st.integers(5, 25))
        worker = draw(st.sampled_from(("w0", "w1")))
        reported = draw(st.sampled_from((None, 0, 16, 32, 48)))
        own = {"request_id": name, "evidence": "native", "engine": worker}
        ends = {"start_ns": start, "end_ns": 100, "first_token_ns": 90, "reported_cached_tokens": reported}
        spans.append({"op": "request", "observer": "api", **own, **ends})
        if draw(st.booleans()):
            counts = [draw(st.sampled_from((0, 0, 1, 2))) for _ in TIERS]
            said = {"worker_id": worker} | dict(zip(COUNTS, map(str, counts), strict=True))
            chosen = {"start_ns": start + 1, "end_ns": start + 2, "attributes": said}
            spans.append({"op": "route", "observer": "router", **own, **chosen})
        keys += [{"request_id": name, "position": n, "key": key, "key_space": "s", "tokens": 16}
                 for n, key in enumerate("abc"[: draw(st.integers(1, 3))])]  # fmt: skip
    return spans, keys, blocks


def block(time_ns: int, word: str, tier: str, worker: str, key: str | None) -> Row:
    row = {"time_ns": time_ns, "event": word, "tier": tier, "component": tier, "engine": worker, "key": key}
    return row | {"key_space": "s", "seq": None, "locality": None, "object_group": None, "evidence": "native"}


def packed(worlds: list[World]) -> dict[str, list[Row]]:
    """All worlds in one run, none knowing another."""
    tables: dict[str, list[Row]] = {"span": [], "request_key": [], "block": []}
    for number, world in enumerate(worlds):
        own = f"w{number:02d}."
        for table, rows in zip(tables, world, strict=True):
            for row in rows:
                mine = {
                    name: own + row[name] for name in ("request_id", "engine", "key_space") if row.get(name)
                }
                if table == "span":
                    mine["span_id"] = len(tables["span"])
                if "worker_id" in row.get("attributes", ()):
                    mine["attributes"] = row["attributes"] | {
                        "worker_id": own + row["attributes"]["worker_id"]
                    }
                tables[table].append(row | mine)
    return tables


def expected(world: World, name: str) -> list[tuple[Any, ...]]:
    """Of every position tier, locality, existed, visible, selected, loaded; None: nobody watched."""
    spans, keys, blocks = world
    (request,) = [row for row in spans if row["op"] == "request" and row["request_id"] == name]
    routes = [row for row in spans if row["op"] == "route" and row["request_id"] == name]
    counted = [int(routes[0]["attributes"][word]) for word in COUNTS] if routes else None
    at = routes[0]["start_ns"] if routes else request["start_ns"]
    there = max(
        ((time, state) for time, state in states(blocks).items() if time <= at), key=lambda one: one[0]
    )[1]
    answer = []
    for place, key in enumerate(row["key"] for row in keys if row["request_id"] == name):
        copies = {(part[0], part[2]) for part in there if part[-1] == key}
        seen = None
        for tier, reach in zip(
            TIERS, (sum(counted[: n + 1]) for n in range(3)) if counted else (), strict=False
        ):
            if seen is None and place < reach:
                seen = tier
        reported = request["reported_cached_tokens"]
        loaded = None if reported is None else 16 * (place + 1) <= reported
        here = [tier for tier in TIERS if (tier, request["engine"]) in copies]
        anywhere, gone = [tier for tier, _ in copies], _gone(blocks, key, at)
        routed = counted is not None
        answer.append(_position(here, anywhere, seen, loaded=loaded, routed=routed, gone=gone))
    return answer


def _position(
    here: list[str], anywhere: list[str], seen: str | None, *, loaded: bool | None, routed: bool, gone: bool
) -> tuple[Any, ...]:
    if here or (loaded and seen):
        tier, locality = seen if seen in here or not here else here[0], "local"
    elif loaded:
        tier, locality = "unknown", "local"
    elif anywhere:
        tier, locality = min(anywhere, key=TIERS.index), "remote"
    elif seen:
        tier, locality = seen, "local"
    else:
        tier, locality = None, None
    existed: bool | None = True if here or anywhere or loaded else False if gone else None
    visible: bool | None = None
    if routed and locality != "remote":
        visible = tier is not None and tier == seen
    selected = locality == "local" if routed and locality else None
    return tier, locality, existed, visible, selected, loaded


def _gone(blocks: list[Row], key: str, at: int) -> bool:
    """Whether a copy of it was there before, and tiers beyond the GPU have events."""
    if all(row["tier"] == "gpu" for row in blocks):
        return False
    times = sorted(states(blocks).items())
    before = [state for time, state in times if time <= at]
    return any(part[-1] == key for state in before for part in state)


@given(st.lists(world(), min_size=SIZE, max_size=SIZE))
@cases(14)
def test_every_position_is_what_the_replay_says(worlds: list[World]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = four_events(write_run(Path(folder) / "run", None, **packed(worlds))).to_dicts()
    for number, drawn in enumerate(worlds):
        for name in ("r0", "r1"):
            mine = [row for row in rows if row["request_id"] == f"w{number:02d}.{name}"]
            found = [told for row in mine for told in [_told(row)] * (row["tokens"] // 16)]
            assert found == expected(drawn, name)
            ends = itertools.accumulate((row["tokens"] // 16 for row in mine), initial=0)
            assert [row["first_position"] for row in mine] == list(ends)[:-1]
            assert all(_kind(one) != _kind(other) for one, other in itertools.pairwise(mine))


def _told(row: Row) -> tuple[Any, ...]:
    four = [
        None if row[f"{word}_evidence"] is None else row[f"{word}_ns"] is not None
        for word in ("exists", "visible", "selected", "loaded")
    ]
    return row["tier"], row["locality"], *four


def _kind(row: Row) -> tuple[Any, ...]:
    return *_told(row), *(row[f"{word}_evidence"] for word in ("exists", "visible", "selected", "loaded"))
