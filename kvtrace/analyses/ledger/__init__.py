"""The question `ledger`: the quantities of every request, side by side.

tokens_out.py   times between the tokens that a request put out, from the steps
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import ALGORITHM as SERVED
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.fallbacks import ALGORITHM as FALLBACKS
from kvtrace.analyses.fallbacks import table as fallbacks_table
from kvtrace.analyses.hit_funnel import ALGORITHM as FUNNEL
from kvtrace.analyses.hit_funnel import table as funnel_table
from kvtrace.analyses.ledger.tokens_out import ALGORITHM as TOKENS_OUT
from kvtrace.analyses.ledger.tokens_out import table as tokens_out_table
from kvtrace.run.derived import derived_folder, files_hash, published

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

__all__ = ["COLUMNS", "column", "ledger", "table"]

ALGORITHM = "4"
"""Bumped whenever the ledger of the same run can come out differently."""

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "gpu_hit_tokens": pl.Int64,
        "external_hit_tokens": pl.Int64,
        "loaded_bytes": pl.Int64,
        "lookup_wait_ns": pl.Int64,
        "lock_wait_ns": pl.Int64,
        "d2h_ns": pl.Int64,
        "h2d_ns": pl.Int64,
        "network_ns": pl.Int64,
        "recomputed_tokens": pl.Int64,
        "store_completed_ns": pl.Int64,
        "block_hold_ns": pl.Int64,
        "ttft_ns": pl.Int64,
        "itl_p50_ns": pl.Int64,
        "itl_p99_ns": pl.Int64,
        "status": pl.String,
        "verdict": pl.String,
    }
)


def ledger(run: Run, *, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    """What did each request get from where, what did it wait for, and what did it pay?

    A row a request, in the order of their arrival; ids seen only in lookups, loads, routes or request keys
    have a row too. Times are unions: what overlaps counts once. Null: not observed. A time is 0 where
    somebody recorded its kind for other requests of the same engine and none for this one; where nobody did,
    or a transfer's other end is unknown and could have been of the kind, it is null. An open interval counts
    to the last record of its process.

    Args:
        run: the run
        requests: only these; none named: all

    Columns:
        request_id: the request
        gpu_hit_tokens: prompt tokens that the GPU held at its first admission
        external_hit_tokens: prompt tokens used from any other tier; state that a handoff brought is no hit;
            null where both came and nobody knows how much of each was used
        loaded_bytes: bytes that its loads brought into the GPU, handoffs and later admissions included
        lookup_wait_ns: its lookups, while it lived, ns
        lock_wait_ns: its waits for locks, while it lived, ns; null where nobody records such waits (those of
            LMCache are tries, there is none)
        d2h_ns: its stores from the GPU to host memory, ns
        h2d_ns: its loads from host memory to the GPU, ns
        network_ns: its transfers from or to a peer or an object store, ns; 0 only where hops below the host
            are recorded
        recomputed_tokens: tokens selected but not loaded, and prompt tokens scheduled again later
        store_completed_ns: when its last store that did not fail was complete, unix ns; null while one is
            open
        block_hold_ns: how long its GPU blocks were held by transfers, ns
        ttft_ns: arrival to first token, as the front end saw it, else to the end of the first step that put
            one out, ns
        itl_p50_ns: median of the times between its tokens, by the ends of the steps, ns; null where the steps
            put out other than its output_tokens, or these are unknown and a record may be lost between them
        itl_p99_ns: their 99th percentile, ns
        status: ok, error, aborted or open
        verdict: what became of the cache's offer, see `fallbacks`
    """
    rows = pl.scan_parquet(table(run))
    if requests:
        rows = rows.filter(pl.col("request_id").is_in(list(requests)))
    return rows.collect()


def _path(run: Run) -> Path:
    key = files_hash(run, ALGORITHM, SERVED, FALLBACKS, FUNNEL, TOKENS_OUT)
    return derived_folder(run) / f"ledger-{key}.parquet"


def table(run: Run) -> Path:
    """The cached rows of a run as a Parquet file."""
    target = _path(run)
    if not target.exists():
        funnel = pl.scan_parquet(funnel_table(run)).select(
            "request_id", "gpu_hit_tokens", "loaded_tokens", "recomputed_tokens"
        )
        verdicts = pl.scan_parquet(fallbacks_table(run)).select("request_id", "verdict")
        rows = pl.scan_parquet(served_table(run))
        for other in (funnel, verdicts, pl.scan_parquet(tokens_out_table(run))):
            rows = rows.join(other, on="request_id", how="left", maintain_order="left")
        rows = rows.with_columns(external_hit_tokens=_hit(), ttft_ns=_ttft())
        with published(target) as partial:
            rows.select(list(COLUMNS)).cast(COLUMNS).sink_parquet(partial)
    return target


_REQUESTS = "SELECT request_id, start_ns, ttft_ns FROM request"
_FROM_STEPS = ("ttft_ns", "itl_p50_ns", "itl_p99_ns")
_FROM_FUNNEL = ("gpu_hit_tokens", "recomputed_tokens")


def column(run: Run, name: str) -> pl.DataFrame:
    """(request_id, name) of every request, as the ledger has it, without what the other columns take."""
    if name in _FROM_STEPS and not _path(run).exists():
        requests = pl.DataFrame(run.connection().sql(_REQUESTS).to_arrow_table()).lazy()
        steps = pl.scan_parquet(tokens_out_table(run))
        rows = requests.join(steps, on="request_id", how="left").with_columns(ttft_ns=_ttft())
    elif name in _FROM_FUNNEL and not _path(run).exists():
        rows = pl.scan_parquet(funnel_table(run))
    else:
        rows = pl.scan_parquet(table(run))
    return rows.select("request_id", name).cast({name: COLUMNS[name]}).collect()


def _hit() -> pl.Expr:
    """Loaded tokens, but for those of a handoff."""
    handed = pl.col("handoffs") > 0
    return (
        pl.when(~handed | (pl.col("loaded_tokens") == 0)).then("loaded_tokens")
        .when(pl.col("reuses") == 0).then(0)
    )  # fmt: skip


def _ttft() -> pl.Expr:
    """The front end's, else the steps'; a step that put it out before the arrival has another clock."""
    out, arrival = pl.col("first_out_ns"), pl.col("start_ns")
    return pl.coalesce("ttft_ns", pl.when(out >= arrival, out - arrival >= 0).then(out - arrival))
