"""The question `verdict`: the three questions of a hit, side by side.

same_state.py    is it the state that this request needs? by who wrote what it read
still_there.py   was it there when it was read? by what became of its loads and locks
                 was it worth loading? by `break_even`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import ALGORITHM as SERVED
from kvtrace.analyses._served import measured
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.break_even import ALGORITHM as BREAK_EVEN
from kvtrace.analyses.break_even import table as break_even_table
from kvtrace.analyses.exposure.cache import ALGORITHM as EXPOSURE
from kvtrace.analyses.fallbacks import ALGORITHM as FALLBACKS
from kvtrace.analyses.fallbacks import table as fallbacks_table
from kvtrace.analyses.hit_funnel import ALGORITHM as FUNNEL
from kvtrace.analyses.hit_funnel import table as funnel_table
from kvtrace.analyses.lock_contract import ALGORITHM as LOCKS
from kvtrace.analyses.verdict.same_state import same_state
from kvtrace.analyses.verdict.still_there import still_there
from kvtrace.run.derived import derived_folder, files_hash, kept_rows

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

ALGORITHM = "1"
"""Bumped whenever the answer of the same run can come out differently."""

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "same_state": pl.String,
        "same_state_basis": pl.String,
        "still_there": pl.String,
        "still_there_basis": pl.String,
        "worth_it": pl.String,
        "worth_it_basis": pl.String,
    }
)
_WORTH = {"worth": "yes", "not_worth": "no", "unclear": "unclear"}


def verdict(run: Run, *, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    """Was each hit the right state, was it still there when it was read, and was it worth loading?

    A row a request for which a tier outside the GPU had anything: a lookup found tokens, the scheduler
    selected some, or it has loads. A handoff is never a hit: a request that only got its own state has no
    row. In the order of arrival.

    Three questions that no single counter answers: a hit can be quick and of another model, right and gone
    when it is read, or right, there and slower than computing. unchecked says that the records do not tell;
    it is no yes. What was found and never read (the GPU had it, the scheduler declined, a timeout) is
    unchecked in all three.

    Args:
        run: the run
        requests: only these; none named: all

    Columns:
        request_id: the request
        same_state: yes: the writers of all keys that it read said what its engine says (or are its engine),
            or it read its engine's own host memory; no: a field differs (see `compatibility`); unchecked:
            a writer was not seen or did not say, keys were not recorded, records were lost, or it blended
        same_state_basis: who wrote it, which field differs, or what is missing
        still_there: yes: all that was selected was read; vanished: a read found it gone; expired: its
            protection had run out; unchecked: nothing was read, it failed for another reason, a load has not
            ended, or a record of one was lost and what was computed does not say that all was used
        still_there_basis: what its loads and locks say
        worth_it: yes: it cost less than computing would have, beyond the error of both; no: more; unclear:
            the records do not decide; unchecked: nothing was loaded at its first admission
        worth_it_basis: see `break_even`
    """
    rows = pl.scan_parquet(table(run))
    if requests:
        rows = rows.filter(pl.col("request_id").is_in(list(requests)))
    return rows.collect()


def table(run: Run) -> Path:
    """The cached rows of a run as a Parquet file."""
    key = files_hash(run, ALGORITHM, SERVED, FUNNEL, FALLBACKS, BREAK_EVEN, EXPOSURE, LOCKS)
    target = derived_folder(run) / f"verdict-{key}.parquet"
    return kept_rows(target, lambda: _rows(run))


def _rows(run: Run) -> pl.DataFrame:
    served = served_table(run)
    keep = ("bad", "good", "partly", "undone", "no_room", "load_reason", "lookup_timed_out", "vanished",
            "loads", "usable")  # fmt: skip
    rows = (
        measured(pl.scan_parquet(served))
        .filter(
            (pl.col("found") > 0) | (pl.col("selected") > 0) | (pl.col("loads") > 0),
            ~((pl.col("handoffs") > 0) & (pl.col("reuses") == 0) & (pl.col("loads") == pl.col("handoffs"))),
        )
        .select("request_id", *keep)
        .join(pl.scan_parquet(funnel_table(run)).select("request_id", "loaded_tokens"), on="request_id",
              how="left", maintain_order="left")
        .join(pl.scan_parquet(fallbacks_table(run)).select("request_id", "verdict", "also"),
              on="request_id", how="left", maintain_order="left")
    )  # fmt: skip
    found = still_there(run, rows.collect(), str(served))
    worth = pl.read_parquet(break_even_table(run), columns=["request_id", "verdict", "basis"]).select(
        "request_id",
        worth_it=pl.col("verdict").replace_strict(_WORTH, return_dtype=pl.String),
        worth_it_basis="basis",
    )
    for other in (same_state(run, str(served)), worth):
        found = found.join(other, on="request_id", how="left", maintain_order="left")
    unread = pl.when(pl.col("loads") == 0).then(pl.lit("nothing was read"))
    return found.with_columns(
        pl.col("same_state", "worth_it").fill_null("unchecked"),
        same_state_basis=pl.coalesce(
            "same_state_basis", unread.otherwise(pl.lit("which keys it read was not recorded"))
        ),
        worth_it_basis=pl.coalesce(
            "worth_it_basis", unread.otherwise(pl.lit("nothing was loaded at its first admission"))
        ),
    ).select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())
