"""Everything that the sentences about some requests stand on, fetched in a few queries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.analyses.blockers.cache import shares_of
from kvtrace.analyses.break_even import table as break_even_table
from kvtrace.analyses.coverage import coverage
from kvtrace.analyses.exposure import partition
from kvtrace.analyses.fallbacks import verdicts_of
from kvtrace.analyses.verdict import verdict

if TYPE_CHECKING:
    from kvtrace.run import Run

Row = dict[str, Any]

_REQUESTS = """
SELECT request_id, start_ns, end_ns, first_token_ns, ttft_ns, duration_ns, prompt_tokens, output_tokens,
    gpu_hit_tokens, selected_tokens, status, engine, span_id
FROM request WHERE list_contains($ids, request_id)
"""
_ALIASES = """
SELECT DISTINCT request_id, alias, kind FROM alias
WHERE list_contains($ids, request_id) AND kind IN ('client', 'external') ORDER BY kind, alias
"""
_SPANS = """
SELECT request_id, op, reason, outcome, start_ns, end_ns, blocks, free_blocks, span_id
FROM span WHERE op IN ('queue', 'lookup', 'load', 'lock_wait', 'wait') AND list_contains($ids, request_id)
ORDER BY end_ns::HUGEINT - start_ns DESC NULLS FIRST, start_ns, span_id
"""
_HEALTH = """
SELECT k.request_id, h.reason,
    least(9223372036854775807, min(greatest(h.start_ns, k.s))::HUGEINT - min(k.s))::BIGINT AS after_ns,
    least(9223372036854775807,
        sum(least(coalesce(h.end_ns, k.e), k.e)::HUGEINT - greatest(h.start_ns, k.s)))::BIGINT AS lasted_ns
FROM health h JOIN lives k ON h.engine = k.engine
WHERE h.reason <> 'healthy' AND h.start_ns < k.e AND coalesce(h.end_ns, k.e) > k.s
GROUP BY k.request_id, h.reason ORDER BY k.request_id, lasted_ns DESC
"""
_LOSSES = """
SELECT k.request_id, l.cause, l.op, sum(l.count)::BIGINT AS count
FROM loss l JOIN lives k ON coalesce(l.from_ns, 0) < k.e AND coalesce(l.to_ns, 9223372036854775807) >= k.s
WHERE l.cause <> 'duplicate' GROUP BY ALL ORDER BY ALL
"""
_CLASSES = """
SELECT request_id, "window", class, any_value(bound) AS bound, sum(exposed_ns)::BIGINT AS exposed_ns
FROM read_parquet($path) WHERE list_contains($ids, request_id) AND "window" IN ('ttft', 'e2e')
GROUP BY request_id, "window", class ORDER BY request_id, "window", exposed_ns DESC NULLS LAST, class
"""
_COSTS = """
SELECT request_id, true AS has_load, cost_ns, cost_low, cost_high, recompute_estimate_ns, recompute_low,
    recompute_high, exact
FROM read_parquet($path) WHERE list_contains($ids, request_id)
"""


@dataclass(frozen=True)
class Story:
    """What is known of one request; rows as they come out of the nouns and questions."""

    request: Row
    aliases: list[Row]
    spans: list[Row]
    classes: list[Row]
    blockers: list[Row]
    verdict: Row
    health: list[Row]
    losses: list[Row]
    hit: Row | None
    observed: dict[str, bool]

    def exposed(self, window: str) -> list[Row]:
        """Classes of a window with their time, the longest first."""
        return [row for row in self.classes if row["window"] == window]

    @property
    def bound(self) -> str | None:
        """Bound of the request's partition; null when it has none."""
        return self.classes[0]["bound"] if self.classes else None

    def of(self, op: str, **values: Any) -> list[Row]:
        """Its spans of an operation with these values, the longest first."""
        return [
            row
            for row in self.spans
            if row["op"] == op and all(row[key] == value for key, value in values.items())
        ]


def gather(run: Run, ids: list[str]) -> list[Story]:
    """What is known of each of these requests, in their order."""
    if not ids:
        return []
    connection = run.connection()
    asked = {"ids": ids}

    def fetched(query: str, **more: Any) -> pl.DataFrame:
        params = {**asked, **more} if "$ids" in query else None
        return pl.DataFrame(connection.sql(query, params=params).to_arrow_table())

    requests = fetched(_REQUESTS)
    verdicts = verdicts_of(run, tuple(ids))
    lives = requests.join(verdicts.select("request_id", own="engine"), on="request_id", how="left").select(
        "request_id",
        s="start_ns",
        e=pl.coalesce("end_ns", pl.lit(2**63 - 1)),
        engine=pl.coalesce("own", "engine"),
    )
    connection.register("lives", lives.to_arrow())
    parts = {
        "request": requests,
        "aliases": fetched(_ALIASES),
        "spans": fetched(_SPANS),
        "classes": fetched(_CLASSES, path=str(partition(run))),
        "blockers": shares_of(run, tuple(ids)).sort(
            "request_id", "exposed_ns", "overlap_ns", "blocker_request_id",
            descending=[False, True, True, False], nulls_last=True,
        ),
        "verdict": verdicts,
        "health": fetched(_HEALTH),
        "losses": fetched(_LOSSES),
        "hit": verdict(run, requests=tuple(ids)).join(
            fetched(_COSTS, path=str(break_even_table(run))), on="request_id", how="left"
        ),
    }  # fmt: skip
    connection.unregister("lives")
    grouped = {name: _grouped(frame) for name, frame in parts.items()}
    known = coverage(run)
    observed = dict(zip(known["fact"].to_list(), known["observed"].to_list(), strict=True))
    stories = []
    for name in ids:
        mine = {part: rows.get(name, []) for part, rows in grouped.items()}
        (request,), (told,) = mine.pop("request"), mine.pop("verdict")
        (hit,) = mine.pop("hit") or (None,)
        stories.append(Story(request=request, verdict=told, hit=hit, observed=observed, **mine))
    return stories


def _grouped(frame: pl.DataFrame) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in frame.iter_rows(named=True):
        rows[row["request_id"]].append(row)
    return rows
