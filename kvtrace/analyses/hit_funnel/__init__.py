"""The question `hit_funnel`: exists, visible, found, selected and loaded are different events.

existence.py   which prefix of a request's keys lay in any tier when it was first asked for
parts.py       where the tokens of each chain were lost
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import ALGORITHM as SERVED
from kvtrace.analyses._served import measured
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.hit_funnel.existence import existence
from kvtrace.analyses.hit_funnel.parts import LOST, parted
from kvtrace.run.derived import derived_folder, files_hash, published

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

__all__ = ["COLUMNS", "LOST", "hit_funnel", "table"]

ALGORITHM = "1"
"""Bumped whenever the funnel of the same run can come out differently."""

_LENGTHS = (
    "prompt_tokens", "gpu_hit_tokens", "exists_tokens", "visible_tokens", "found_tokens", "selected_tokens",
    "loaded_tokens", "moved_tokens", "computed_tokens", "recomputed_tokens",
)  # fmt: skip
COLUMNS = pl.Schema([("request_id", pl.String), *((name, pl.Int64) for name in (*_LENGTHS, *LOST))])


def hit_funnel(run: Run, *, requests: tuple[str, ...] = ()) -> pl.DataFrame:
    """How much of each prompt existed, was visible, found, selected and loaded, and where was the rest lost?

    A row a request, in the order of their arrival; ids seen only in lookups, loads, routes or request keys
    have a row too. All are lengths from the first prompt token at the first admission, which ends at the
    first preemption, or at a further inquiry or queue, after its first step. Null: not observed, never 0.

    Laws: gpu_hit + loaded + computed = prompt where all three are known. With beyond = max(0, found -
    gpu_hit): exists - visible = invisible; visible - found = unreported; (beyond - selected) + (selected -
    loaded) = rounding + last_token + declined + vanished + lock + failed + unexplained, the first bracket
    being that of rounding and declined, the second that of vanished, lock and failed; the last token belongs
    to the second where it was selected. A part that could not be told apart is null and in unexplained.

    A load that the scheduler decided and that failed before the admission was selected as well. Tokens that
    a handoff brings (this request's own state, from a prefill engine) are selected, moved and loaded like
    others, because the law holds of them; they are no hit, see `hit_ratio`.

    Args:
        run: the run
        requests: only these; none named: all

    Columns:
        request_id: the request
        prompt_tokens: tokens of its prompt
        gpu_hit_tokens: tokens that the GPU held; where the engine does not say, the cached tokens of the
            client's usage if the process that answered records loads and recorded none
        exists_tokens: longest prefix of its keys that lay in any tier, on any engine, at its first route or
            lookup (else arrival), by key events; at least, since what was stored before the recording is not
            known. Null without keys, where no place records removals of that key space (LMCache's storage
            trace has no evictions: what was written may be gone), or where the next key was written to one
        visible_tokens: what the router saw when it first chose a worker; null without a router
        found_tokens: what the first decisive lookup reported; null when it timed out
        selected_tokens: what the scheduler decided to load beyond its GPU hit
        loaded_tokens: what was used of it: the earliest computed_before of the first admission's steps -
            gpu_hit; where no step of it was recorded what its engine says that it used beyond its own GPU
            hit; null while the GPU hit is unknown, never the tokens moved
        moved_tokens: what transfers into the GPU carried, whole chunks; 0 where none was selected, or where
            the process that answered records loads and recorded none
        computed_tokens: prompt tokens scheduled in the first admission, one counted once; null where
            it did not reach the end of the prompt or steps are missing
        recomputed_tokens: selected - loaded, and prompt tokens scheduled again later; the last token of a
            prompt that was selected whole is computed all the same and does not count
        lost_invisible: exists - visible; negative: a router believed in what was gone
        lost_unreported: visible - found; negative: a router missed what was there
        lost_shadowed: min(found, gpu_hit): the GPU had it already; null of a backend that answers only
            beyond the GPU hit (vLLM's own offloading), and does not say what it has below it
        lost_rounding: found, but less than a block of the engine; null while the block size is unknown
        lost_last_token: 1 where the whole prompt was there: its last token is computed all the same
        lost_declined: found beyond the GPU hit and not selected, in whole blocks
        lost_vanished: selected, not loaded: gone when it was read (load, reason not_found)
        lost_lock: the same, because its protection ran out or was refused (reason expired, a failed lock)
        lost_failed: the same, for any other reason of a failed load: io, timeout, unhealthy, no room
        lost_unexplained: what closes the chains; with selected null beyond - loaded
    """
    rows = pl.scan_parquet(table(run))
    if requests:
        rows = rows.filter(pl.col("request_id").is_in(list(requests)))
    return rows.collect()


def table(run: Run) -> Path:
    """The cached rows of a run as a Parquet file."""
    target = derived_folder(run) / f"hit_funnel-{files_hash(run, ALGORITHM, SERVED)}.parquet"
    if not target.exists():
        facts = served_table(run)
        known = pl.scan_parquet(facts).join(
            existence(run, facts).lazy(), on="request_id", how="left", maintain_order="left"
        )
        rows = parted(measured(known)).select(list(COLUMNS)).cast(COLUMNS)
        with published(target) as partial:
            rows.sink_parquet(partial)
    return target
