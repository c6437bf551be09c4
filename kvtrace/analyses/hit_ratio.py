"""The question `hit_ratio`: which share of the tokens came from which tier?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.hit_funnel import table as funnel_table
from kvtrace.errors import UsageError
from kvtrace.run.derived import spilling
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "tier": pl.String,
        "component": pl.String,
        "prompt_tokens": pl.Int64,
        "queried_tokens": pl.Int64,
        "found_tokens": pl.Int64,
        "loaded_tokens": pl.Int64,
        "of_prompt": pl.Float64,
        "of_queried": pl.Float64,
        "of_found": pl.Float64,
    }
)

_COUNTED = """
CREATE OR REPLACE TEMP TABLE counted AS
WITH known AS (
    SELECT f.request_id, f.prompt_tokens, f.gpu_hit_tokens, f.found_tokens, f.loaded_tokens, s.again_ns
    FROM read_parquet($funnel) f JOIN read_parquet($served) s USING (request_id)
    WHERE f.prompt_tokens IS NOT NULL AND s.handoffs = 0
)
SELECT * FROM known WHERE loaded_tokens IS NOT NULL OR (SELECT count(loaded_tokens) FROM known) = 0
"""
"""Every sum is over the same requests, so that each ratio is that of its columns."""

_PARTS = """
CREATE OR REPLACE TEMP TABLE part AS
SELECT DISTINCT component, CASE WHEN op = 'load' THEN tier_from ELSE tier_to END AS tier FROM transfer
WHERE component IS NOT NULL AND purpose IS DISTINCT FROM 'handoff'
"""

_ANSWERED = """
CREATE OR REPLACE TEMP TABLE answered AS
WITH decisive AS (
    SELECT c.request_id, c.gpu_hit_tokens, c.loaded_tokens, l.component, l.requested_tokens, l.found_tokens,
        l.found_by_tier
    FROM lookup l JOIN counted c USING (request_id)
    WHERE l.found_tokens = c.found_tokens AND l.outcome IS DISTINCT FROM 'skipped'
    QUALIFY row_number() OVER (PARTITION BY c.request_id ORDER BY l.observer IS DISTINCT FROM 'scheduler',
        coalesce(l.attempt, 1), l.start_ns, l.span_id) = 1
), only_tier AS (
    SELECT d.component, CASE WHEN count(DISTINCT p.tier) = 1 THEN any_value(p.tier) END AS tier
    FROM (SELECT DISTINCT component FROM decisive) d JOIN part p
        ON (p.component = d.component OR starts_with(p.component, d.component || '.')) AND p.tier <> 'gpu'
    GROUP BY d.component
), told AS (
    SELECT d.*, coalesce(map_entries(d.found_by_tier),
        [{'key': coalesce(o.tier, 'unknown'), 'value': d.found_tokens}]) AS tiers
    FROM decisive d LEFT JOIN only_tier o USING (component)
), each AS (
    SELECT * EXCLUDE (tiers), unnest(tiers) AS t,
        len(list_filter(tiers, lambda x: x.value > 0)) AS sources,
        list_sum(list_transform(tiers, lambda x: x.value)) AS all_found,
        CASE WHEN component = 'lmcache' AND sources = 2 AND found_by_tier['host'] > 0 AND gpu_hit_tokens >= 0
            AND gpu_hit_tokens::HUGEINT + loaded_tokens <= all_found THEN found_by_tier['host'] END AS in_l1
    FROM told
), named AS (
    SELECT DISTINCT e.component AS asked, e.t.key AS tier, CASE WHEN count(DISTINCT p.component) = 1
        THEN any_value(p.component) ELSE e.component END AS component
    FROM each e LEFT JOIN part p ON p.tier = e.t.key
        AND (p.component = e.component OR starts_with(p.component, e.component || '.'))
    GROUP BY e.component, e.t.key
)
SELECT e.request_id, n.tier, n.component, e.requested_tokens, e.t.value AS found_tokens, e.loaded_tokens,
    e.found_by_tier IS NOT NULL AS by_tier,
    CASE WHEN e.loaded_tokens = 0 OR e.t.value = 0 THEN 0 WHEN e.sources = 1 THEN e.loaded_tokens
        WHEN e.loaded_tokens = e.all_found THEN e.t.value WHEN e.in_l1 IS NULL THEN NULL
        WHEN e.t.key = 'host' THEN greatest(0, least(e.in_l1 - e.gpu_hit_tokens, e.loaded_tokens))
        ELSE e.loaded_tokens - greatest(0, least(e.in_l1 - e.gpu_hit_tokens, e.loaded_tokens)) END AS credit
