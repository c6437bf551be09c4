"""The times of each transfer of some requests, and the phases between them: one row a hop.

    asked         starts          ends           reported        usable
      |── submit ──|──── copy ─────|──── poll ────|─── usable ────|
    scheduler     worker, server  worker, server  worker          scheduler

Who stands beside the copy sees its start and end; who stands further off sees the asking and the answer, and
the copy lies somewhere in between. A time that nobody saw is null: the phases beside it are then one, drawn
as such, and never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kvtrace.run import Run

_HOPS = """
WITH moved AS (
    SELECT
        request_id, op, transfer_id, name, tier_from, tier_to, component, start_ns, end_ns, submit_ns,
        usable_ns, tokens, bytes, outcome, reason, observer, ranks, span_id,
        CASE
            WHEN observer IN ('client', 'scheduler', 'api', 'router') THEN 'whole'
            -- What they call its start is when it was handed over, not when bytes began to move.
            WHEN coalesce(starts_with(component, 'lmcache.l2') AND clock IS DISTINCT FROM 'gpu', false)
                OR coalesce(name = 'mp.retrieve', false)
                OR coalesce(starts_with(attributes['times'], 'submit_to'), false) THEN 'with_wait'
            ELSE 'copy'
        END AS body
    FROM transfer WHERE list_contains($requests, request_id)
), whole AS (
    SELECT
        request_id, op, transfer_id, coalesce(submit_ns, start_ns) AS asked_ns, end_ns AS known_ns, usable_ns,
        coalesce(greatest(end_ns, usable_ns), 9223372036854775807) AS stop_ns
    FROM span
    WHERE op IN ('load', 'store') AND observer = 'scheduler' AND list_contains($requests, request_id)
), told AS (
    -- Client, server and every rank may name one transfer otherwise: `transfer` has tie's name for it.
    SELECT s.*, coalesce(t.transfer_id, s.transfer_id) AS common, t.moved_nothing
    FROM span s LEFT JOIN tie t ON t.span_id = s.span_id AND t.process IS NOT DISTINCT FROM s.process
    WHERE list_contains($requests, request_id)
), renamed AS (
    SELECT request_id, transfer_id, any_value(common) AS common
    FROM told WHERE op IN ('load', 'store') AND common <> transfer_id
    GROUP BY request_id, transfer_id HAVING count(DISTINCT common) = 1
), report AS (
    SELECT s.request_id, coalesce(n.common, s.transfer_id) AS transfer_id, max(end_ns) AS reported_ns
    FROM span s LEFT JOIN renamed n ON n.request_id = s.request_id AND n.transfer_id = s.transfer_id
    WHERE op IS NULL AND observer = 'worker' AND s.transfer_id IS NOT NULL
        AND s.name IS DISTINCT FROM 'restored_state' AND list_contains($requests, s.request_id)
    GROUP BY ALL
), nearby AS (
    -- Of a transfer all that its own observers say: a client when it asked and when it was told the end.
    SELECT
        request_id, op, coalesce(common, span_id::VARCHAR) AS own_id,
        min(submit_ns) AS asked_ns, max(usable_ns) AS usable_ns,
        min(submit_ns) FILTER (WHERE observer IN ('worker', 'client')) AS handed_ns,
        max(CASE WHEN observer = 'client' THEN end_ns
            ELSE end_ns + TRY_CAST(attributes['reported_after_ns'] AS BIGINT) END) AS reported_ns
    FROM told
    WHERE op IN ('load', 'store') AND moved_nothing IS NOT true
    GROUP BY ALL
), around AS (
    -- What the scheduler asked for ends at the GPU: a hop between two other tiers has no report of its own.
    SELECT
        m.* EXCLUDE (usable_ns), w.transfer_id AS whole_id, w.known_ns,
        CASE WHEN w.op IS NOT NULL THEN m.usable_ns END AS usable_ns,
        CASE WHEN w.op IS NOT NULL THEN m.submit_ns END AS asked_ns
    FROM moved m LEFT JOIN whole w
        ON w.request_id = m.request_id AND w.op = m.op
        AND CASE m.op WHEN 'load' THEN m.tier_to ELSE m.tier_from END IN ('gpu', 'unknown')
        AND w.asked_ns <= m.start_ns AND m.start_ns < w.stop_ns
    QUALIFY row_number() OVER (
        PARTITION BY m.request_id, m.op, m.transfer_id, m.span_id, m.tier_from, m.tier_to, m.start_ns
        ORDER BY w.asked_ns DESC) = 1
)
SELECT
    a.request_id, a.op, a.tier_from, a.tier_to, a.component, a.name, a.transfer_id, a.tokens, a.bytes,
    a.outcome, a.reason, a.observer, a.ranks, a.body, least(a.asked_ns, n.asked_ns) AS asked_ns,
    n.handed_ns, a.start_ns, a.end_ns, coalesce(r.reported_ns, s.reported_ns, n.reported_ns) AS reported_ns,
    a.known_ns, greatest(a.usable_ns, n.usable_ns) AS usable_ns,
    row_number() OVER (PARTITION BY a.request_id ORDER BY
        coalesce(least(a.asked_ns, n.asked_ns), a.start_ns), a.start_ns, a.op, a.tier_from, a.tier_to,
        a.end_ns, a.transfer_id, a.span_id) AS number
