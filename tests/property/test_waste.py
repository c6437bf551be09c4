"""Waste against a replay of the events, and against sets of tokens, on drawn runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.waste import waste
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
WORDS = ("stored", "stored", "written", "landed", "removed", "expired", "accessed", "accessed", "cleared")


WORLDS = 8
"""So many worlds are drawn into one run, each under a component of its own: a run is what costs time."""


@st.composite
def events(draw: st.DrawFn, part: str) -> list[Row]:
    """Few objects in two places, one event an instant: stays, repeats and clearings are common."""
    rows = []
    for at in range(draw(st.integers(0, 24))):
        word = draw(st.sampled_from(WORDS))
        row: Row = {"event": "written" if word == "landed" else word, "time_ns": at, "process": "p"}
        row |= {"tier": draw(st.sampled_from(("host", "disk"))), "component": part, "key_space": "s"}
        if word == "cleared":
            row["tier"] = draw(st.sampled_from((row["tier"], None)))
        else:
            row |= {"key": draw(st.sampled_from("abc")), "rank": draw(st.sampled_from((0, 1)))}
        if word == "landed":
            row["reason"] = "landed"
        rows.append(row | {"bytes": 1 << ord(row.get("key", "a")) - ord("a")})
    return rows


def replayed(rows: list[Row], tier: str) -> list[tuple[int, bool, bool]]:
    """(bytes, read, gone) of every stay that a store began or joined."""
    there: dict[Any, list[Any]] = {}
    over = []
    for row in rows:
        if row["tier"] not in (tier, None):
            continue
        name, word = (row.get("key"), row.get("rank")), row["event"]
        if word in ("stored", "written"):
            stay = there.setdefault(name, [row["bytes"], False, False])
            stay[2] |= row.get("reason") != "landed"
        elif word == "accessed" and name in there:
            there[name][1] = True
        elif word in ("removed", "expired") and name in there:
            over.append(there.pop(name))
        elif word == "cleared":
            over += there.values()
            there = {}
    gone = [(size, read, True) for size, read, stored in over if stored]
    return gone + [(size, read, False) for size, read, stored in there.values() if stored]


@given(st.tuples(*(events(f"c{world}") for world in range(WORLDS))))
@cases(10)
def test_what_nobody_read_is_what_the_replay_finds(worlds: tuple[list[Row], ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", block=[row for rows in worlds for row in rows])
        answers = {(row["component"], row["tier"]): row for row in waste(run).to_dicts()}
    for world, rows in enumerate(worlds):
        for tier in ("host", "disk"):
            stays, answer = replayed(rows, tier), answers.get((f"c{world}", tier))
            if answer is None:
                assert not stays
                continue
            sizes = [size for size, _, _ in stays]
            assert (answer["stored_objects"], answer["stored_bytes"]) == (len(stays), sum(sizes))
            told = any(row["event"] == "accessed" and row["tier"] == tier for row in rows)
            unread = [(size, gone) for size, read, gone in stays if not read]
            wanted = (len(unread), sum(s for s, _ in unread), sum(s for s, gone in unread if gone))
            names = ("never_read_objects", "never_read_bytes", "gone_unread_bytes")
            assert tuple(answer[name] for name in names) == (wanted if told else (None, None, None))


PROMPT, CHUNK = 40, 8


Story = dict[str, Any]


@st.composite
def stories(draw: st.DrawFn) -> list[Story]:
    """Requests one after the other, some still running when the next one loads; some preempted."""
    found, at = [], 0
    for _ in range(draw(st.integers(1, 5))):
        hit = draw(st.integers(0, PROMPT - 1))
        selected = draw(st.integers(0, PROMPT - hit))
        before = hit + draw(st.integers(0, min(selected, PROMPT - 1 - hit)))
        found.append(
            {"at": at, "end": at + draw(st.integers(50, 170)), "hit": hit, "selected": selected,
             "more": draw(st.integers(0, 9)), "before": before,
             "again": draw(st.sampled_from((0, 0, 5, PROMPT))),
             "later": draw(st.sampled_from((None, None, 0, 20)))}
        )  # fmt: skip
        at += draw(st.sampled_from((10, 60, 120)))
    return found


def drawn(story: Story, name: str, engine: str) -> tuple[list[Row], list[Row]]:
    """The rows of one request: loaded, computed, perhaps preempted, loaded again and computed again."""
    at, moved = story["at"], story["selected"] + story["more"]
    own = {"engine": engine, "process": "w", "observer": "worker"}

    def load(start: int, tokens: int) -> Row:
        return {"op": "load", "request_id": name, "tier_from": "host", "tier_to": "gpu", "component": engine,
                "start_ns": start, "end_ns": start + 1, "tokens": tokens, "bytes": 3 * tokens,
                "outcome": "ok", **own}  # fmt: skip

    def step(start: int, before: int) -> Row:
        member = {
            "request_id": name,
            "phase": "prefill",
            "computed_before": before,
            "scheduled_tokens": PROMPT - before,
        }
        return {"op": "step", "start_ns": start, "end_ns": start + 1, "members": [member], **own}

    spans = [
        {"op": "request", "request_id": name, "start_ns": at, "end_ns": story["end"], "status": "ok",
         "prompt_tokens": PROMPT, "gpu_hit_tokens": story["hit"],
         "selected_tokens": story["selected"], **own},
        load(at + 1, moved), step(at + 5, story["before"]),
    ]  # fmt: skip
    if story["later"] is not None:
        spans.append({"op": "queue", "reason": "preempted", "request_id": name, "start_ns": at + 10,
                      "end_ns": at + 20, **own, "observer": "scheduler"})  # fmt: skip
        spans += [load(at + 21, story["again"])] if story["again"] else []
        spans.append(step(at + 30, story["later"]))
    keys = [
        {"request_id": name, "attempt": 1, "position": place, "key_space": "s", "key": f"k{place}",
         "tokens": CHUNK, "time_ns": at, "source": "drawn"}
        for place in range(PROMPT // CHUNK)
    ]  # fmt: skip
    return spans, keys


def wanted(story: Story) -> set[int]:
    """The tokens that the scheduler could use of what it selected: all but a prompt's last."""
    return set(range(story["hit"], min(story["hit"] + story["selected"], PROMPT - 1)))


