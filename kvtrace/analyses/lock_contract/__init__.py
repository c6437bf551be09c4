"""The question `lock_contract`: may what was found vanish before it is read?

    <invariant>.py  one file an invariant: a function of its own name, (run, asked) -> findings
    _findings.py    what a finding is, which losses count
    _objects.py     what a cache's objects went through, event by event
    _pool.py        what the scheduler's process compared inside vLLM
    _retained.py    what loads were to restore for each group of layers, and what they did

An invariant is a file: a new one is found by listing the folder.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.lock_contract._findings import Asked
from kvtrace.errors import UsageError
from kvtrace.run.derived import derived_folder, files_hash, published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "invariant": pl.String,
        "status": pl.String,
        "severity": pl.String,
        "request_id": pl.String,
        "key": pl.String,
        "time_ns": pl.Int64,
        "detail": pl.String,
        "evidence": pl.String,
    }
)


ALGORITHM = "1"
"""Changed with what an invariant finds, so that no cached answer of an older one is met."""
_BOUND_S = 60.0


@cache
def invariants() -> tuple[str, ...]:
    """Names of all invariants, by listing the folder."""
    names = (entry.name.removesuffix(".py") for entry in files("kvtrace.analyses.lock_contract").iterdir())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def lock_contract(run: Run, *, bound_s: float = _BOUND_S, only: tuple[str, ...] = ()) -> pl.DataFrame:
    """Is the state that transfers need protected while they need it, and let go once?

    All invariants are asked, by name. Of GPU blocks: freed_once (a hold's blocks are given back once) and
    held_block_not_reused (handed out to nobody while it keeps them). Of transfers: completes_within_bound
    (what was submitted completes) and transfers_end_once. Of loads: retained_state_covered (the window, the
    recurrent state or the whole prefix that each group of layers needs is there) and restored_completely
    (what a connector reports as restored was; a row a connector). Of a cache's locks: released_once,
    read_within_ttl, not_removed_while_locked, not_written_while_locked, readable_was_written,
    reservation_written_or_returned, reservation_all_or_nothing, read_only_what_was_locked. Of LMCache's
    server: found_adds_up, served_keys_touched, lru_order, nothing_left_at_idle and records_complete. A
    violated one has a row a violation; any other has one row that says what it rests on.

    violated was seen, or follows from the absence of a record while none was missing yet. pass needs complete
    records: with losses, or where only a part was watched, it is inconclusive. unobserved: the kind of record
    it needs is wholly absent. not_applicable: nothing it is about was in the run.

    Args:
        run: the run
        bound_s: seconds in which what was submitted, or locked, must complete
        only: only these invariants; none named: all

    Columns:
        invariant: its name
        status: pass, violated, inconclusive, unobserved or not_applicable
        severity: error or warning (it was bound to happen, by a configured time to live or a forced clear);
            null unless violated
        request_id: whose state it was; null when not known
        key: the cache key, the number of the GPU block, or the connector; null for an invariant as a whole
        time_ns: when, unix ns; of what did not complete when it was overdue
        detail: what was seen, in words
        evidence: native, shim or derived: the weakest of what it rests on

    Raises:
        UsageError: `bound_s` is not above 0.
    """
    if not (math.isfinite(bound_s) and 0 < bound_s < 1e9):
        raise UsageError(f"lock_contract: bound_s must be above 0 and below 1e9 seconds, not {bound_s}.")
    if unknown := sorted(set(only) - set(invariants())):
        raise UsageError(
            f"lock_contract: no invariant {', '.join(unknown)}; there are {', '.join(invariants())}."
        )
    asked = Asked(run, round(bound_s * 1e9))
    rows = [
        (name, one.status, one.severity, one.request_id, one.key, one.time_ns, one.detail, one.evidence)
        for name in only or invariants()
        for one in getattr(importlib.import_module(f"{__name__}.{name}"), name)(run, asked)
    ]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def broken(run: Run, requests: Sequence[str]) -> pl.DataFrame:
    """The violations, at the usual bound, that name one of these requests; those of all are cached."""
    target = derived_folder(run) / f"broken-{files_hash(run, ALGORITHM)}.parquet"
    if not target.exists():
        found = lock_contract(run).filter(pl.col("status") == "violated", pl.col("request_id").is_not_null())
        with published(target) as partial:
            found.write_parquet(partial)
    mine = pl.scan_parquet(target).filter(pl.col("request_id").is_in(list(requests)))
    return mine.sort("time_ns", maintain_order=True).collect()
