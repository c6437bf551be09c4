"""The question `compatibility`: may this state be reused at all?

    <invariant>.py   one file an invariant: a function of its own name, (run, asked) -> findings
    _accesses.py     who wrote, asked for and read which key, as SQL
    _identities.py   what each side said of its state, and where two of them differ
    _keepers.py      who keeps a difference from being read, product by product
    _findings.py     what a finding is

An invariant is a file: a new one is found by listing the folder.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.compatibility._findings import Asked
from kvtrace.analyses.lock_contract import COLUMNS as CONTRACT

if TYPE_CHECKING:
    from kvtrace.run import Run

_DIFFERENCE = {"field": pl.String(), "writer": pl.String(), "reader": pl.String(), "tokens": pl.Int64(),
               "enforced_by": pl.String()}  # fmt: skip
COLUMNS = pl.Schema([*CONTRACT.items(), *_DIFFERENCE.items()])


@cache
def invariants() -> tuple[str, ...]:
    """Names of all invariants, by listing the folder."""
    names = (entry.name.removesuffix(".py") for entry in files("kvtrace.analyses.compatibility").iterdir())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def compatibility(run: Run) -> pl.DataFrame:
    """May this state be reused at all: is what is read of the right kind, and can what is written be found?

    read_as_written: a key was written by one engine and read by another that differ in a field (dtype,
    layout, LoRA ...): `enforced_by` says who would have stopped that: the key, the backend or nobody, as
    found in vLLM's and LMCache's source. written_can_be_asked: stores grow and hits stay 0, because the same
    content is asked for under another key: the field is what makes the keys differ (hash seed or algorithm,
    block or chunk size, model, salt, degrees of parallelism). A violated one has a row a writer, reader and
    field; any other has one row that says what it rests on.

    Values are compared where both sides told them; what is told a request (`per request`) is not. A field is
    `hash` where keys of equal content differ and neither side said how it hashes.

    Columns:
        invariant: its name
        status: pass, violated, inconclusive, unobserved or not_applicable
        severity: warning where violated: the answer may still be right; else null
        request_id: the first request that read it, or the last that asked in vain; null when not known
        key: the key that it read or missed; null for an invariant as a whole
        time_ns: when it was first read, or last asked for in vain, unix ns
        detail: what was seen, in words
        evidence: derived, where anything was compared; else null
        field: the field that differs; null unless violated
        writer: its value where the state was written
        reader: its value where it was read or asked for
        tokens: tokens read, or written and never found; null when not known
        enforced_by: key, backend or nobody; null when nothing is known of this product
    """
    asked = Asked(run)
    rows = [
        (
            name, one.status, "warning" if one.status == "violated" else None, one.request_id, one.key,
            one.time_ns, one.detail, one.evidence, one.field, one.writer, one.reader, one.tokens,
            one.enforced_by,
        )
        for name in invariants()
        for one in getattr(importlib.import_module(f"{__name__}.{name}"), name)(run, asked)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")
