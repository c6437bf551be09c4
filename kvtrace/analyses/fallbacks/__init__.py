"""The question `fallbacks`: what became of the external cache's offer to each request.

promises.py   what a cache's lower tier had promised, and did not deliver
verdicts.py   the verdicts as conditions on the facts, in their order
misses.py     why a request found nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import ALGORITHM as SERVED
from kvtrace.analyses._served import served
from kvtrace.analyses.fallbacks.misses import MISSES, explained
from kvtrace.analyses.fallbacks.promises import promised
from kvtrace.analyses.fallbacks.verdicts import VERDICTS, judged
from kvtrace.run.derived import derived_folder, files_hash, kept_rows, spilling

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

__all__ = ["COLUMNS", "MISSES", "VERDICTS", "fallbacks", "table"]

ALGORITHM = "5"
"""Bumped whenever the verdicts of the same run can come out differently."""

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "verdict": pl.String,
        "also": pl.String,
        "reason": pl.String,
        "expected_tokens": pl.Int64,
        "loaded_tokens": pl.Int64,
        "recomputed_tokens": pl.Int64,
        "waited_ns": pl.Int64,
        "recompute_ns": pl.Int64,
        "status": pl.String,
    }
)


def fallbacks(run: Run, *, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    """Did each request get what the cache offered, or a right answer after recomputing?

    A row a request whose engine has an external tier: a lookup, a health row or an identity says so. The
    first verdict that holds, in this order; `also` names the others.

    hung: no end seen. failed: the request ended with an error. cancelled: aborted.
    recompute_after_timeout: a lookup or load timed out, and not all was loaded. recompute_degraded: admitted
    while its engine saw the cache as degraded or down, and no inquiry reached it. admission_fallback: a load
    found no room to land. recompute_after_failure: a load failed and nothing was loaded. partial: a part of
    what was selected, or of what the cache's lower tier had and was loading, was loaded.
    recompute_after_preemption: preempted, and prompt tokens were scheduled again. noop: a blend found chunks
    and used none. loaded: all that was selected. declined: more was found than the GPU held, and none was
    selected. shadowed: the GPU held all that was found. miss: nothing was found, or nothing asked. What
    was recorded may not tell (the GPU's own hit was not observed, only the cache records inquiries): then the
    verdict is null.

    A miss has a reason: never_stored, evicted, not_yet_stored (an earlier request's store of its first key
    was not over), key_mismatch (equal content under another key), below_chunk, not_asked, else unknown. The
    reason of another verdict is that of the operation that decided.

    The first admission ends at the first preemption, or at a further inquiry or queue, after its first step.

    Args:
        run: the run
        requests: only these; none named: all

    Columns:
        request_id: the request
        verdict: what became of the offer; null when what was recorded does not tell
        also: the other verdicts that hold, in the same order
        reason: of a miss why nothing was found; else the operation's reason, when it gave one
        expected_tokens: tokens selected to be loaded, else found from the first prompt token; where the
            cache's lower tier had promised more and did not deliver it, what it had promised
        loaded_tokens: tokens used of it at the first admission; null while the GPU hit or the steps are
            unknown, never the tokens that were moved
        recomputed_tokens: tokens selected but not loaded, and prompt tokens scheduled again later; of a
            prompt that was found whole the last token is computed all the same and does not count
        waited_ns: union of its lookups, loads from submit to usable, and lock waits, while it lived, ns
        recompute_ns: union of the steps that computed recomputed tokens, ns; null while those are unknown
        status: the request's
    """
    return _rows(run, requests) if requests else pl.read_parquet(table(run))


def table(run: Run) -> Path:
    """The cached rows of a run as a Parquet file."""
    target = derived_folder(run) / f"fallbacks-{files_hash(run, ALGORITHM, SERVED)}.parquet"
    return kept_rows(target, lambda: _named(pl.read_parquet(_facts(run)).filter("tiered")))


def verdicts_of(run: Run, requests: tuple[str, ...]) -> pl.DataFrame:
    """All facts and verdicts of these requests, also of those whose engine has no external tier."""
    return pl.scan_parquet(_facts(run)).filter(pl.col("request_id").is_in(list(requests))).collect()


def _rows(run: Run, requests: tuple[str, ...]) -> pl.DataFrame:
    """Of these requests alone: nothing is computed, nor read, of others."""
    return _named(_judged(run, requests).filter("tiered"))


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.rename({"loaded": "loaded_tokens"}).select(list(COLUMNS)).cast(COLUMNS)


def _facts(run: Run) -> Path:
    """The cached facts and verdicts of all requests as a Parquet file."""
    target = derived_folder(run) / f"verdicts-{files_hash(run, ALGORITHM, SERVED)}.parquet"
    return kept_rows(target, lambda: _judged(run))


def _judged(run: Run, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    connection = run.connection() if requests else spilling(run)
    everything = served(run, requests, connection)
    stores = None if requests else everything.select("request_id", "stores", "first_stored_ns")
    computed_again = pl.when(pl.col("recomputed_tokens").is_not_null()).then("recompute_ns")
    rows = judged(promised(connection, everything.filter("is_request")))
    return explained(connection, rows, stores).with_columns(recompute_ns=computed_again)
