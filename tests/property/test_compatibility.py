"""compatibility against plain loops over every pair, on drawn requests and blocks of three engines.

Several worlds are one run: their engines, keys and requests have the world's number behind their names.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.analyses.compatibility import compatibility
from tests.property.oracle_compatibility import CHUNK, Ask, Block, hashed_apart, in_vain, reads_across
from tests.rows import write_run

Row = dict[str, Any]
Fields = dict[str, dict[str, str]]
S, WORLDS = 1_000_000_000, 10
ENGINES = ("a", "b", "c")
SERVER = {"process": "l0", "engine": "l0", "role": "server"}
SALT = {"identity_id": "lmcache:salt:t", "side": "writer", "field": "cache_salt", "value": "t"}


@st.composite
def request(draw: st.DrawFn, number: int) -> Ask:
    """Prefixes of two prompts; stores overlap now and then, and then name no writer."""
    keys = tuple(f"{draw(st.sampled_from('xy'))}{place}" for place in range(draw(st.integers(1, 3))))
    found = draw(st.integers(0, len(keys)))
    at = 6 * number
    stores = found < len(keys) and draw(st.booleans())
    return Ask(
        f"r{number:02d}",
        draw(st.sampled_from(ENGINES)),
        draw(st.sampled_from(("", "", "t"))),
        draw(st.sampled_from(("m", "m", "n"))),
        keys,
        at,
        found,
        draw(st.integers(1, found)) if found and draw(st.booleans()) else None,
        at + draw(st.sampled_from((1, 3, 5, 7))) if stores else None,
    )


def values(*choices: str) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({name: st.sampled_from(choices) for name in ENGINES})


@st.composite
def world(draw: st.DrawFn) -> tuple[list[Ask], Fields]:
    """Requests in time order, and what their engines say of themselves."""
    asks = [draw(request(number)) for number in range(draw(st.integers(2, 14)))]
    fields = {"dtype": draw(values("x", "y")), "lora": draw(values("none", "l"))}
    fields["tensor_parallel_size"] = draw(values("1", "1", "2"))
    return asks, fields | {"pipeline_parallel_size": dict.fromkeys(ENGINES, "1")}


def numbered(number: int, fields: Fields) -> Fields:
    """The same of the engines of this world."""
    return {field: {f"{name}{number}": value for name, value in of.items()} for field, of in fields.items()}


def apart(number: int, drawn: list[Ask], plain: Fields) -> tuple[Fields, list[Ask]]:
    """A world under names of its own."""
    asks = [
        replace(ask, name=f"{ask.name}-{number}", engine=f"{ask.engine}{number}",
                keys=tuple(f"{key}-{number}" for key in ask.keys))
        for ask in drawn
    ]  # fmt: skip
    return numbered(number, plain), asks


def rows_of(ask: Ask) -> tuple[list[Row], list[Row], list[Row]]:
    """Spans, keys and blocks."""
    own: Row = {"request_id": ask.name, "engine": ask.engine, "process": ask.engine, "evidence": "shim"}
    moving = own | {"observer": "client", "outcome": "ok"}
    salt = "lmcache:salt:t" if ask.tenant else None
    key_of: Row = {"key_space": f"lmcache:unknown:{ask.model}", "tokens": CHUNK}
    times = {"start_ns": ask.at * S, "end_ns": ask.at * S + 1}
    looked = {"op": "lookup", "observer": "scheduler", "found_tokens": ask.found * CHUNK, "identity_id": salt}
    spans, blocks = [own | times | looked], []
    if ask.loaded is not None:
        times = {"start_ns": (ask.at + 5) * S, "end_ns": (ask.at + 6) * S, "tokens": ask.loaded * CHUNK}
        spans.append(moving | times | {"op": "load", "tier_from": "host", "tier_to": "gpu"})
    if ask.stored is not None:
        times = {"start_ns": ask.stored * S, "end_ns": (ask.stored + 4) * S}
        spans.append(moving | times | {"op": "store", "tier_from": "gpu", "tier_to": "host"})
        told = {
            "engine": "l0",
            "process": "l0",
            "component": "lmcache.l1",
            "tier": "host",
            "identity_id": salt,
        }
        told |= {"event": "written", "time_ns": (ask.stored + 2) * S}
        blocks = [key_of | told | {"key": key} for key in ask.keys[ask.found :]]
    whose: Row = {"request_id": ask.name, "attempt": 1, "time_ns": ask.at * S}
    keys = [key_of | whose | {"position": place, "key": key} for place, key in enumerate(ask.keys)]
    return spans, keys, blocks


def identities(fields: Fields) -> list[Row]:
    """Field -> engine -> value, on both sides."""
    return [
        {"identity_id": engine, "side": side, "field": field, "value": value}
        for field, each in fields.items()
        for engine, value in each.items()
        for side in ("writer", "reader")
    ]


def answer(**tables: list[Row]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = compatibility(write_run(Path(folder) / "run", None, process=[SERVER], **tables))
    return [row for row in found.to_dicts() if row["status"] == "violated"]


def parties(detail: str) -> tuple[str | None, str]:
    """Writer and reader, as the sentence names them; a server that tells of no writer is none."""
    named = re.search(r"written by (\w+) .*?(?:that|read by) (\w+) ", detail)
    assert named is not None
    return None if named[1] == "l0" else named[1], named[2]


@settings(max_examples=8, deadline=None)
@given(st.lists(world(), min_size=WORLDS, max_size=WORLDS))
def test_reads_and_misses_are_those_of_every_pair(worlds: list[tuple[list[Ask], Fields]]) -> None:
    rows: list[list[Row]] = [[], [], []]
    across, vain, said = {}, set(), [SALT]
    for number, (drawn, plain) in enumerate(worlds):
        fields, asks = apart(number, drawn, plain)
        names = [f"{name}{number}" for name in ENGINES]
        sides = {name: {field: of[name] for field, of in fields.items()} for name in names}
        across |= reads_across(asks, sides)
        vain |= in_vain(asks, sides)
        said += identities(fields)
        for ask in asks:
            for table, more in zip(rows, rows_of(ask), strict=True):
                table += more
    found = answer(span=rows[0], request_key=rows[1], block=rows[2], identity=said)
    told: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for row in (row for row in found if row["invariant"] == "read_as_written"):
        where = (row["field"], *parties(row["detail"]))
        reads, first = told.get(where, (0, 2**62))
        told[where] = (reads + row["tokens"] // CHUNK, min(first, row["time_ns"] // S))
    assert told == across
    missed = [row for row in found if row["invariant"] == "written_can_be_asked"]
    assert {(row["field"], *parties(row["detail"])) for row in missed} == vain


block = st.builds(Block, st.sampled_from(ENGINES), st.sampled_from("defg"), st.integers(1, 9), st.booleans())
blocks = st.lists(block, min_size=1, max_size=12, unique_by=lambda one: (one.engine, one.content, one.shared))


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(blocks, values("1", "2", "3")), min_size=WORLDS, max_size=WORLDS))
def test_equal_content_under_another_hash_is_told_once_a_pair_with_its_tokens(
    worlds: list[tuple[list[Block], dict[str, str]]],
) -> None:
    rows, said, wanted = [], [], {}
    for number, (drawn, plain) in enumerate(worlds):
        seeds = numbered(number, {"hash_seed": plain})["hash_seed"]
        own = [
            replace(one, engine=f"{one.engine}{number}", content=f"{one.content}{number}") for one in drawn
        ]
        wanted |= hashed_apart(own, seeds)
        said += identities({"hash_seed": seeds})
        for one in own:
            place = ("disk", "vllm.offloading.fs") if one.shared else ("gpu", "vllm.gpu")
            row = {"event": "stored", "time_ns": one.at * S, "engine": one.engine, "tokens": 16}
            row |= {"key_space": "vllm:sha256:m", "key": f"{seeds[one.engine]}{one.content}"}
            rows.append(row | {"token_digest": one.content, "tier": place[0], "component": place[1]})
    found = answer(block=rows, identity=said)
    told = {parties(row["detail"]): (row["field"], row["tokens"]) for row in found}
    assert told == {pair: ("hash_seed", 16 * len(contents)) for pair, contents in wanted.items()}
    assert len(found) == len(wanted)
