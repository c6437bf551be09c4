"""Rows known only by a name that several requests have, paired with those requests in time order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

Lifetime = tuple[int, int]


def pair(rows: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Pair rows (alias, origin, start_ns, end_ns) with requests (alias, request_id, start_ns, end_ns).

    One to one; both are sorted by alias and start. Returns (alias, origin, request_id) and how many rows
    stay without one: they overlap none, or two equally.
    """
    schema = {"alias": pl.String, "origin": pl.UInt64, "request_id": pl.String}
    found: list[tuple[str, int, str]] = []
    left = 0
    candidates = {alias[0]: part for alias, part in requests.group_by("alias", maintain_order=True)}
    for (alias,), part in rows.group_by("alias", maintain_order=True):
        own = candidates.get(alias)
        if own is None:
            continue
        lives = list(zip(part["start_ns"], part["end_ns"].fill_null(2**63 - 1), strict=True))
        chosen = in_time_order(lives, list(zip(own["start_ns"], own["end_ns"], strict=True)))
        names = own["request_id"].to_list()
        for origin, number in zip(part["origin"], chosen, strict=True):
            if number is None:
                left += 1
            else:
                found.append((str(alias), origin, names[number]))
    return pl.DataFrame(found, schema=schema, orient="row"), left


def in_time_order(rows: Sequence[Lifetime], requests: Sequence[Lifetime]) -> list[int | None]:
    """For each row the request it overlaps most, each request once, never against the order of time.

    rows       [----)    [-----)             first row -> first request, second row -> second request
    requests    [---)     [---)  [--)        a tie between two requests: neither
    """
    chosen: list[int | None] = []
    first = 0
    for start, end in rows:
        best, most, tied = None, 0, False
        for number in range(first, len(requests)):
            begin, stop = requests[number]
            if begin >= end:
                break
            overlap = min(end, max(stop, begin + 1)) - max(start, begin)
            if overlap > most:
                best, most, tied = number, overlap, False
            elif overlap == most and best is not None:
                tied = True
        if best is None or tied:
            chosen.append(None)
        else:
            chosen.append(best)
            first = best + 1
    return chosen
