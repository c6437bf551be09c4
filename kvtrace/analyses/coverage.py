"""What was observed, what was not, and what would fill it."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from kvtrace.run import Run

_COLUMNS = {
    "fact": pl.String, "noun": pl.String, "rows": pl.Int64, "of_rows": pl.Int64, "observed": pl.Boolean,
    "instrument": pl.String, "consequence": pl.String,
}  # fmt: skip

_REQUEST = """
    WITH asked AS (
        SELECT *, request_id IN (SELECT request_id FROM queue) AS queued,
            request_id IN (SELECT request_id FROM member WHERE op = 'step') AS stepped,
            request_id IN (SELECT request_id FROM request_key) AS keyed
        FROM request
    ), counted AS (
        SELECT count(*) AS requests, count(start_ns) AS arrived, count(end_ns) AS finished,
            count(first_token_ns) AS first_tokens, count(status) AS statuses,
            count(gpu_hit_tokens) AS gpu_hits, count(selected_tokens) AS selected,
            count(reported_cached_tokens) AS reported, count(predicted_tokens) AS predicted,
            count(*) FILTER (queued) AS queued, count(*) FILTER (stepped) AS stepped,
            count(*) FILTER (keyed) AS keyed
        FROM asked
    )
    SELECT unnest(['request_arrival', 'request_finish', 'first_token', 'request_status', 'gpu_hit_tokens',
        'selected_tokens', 'reported_cached_tokens', 'predicted_tokens', 'queue_time', 'request_in_steps',
        'request_keys']),
        unnest([arrived, finished, first_tokens, statuses, gpu_hits, selected, reported, predicted, queued,
            stepped, keyed]), requests
    FROM counted
"""
# A queue row has its true reason when somebody saw it; for capacity that includes the blocks it lacked.
_SPAN = """
    WITH counted AS (
        SELECT
            count(*) FILTER (op = 'queue') AS queues,
            count(*) FILTER (op = 'queue' AND reason <> 'unknown'
                AND (reason <> 'capacity' OR blocks IS NOT NULL)) AS reasons,
            count(*) FILTER (op = 'lookup') AS lookups,
            count(requested_tokens) FILTER (op = 'lookup') AS asked,
            count(found_tokens) FILTER (op = 'lookup') AS found,
            count(*) FILTER (op = 'lookup' AND cardinality(found_by_tier) > 0) AS tiers,
            count(*) FILTER (op = 'step') AS steps,
            count(*) FILTER (op = 'step' AND len(members) > 0) AS served,
            count(*) FILTER (op = 'wait') AS waits,
            count(*) FILTER (op = 'store') AS stores,
            count(*) FILTER (op = 'drop') AS drops,
            count(*) FILTER (op = 'drop' AND reason <> 'unknown') AS drop_reasons,
            count(*) FILTER (op = 'hold') AS holds,
            count(blocks) FILTER (op = 'hold') AS held,
            count(*) FILTER (op = 'health') AS healths,
            count(*) FILTER (op IS NULL AND name = 'restored_state') AS restored
        FROM span
    )
    SELECT unnest(['queue_reason_and_blocks', 'lookup_asked_tokens', 'lookup_found_tokens', 'found_by_tier',
        'step_members', 'engine_waits', 'stores', 'drop_reason', 'gpu_blocks_held', 'cache_health',
        'restored_by_group']),
        unnest([reasons, asked, found, tiers, served, waits, stores, drop_reasons, held, healths, restored]),
        unnest([queues, lookups, lookups, lookups, steps, NULL, NULL, drops, holds, NULL, NULL])
    FROM counted
"""
_TRANSFER = """
    WITH counted AS (
        SELECT count(*) AS transfers, count(bytes) AS sized,
            count(*) FILTER (op = 'load') AS loads,
            count(*) FILTER (op = 'load' AND tier_to = 'gpu') AS to_gpu,
            count(*) FILTER (op = 'load' AND tier_to NOT IN ('gpu', 'unknown')) AS between,
            count(*) FILTER (op = 'load' AND submit_ns IS NOT NULL AND usable_ns IS NOT NULL) AS timed
        FROM transfer
    )
    SELECT unnest(['transfer_bytes', 'loads_to_gpu', 'loads_between_tiers', 'load_submit_and_usable']),
        unnest([sized, to_gpu, between, timed]), unnest([transfers, NULL, NULL, loads])
    FROM counted
"""
_OTHER = """
    SELECT 'key_events', count(*), NULL FROM block
    UNION ALL SELECT 'key_removals', count(*), NULL FROM block
        WHERE event IN ('removed', 'expired', 'cleared')
    UNION ALL SELECT 'metrics', count(*), NULL FROM metric
    UNION ALL SELECT 'locks', sum(seen)::BIGINT, NULL FROM (
        SELECT count(*) AS seen FROM span WHERE op IN ('lock_wait', 'lock_hold')
        UNION ALL SELECT count(*) FROM block WHERE event IN ('locked', 'unlocked')
    )
"""


def coverage(run: Run) -> pl.DataFrame:
    """What was observed, what was not, what would fill it, and what cannot be said without it?

    A row a fact, in reading order, also where nothing was observed and on an empty run. A fact that only
    some rows have is observed in part: rows < of_rows.

    Columns:
        fact: what an operator wants to know
        noun: the noun or table that holds it (kvtrace describe NOUN)
        rows: how many rows have it; requests for queue_time, request_in_steps and request_keys
        of_rows: of how many; null where nobody can know how many there should have been
        observed: rows > 0
        instrument: what records it; "(planned)" is what this version of kvtrace cannot do yet
        consequence: what cannot be answered without it
    """
    connection = run.connection()
    counted: dict[str, tuple[int, int | None]] = {}
    for query in (_REQUEST, _SPAN, _TRANSFER, _OTHER):
        counted.update({fact: (rows, of_rows) for fact, rows, of_rows in connection.sql(query).fetchall()})
    rows = []
    text = files("kvtrace.analyses").joinpath("coverage.toml").read_text(encoding="utf-8")
    for entry in tomllib.loads(text)["fact"]:
        seen, of_rows = counted[entry["fact"]]
        rows.append(
            (entry["fact"], entry["noun"], seen, of_rows, seen > 0, entry["instrument"], entry["consequence"])
        )
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")