def by_sets(told: list[Story]) -> dict[str, int]:
    """Tokens of each kind of waste, token by token."""
    total = dict.fromkeys(("judged", "recomputed", "twice", "rounding"), 0)
    for number, story in enumerate(told):
        moved, late = story["selected"] + story["more"], story["later"] is not None
        used = set(range(story["hit"], story["before"]))
        lost = used & set(range(story["later"], PROMPT)) if late else set()
        running = [other for other in told[:number] if other["end"] > story["at"] + 1]
        held = {token // CHUNK for other in running for token in wanted(other)}
        shared = held & {token // CHUNK for token in wanted(story)}
        total["judged"] += moved
        total["rounding"] += moved - len(wanted(story))
        total["recomputed"] += len(wanted(story) - used) + len(lost)
        total["twice"] += min(story["again"], moved) * late + min(CHUNK * len(shared), moved)
    return total


@given(st.tuples(*(stories() for _ in range(WORLDS))))
@cases(10)
def test_what_was_loaded_in_vain_is_what_the_sets_of_tokens_say(worlds: tuple[list[Story], ...]) -> None:
    """Each world is an engine of its own: what another one holds is no use."""
    parts = [
        drawn(story, f"c{world}-{number}", f"c{world}")
        for world, told in enumerate(worlds) for number, story in enumerate(told)
    ]  # fmt: skip
    rows = [row for own, _ in parts for row in own]
    spans = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(rows)]
    keys = [key for _, own in parts for key in own]
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", span=spans, request_key=keys)
        answers = {row["component"]: row for row in waste(run).to_dicts()}
    for world, told in enumerate(worlds):
        answer = answers[f"c{world}"]
        assert answer["judged_requests"] == len(told)
        for name, tokens in by_sets(told).items():
            assert (name, answer[f"{name}_tokens"]) == (name, tokens)
            assert answer[f"{name}_bytes"] == 3 * tokens
