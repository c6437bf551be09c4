"""Laws of tying LMCache's client to its server, on drawn runs whose truth is known.

A run: requests, each stored in several parts by one or two workers, parts overlapping at will; then rows are
lost on one side or on both.
"""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.importer.facts import COLUMNS, Facts
from kvtrace.importer.transfers import SLACK_NS, certain, tie

START = 10**18
STEP = SLACK_NS // 4


@st.composite
def runs(draw: st.DrawFn, *, apart: bool = False) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of a client's and a server's row that are one transfer; `apart`: no windows overlap."""
    pairs = []
    for request in range(draw(st.integers(1, 3))):
        for engine in range(draw(st.integers(1, 2))):
            at = START
            begun = START
            for part in range(draw(st.integers(1, 5))):
                at += draw(st.integers(1, 12)) * STEP + (20 * STEP if apart else 0)
                begun = max(begun + 1, at + draw(st.integers(0, 6)) * STEP)
                end = begun + draw(st.integers(1, 6)) * STEP
                group = {
                    "request_id": f"r{request}",
                    "engine_id": str(engine),
                    "op": "store",
                    "is_span": False,
                }
                client = {"observer": "client", "transfer_id": f"c{part}", "start_ns": at, "end_ns": end}
                name = f"r{request}#{engine}.{part}"
                server = {"observer": "server", "transfer_id": name, "start_ns": begun, "end_ns": end}
                pairs.append((group | client, group | server))
                if apart:
                    at = end
    return pairs


def ties(rows: list[dict[str, Any]]) -> tuple[dict[int, str], int]:
    with tempfile.TemporaryDirectory() as folder:
        facts = Facts(Path(folder))
        full = [
            row | {"row": number, "submit_ns": None, "begin_ns": row["start_ns"]}
            for number, row in enumerate(rows)
        ]
        facts.keep("moves", pl.DataFrame(full, schema=COLUMNS["moves"], infer_schema_length=None))
        found = tie(facts, np.empty(0, np.int64))
    return dict(zip(found.rows.tolist(), found.ids.to_list(), strict=True)), sum(
        loss.count for loss in found.losses
    )


@given(runs(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_without_losses_every_row_finds_its_own(pairs: list[Any], order: Any) -> None:
    rows = [row for pair in pairs for row in pair]
    order.shuffle(rows)
    found, unclear = ties(rows)
    truth = {
        (client["request_id"], client["engine_id"], client["transfer_id"]): server for client, server in pairs
    }
    clients = [number for number, row in enumerate(rows) if row["observer"] == "client"]
    assert unclear == 0
    assert set(found) == set(clients)
    for number, name in found.items():
        row = rows[number]
        assert name == truth[row["request_id"], row["engine_id"], row["transfer_id"]]["transfer_id"]


@given(runs(), st.data(), st.sampled_from([0, 1]))
@settings(max_examples=150, deadline=None)
def test_losses_of_one_side_tie_nothing_wrong_and_count_what_stays_apart(
    pairs: list[Any], data: st.DataObject, side: int
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(pairs) - 1)))
    _check(pairs, lost if side == 0 else set(), lost if side == 1 else set())


@given(runs(apart=True), st.data())
@settings(max_examples=150, deadline=None)
def test_losses_of_both_sides_tie_nothing_wrong_where_transfers_lie_apart(
    pairs: list[Any], data: st.DataObject
) -> None:
    numbers = st.sets(st.integers(0, len(pairs) - 1))
    clients, servers = data.draw(numbers), data.draw(numbers)
    found, unclear = _check(pairs, clients, servers)
    assert unclear == 0
    assert found == len(set(range(len(pairs))) - clients - servers)


def _check(pairs: list[Any], no_client: set[int], no_server: set[int]) -> tuple[int, int]:
    rows = [pair[0] for number, pair in enumerate(pairs) if number not in no_client]
    rows += [pair[1] for number, pair in enumerate(pairs) if number not in no_server]
    if not rows:
        return 0, 0
    found, unclear = ties(rows)
    truth = {
        (client["request_id"], client["engine_id"], client["transfer_id"]): server["transfer_id"]
        for client, server in pairs
    }
    for number, name in found.items():
        row = rows[number]
        assert row["observer"] == "client"
        assert name == truth[row["request_id"], row["engine_id"], row["transfer_id"]]
    both = [n for n in range(len(pairs)) if n not in no_client and n not in no_server]
    assert len(found) + unclear >= len(both)
    return len(found), unclear


@given(st.integers(1, 4), st.integers(1, 4), st.data())
@settings(max_examples=200, deadline=None)
def test_certain_pairs_are_what_brute_force_finds_in_every_largest_pairing(
    clients: int, servers: int, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.booleans(), min_size=clients * servers, max_size=clients * servers))
    fits = np.array(cells).reshape(clients, servers)
    pairings = [
        frozenset(zip(some, others, strict=True))
        for size in range(min(clients, servers) + 1)
        for some in combinations(range(clients), size)
        for others in combinations(range(servers), size)
        if all(fits[at, place] for at, place in zip(some, others, strict=True))
    ]
    most = max(len(pairing) for pairing in pairings)
    largest = [pairing for pairing in pairings if len(pairing) == most]
    assert set(certain(fits)) == set(frozenset.intersection(*largest))
