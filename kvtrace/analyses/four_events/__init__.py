"""The question `four_events`: exists, visible, selected, loaded.

requests.py   what is known of each request, and its keys
places.py     where each key could have come from, and the four events there
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.four_events.places import PLACES
from kvtrace.analyses.four_events.requests import REQUESTS
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "first_position": pl.Int64,
        "tokens": pl.Int64,
        "tier": pl.String,
        "locality": pl.String,
        "exists_ns": pl.Int64,
        "visible_ns": pl.Int64,
        "selected_ns": pl.Int64,
        "loaded_ns": pl.Int64,
        "predicted_tokens": pl.Int64,
        "reported_tokens": pl.Int64,
        "exists_evidence": pl.String,
        "visible_evidence": pl.String,
        "selected_evidence": pl.String,
        "loaded_evidence": pl.String,
    }
)

_RUNS = """
WITH named AS (
    SELECT *, (tier, locality, exists_evidence, visible_evidence, selected_evidence, loaded_evidence,
        exists_ns IS NULL, visible_ns IS NULL, selected_ns IS NULL, loaded_ns IS NULL) AS kind
    FROM judged
), marked AS (
    SELECT *, coalesce(position <> lag(position) OVER in_order + 1
        OR kind IS DISTINCT FROM lag(kind) OVER in_order, true) AS is_new
    FROM named WINDOW in_order AS (PARTITION BY request_id ORDER BY position)
), numbered AS (
    SELECT *, sum(is_new::INT) OVER (
        PARTITION BY request_id ORDER BY position ROWS UNBOUNDED PRECEDING) AS turn
    FROM marked
)
SELECT request_id, min(position) AS first_position,
    TRY_CAST(CASE WHEN count(tokens) = count(*) THEN sum(tokens) END AS BIGINT) AS tokens,
    any_value(tier) AS tier, any_value(locality) AS locality, max(exists_ns) AS exists_ns,
    max(visible_ns) AS visible_ns, max(selected_ns) AS selected_ns, max(loaded_ns) AS loaded_ns,
    any_value(predicted_tokens) AS predicted_tokens, any_value(reported_tokens) AS reported_tokens,
    any_value(exists_evidence) AS exists_evidence, any_value(visible_evidence) AS visible_evidence,
    any_value(selected_evidence) AS selected_evidence, any_value(loaded_evidence) AS loaded_evidence
FROM numbered GROUP BY request_id, turn ORDER BY request_id, first_position
"""


def four_events(run: Run) -> pl.DataFrame:
    """Where did each prefix exist, what of it was visible, which copy was selected, and what was loaded?

    A row a request and run of its keys with the same tier, locality and evidence, told for one place a key,
    the best: where it existed before where it did not, on the request's own engine (local) before elsewhere
    (remote), counted by whoever chose before uncounted, then the nearest tier. Rows of a request have all its
    keys once. tier and locality are null where no place is known.

    An event has a time and the evidence for it. A null time with evidence: somebody watched, and it did not
    happen; a null time without: nobody watched, which is not the same. The time of a row is the latest of its
    keys'. All is as of the decision: the router's choice, else the first lookup, else the arrival.

    exists: an event of the key brought it to the tier and none took it; else the engine's own hit, an answer
    of a lookup, or a load of it proves it, at the latest then. derived: it was loaded, so it was there, and
    no record says where; or, elsewhere, an earlier request computed the whole block on an engine of whose
    tiers beyond the GPU no event was recorded: it may be gone. Evidence without a time: its last known copy
    had gone, and events of tiers beyond the GPU were recorded.
    visible: the router says what it counted on the engine it chose (tokens or blocks by tier, from the first
    on), a published event says so, or it is on the event plane that routers read (derived: not that they
    applied it); without a router, what the lookup found and the GPU's own hit. Not visible elsewhere is
    native where the router says that no engine had any, derived where a recorded event plane lacks it, or
    where a router that goes by keys counted none where it sent the request (which its load may explain too).
    selected: the router chose the engine that has the copy; without one, the scheduler decided to use it.
    loaded: the worker reports that many cached tokens (else what was computed before its first step), counted
    from the first; when, is the end of the load, the first step or the first token. What a router predicts is
    beside it and never a result: of Dynamo's host blocks three quarters count.

    What Dynamo 1.6.1 lets one say (mocker, a host tier, two workers): with the event plane recorded, all
    four, natively. Without it, no event names a host copy, since a worker's raw stream has only those of its
    GPU: a prompt that a second worker recomputes shows as remote, tier unknown, exists derived, not visible
    (derived), not selected and not loaded (native); and blocks that a worker reports beyond what the router
    counted there show as local, tier unknown, exists derived, not visible (native), loaded: the tier that the
    router is blind to.

    Columns:
        request_id: the request; only those whose keys were recorded
        first_position: position of the run's first key in the prompt, from 0
        tokens: tokens of its keys; null when one of them does not say
        tier: where the copy lay; unknown when it is only known that there was one
        locality: local: on the engine that served the request, or where only it or a server of all engines
            keeps it; remote: on another engine; null where the engine of either is not known
        exists_ns: since when it was there, at the latest, unix ns
        visible_ns: since when whoever chose could see it, at the latest, unix ns
        selected_ns: when it was chosen, unix ns
        loaded_ns: when it was in use, unix ns
        predicted_tokens: cached tokens that the router forecast for the whole request, weighted with its
            credits; the same on each of its rows
        reported_tokens: cached tokens that the worker reported for the whole request; the same on its rows
        exists_evidence: native, shim or derived
        visible_evidence: native, shim or derived
        selected_evidence: native, shim or derived
        loaded_evidence: native, shim or derived
    """
    connection = spilling(run)
    for statement in (*REQUESTS, *PLACES):
        connection.execute(statement)
    return pl.DataFrame(connection.sql(_RUNS).to_arrow_table()).cast(COLUMNS)