FROM around a
LEFT JOIN nearby n ON n.request_id = a.request_id AND n.op = a.op
    AND n.own_id = coalesce(a.transfer_id, a.span_id::VARCHAR)
LEFT JOIN report r ON r.request_id = a.request_id AND r.transfer_id = a.transfer_id
LEFT JOIN renamed w ON w.request_id = a.request_id AND w.transfer_id = a.whole_id
LEFT JOIN report s ON s.request_id = a.request_id AND s.transfer_id = coalesce(w.common, a.whole_id)
ORDER BY a.request_id, number
"""

PHASES: dict[str, str] = {
    "submit": "asked for, not begun",
    "copy": "copy",
    "copy_or_wait": "copy, or waiting for it",
    "under_way": "under way, copy not observed",
    "poll": "ended, not reported",
    "usable": "reported, not usable",
    "ended_to_usable": "ended, not usable",
}
"""Phase -> what a reader sees, in order. The last is poll and usable as one: nobody saw the report."""

_BODY = {"copy": "copy", "with_wait": "copy_or_wait", "whole": "under_way"}


@dataclass(frozen=True)
class Phase:
    """A part of a hop; an end that nobody saw is None."""

    kind: str
    start_ns: int
    end_ns: int | None


def hops(run: Run, requests: Sequence[str]) -> pl.DataFrame:
    """One row a transfer of these requests, its five times in unix ns, and how its start and end were seen.

    `body` is copy (seen by who stands beside it), with_wait (from the handing over), or whole (only the
    asking and the answer were seen; then `start_ns` is the asking and `end_ns` the answer). `number` counts
    the hops of a request as they were asked for.
    """
    import polars as pl

    relation = run.connection().sql(_HOPS, params={"requests": list(requests)})
    return pl.DataFrame(relation.to_arrow_table())


def phases(hop: dict[str, Any]) -> list[Phase]:
    """What of a hop can be told apart, in time order.

    An interval that two clocks turn round (reported before its end) is no phase; one without times has none.
    """
    if hop["start_ns"] is None:
        return []
    body = _BODY[hop["body"]]
    asked, start, end = hop["asked_ns"], hop["start_ns"], hop["end_ns"]
    reported, usable = hop["reported_ns"], hop["usable_ns"]
    if body == "under_way":
        start = start if asked is None else min(asked, start)
        end = end if reported is None else reported
        found = [Phase(body, start, end), *_between("usable", end, usable)]
        return [phase for phase in found if _forward(phase)]
    # Who calls the asking its start does not say that nothing passed in between.
    submit = [] if body == "copy_or_wait" and asked == start else _between("submit", asked, start)
    found = [*submit, Phase(body, start, end)]
    if reported is None:
        found += _between("ended_to_usable", end, usable)
    else:
        found += [*_between("poll", end, reported), *_between("usable", reported, usable)]
    return [phase for phase in found if _forward(phase)]


def _between(kind: str, start_ns: int | None, end_ns: int | None) -> list[Phase]:
    return [] if start_ns is None or end_ns is None else [Phase(kind, start_ns, end_ns)]


def _forward(phase: Phase) -> bool:
    return phase.end_ns is None or phase.end_ns >= phase.start_ns