FROM each e JOIN named n ON n.asked IS NOT DISTINCT FROM e.component AND n.tier = e.t.key
"""
"""A lookup's component is the product's, a transfer's one of its parts: where one part only holds that tier,
both are one row. Loaded tokens are known by tier where one had all that was found, or it was loaded whole.
LMCache counts what its L1 has from the first token on, and as L2's how much further the find reaches (0.5.5,
v1/multiprocess/modules/lookup.py): what was used of it begins where the GPU's hit ends.

    L1 |======= 512 =======|  L2 |======== 768 ========|
    GPU hit |====== 640 ========|  used |==== 640 =====|     all of it from L2
"""

_FLOWED = """
CREATE OR REPLACE TEMP TABLE flowed AS
WITH hop AS (
    SELECT t.request_id, t.tier_from, t.tier_to, t.component, c.loaded_tokens,
        least(t.tokens, TRY_CAST(t.attributes['usable_tokens'] AS BIGINT)) AS tokens
    FROM transfer t JOIN counted c USING (request_id)
    WHERE t.op = 'load' AND coalesce(t.outcome, 'ok') IN ('ok', 'partial') AND c.loaded_tokens > 0
        AND (c.again_ns IS NULL OR t.start_ns < c.again_ns)
        AND t.request_id NOT IN (SELECT request_id FROM answered WHERE by_tier)
), flow AS (
    SELECT request_id, loaded_tokens, tier_from AS tier, component, tokens FROM hop
    UNION ALL SELECT request_id, loaded_tokens, tier_to, NULL, -tokens FROM hop WHERE tier_to <> 'gpu'
), kept AS (
    SELECT request_id, tier, any_value(loaded_tokens) AS loaded_tokens, any_value(component) AS component,
        CASE WHEN count(tokens) = count(*) AND count(DISTINCT component) <= 1 THEN sum(tokens) END AS tokens
    FROM flow GROUP BY request_id, tier
), told AS (
    SELECT *, count(*) FILTER (tokens IS NULL OR tokens > 0) OVER mine AS sources,
        coalesce(sum(tokens) OVER mine = loaded_tokens AND count(tokens) OVER mine = count(*) OVER mine
            AND min(tokens) OVER mine >= 0, false) AS exact
    FROM kept WINDOW mine AS (PARTITION BY request_id)
)
SELECT request_id, tier, component,
    TRY_CAST(CASE WHEN exact THEN tokens WHEN sources = 1 THEN loaded_tokens END AS BIGINT) AS credit
FROM told WHERE tokens IS NULL OR tokens > 0 OR (NOT exact AND sources <> 1)
"""
"""What left a tier less what came into it from below began there: disk -> host 768, host -> gpu 1280 is 768
from the disk and 512 from the host. Where more moved than was used, one source only tells the split."""

_ROWS = """
WITH found AS (
    SELECT tier, component, TRY_CAST(sum(found_tokens) AS BIGINT) AS found_tokens,
        TRY_CAST(CASE WHEN count(requested_tokens) = count(*)
            THEN sum(requested_tokens) END AS BIGINT) AS queried_tokens
    FROM answered GROUP BY tier, component
), credit AS (
    SELECT tier, component, TRY_CAST(CASE WHEN count(credit) = count(*)
            THEN sum(credit) END AS BIGINT) AS loaded_tokens
    FROM (SELECT request_id, tier, component, credit FROM answered WHERE by_tier UNION ALL FROM flowed)
    GROUP BY tier, component
), total AS (
    SELECT TRY_CAST(sum(prompt_tokens) AS BIGINT) AS prompt_tokens,
        TRY_CAST(sum(prompt_tokens) FILTER (gpu_hit_tokens IS NOT NULL) AS BIGINT) AS gpu_prompt_tokens,
        TRY_CAST(sum(gpu_hit_tokens) AS BIGINT) AS gpu_hit_tokens, count(loaded_tokens) = 0 AS is_unseen,
        bool_or(loaded_tokens > 0 AND request_id NOT IN (
            SELECT request_id FROM answered WHERE by_tier UNION SELECT request_id FROM flowed)) AS is_unplaced
    FROM counted
), tiers AS (
    SELECT 'gpu' AS tier, NULL::VARCHAR AS component, gpu_prompt_tokens AS prompt_tokens,
        gpu_prompt_tokens AS queried_tokens, gpu_hit_tokens AS found_tokens, gpu_hit_tokens AS loaded_tokens
    FROM total WHERE gpu_hit_tokens IS NOT NULL
    UNION ALL
    SELECT coalesce(f.tier, c.tier), coalesce(f.component, c.component), t.prompt_tokens, f.queried_tokens,
        f.found_tokens, CASE WHEN NOT (t.is_unseen OR coalesce(t.is_unplaced, false)) THEN
            CASE WHEN c.tier IS NULL THEN 0 ELSE c.loaded_tokens END END
    FROM found f FULL JOIN credit c ON f.tier = c.tier AND f.component IS NOT DISTINCT FROM c.component
    CROSS JOIN total t
)
SELECT *, loaded_tokens / nullif(prompt_tokens, 0) AS of_prompt,
    found_tokens / nullif(queried_tokens, 0) AS of_queried,
    loaded_tokens / nullif(found_tokens, 0) AS of_found
FROM tiers ORDER BY list_position($tiers, tier), component NULLS FIRST
"""


def hit_ratio(run: Run, *, of: str = "tokens") -> pl.DataFrame:
    """Which share of the prompts' tokens came from which tier, and how much of what was found was used?

    A row a tier and component, and one for the GPU. All sums are over the same requests: those whose prompt
    and loaded tokens are known (where no request's loaded tokens are known: all with a prompt), without those
    that a handoff served: state that a request's own prefill computed is never a hit.

    Loaded tokens are credited to the deepest tier they came from. Lookups that report tokens by tier say it
    where one tier had all that was found, or all that was found was loaded, and LMCache's by the order of
    its tiers; else the hops do: what left a tier less what came into it from below. Where neither tells the
    split, loaded_tokens of the tiers in question is null.

    Object counts of a cache's status page are what lies there, not what was hit: `residency` has them.

    Args:
        run: the run
        of: what the ratios are of: only tokens

    Columns:
        tier: physical medium; unknown where nobody said
        component: the product's own name of the part; null for the GPU, an engine's own pool
        prompt_tokens: tokens of all prompts; in the GPU's row of those whose GPU hit is known
        queried_tokens: tokens that the component was asked for by the lookups that decided
        found_tokens: tokens that they found in this tier, from the first prompt token
        loaded_tokens: tokens that were used of it; of the GPU all that it held
        of_prompt: loaded_tokens / prompt_tokens
        of_queried: found_tokens / queried_tokens
        of_found: loaded_tokens / found_tokens

    Raises:
        UsageError: `of` is something else: a ratio of objects cannot be worked out.
    """
    if of != "tokens":
        why = (
            "objects of a status page are what lies in a tier: ask residency" if "object" in of else "no such"
        )
        raise UsageError(f"hit_ratio: of must be tokens, not {of} ({why}).")
    connection = spilling(run)
    try:
        files = {"funnel": str(funnel_table(run)), "served": str(served_table(run))}
        connection.execute(_COUNTED, files)
        for statement in (_PARTS, _ANSWERED, _FLOWED):
            connection.execute(statement)
        rows = connection.sql(_ROWS, params={"tiers": list(TIERS)}).to_arrow_table()
    finally:
        connection.close()
    return pl.DataFrame(rows).cast(COLUMNS)
