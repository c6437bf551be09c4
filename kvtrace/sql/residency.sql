-- When a key lay in a tier: from the event that brought it to the one that took it away.
--
--   stored, written, published bring   |----------|      |------------- no end: still there, or nobody told
--   removed, expired, cleared take      stored      removed
--
-- A key is one of its engine, tier, component, locality, key space and object group; brought twice it is there
-- once. Cleared takes all that its engine, tier, component, key space and locality name; where it names none,
-- of all. At one instant the messages' numbers order the events, and in one message what takes goes first: room
-- is made before something is brought. What was there before the first record is not seen.
--
-- Written alone is the word of a call trace: it never says that a key went. Where a component and key space has
-- no other event, ends_seen is false: the key was written, and may be gone (evidence derived).
CREATE VIEW residency AS
WITH placed AS (
    SELECT
        * EXCLUDE (tier), coalesce(tier, 'unknown') AS tier, tier AS named_tier,
        event IN ('stored', 'written', 'published') AS brings,
        row_number() OVER (ORDER BY time_ns, seq NULLS FIRST, brings, key_space, key, event, process) AS place
    FROM block
    WHERE time_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
        AND event IN ('stored', 'written', 'published', 'removed', 'expired', 'cleared')
), change AS (
    SELECT * FROM placed WHERE key IS NOT NULL AND event <> 'cleared'
), spot AS (
    SELECT DISTINCT tier, component, engine, locality, key_space FROM change
), clearing AS (
    SELECT s.*, p.place, p.time_ns, row_number() OVER (
        PARTITION BY s.tier, s.component, s.engine, s.locality, s.key_space ORDER BY p.place) AS clears
    FROM spot s JOIN placed p ON p.event = 'cleared'
        AND (p.named_tier IS NULL OR p.named_tier = s.tier)
        AND (p.component IS NULL OR p.component IS NOT DISTINCT FROM s.component)
        AND (p.engine IS NULL OR p.engine IS NOT DISTINCT FROM s.engine)
        AND (p.key_space IS NULL OR p.key_space IS NOT DISTINCT FROM s.key_space)
        AND (p.locality IS NULL OR p.locality IS NOT DISTINCT FROM s.locality)
), teller AS (
    SELECT tier, component, key_space, bool_or(event <> 'written') AS ends_seen FROM change GROUP BY ALL
), cleared AS (
    SELECT DISTINCT tier, component, key_space FROM clearing
), counted AS (
    SELECT
        c.*, coalesce(x.clears, 0) AS clears,
        count(*) FILTER (NOT c.brings) OVER (
            PARTITION BY c.tier, c.component, c.engine, c.locality, c.key_space, c.object_group, c.key
            ORDER BY c.place ROWS UNBOUNDED PRECEDING) AS taken
    FROM change c ASOF LEFT JOIN clearing x
        ON c.tier = x.tier AND c.component IS NOT DISTINCT FROM x.component
        AND c.engine IS NOT DISTINCT FROM x.engine AND c.locality IS NOT DISTINCT FROM x.locality
        AND c.key_space IS NOT DISTINCT FROM x.key_space AND c.place >= x.place
), stay AS (
    SELECT
        tier, component, engine, locality, key_space, object_group, key, taken, clears,
        any_value(run_id) AS run_id, min(time_ns) FILTER (brings) AS start_ns,
        min(time_ns) FILTER (NOT brings) AS gone_ns, max(tokens) FILTER (brings) AS tokens,
        max(bytes) FILTER (brings) AS bytes, min(time_ns) FILTER (event = 'published') AS published_ns,
        max(coalesce(list_position(['native', 'shim', 'derived'], evidence), 4)) FILTER (brings) AS worst
    FROM counted GROUP BY ALL
), ended AS (
    SELECT *, first_value(gone_ns IGNORE NULLS) OVER (
        PARTITION BY tier, component, engine, locality, key_space, object_group, key ORDER BY taken, clears
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS taken_ns
    FROM stay
)
SELECT
    e.run_id, e.key_space, e.key, e.object_group, e.tier, e.component, e.engine, e.locality, e.start_ns,
    least(e.taken_ns, x.time_ns) AS end_ns, e.published_ns, e.tokens, e.bytes,
    t.ends_seen OR k.tier IS NOT NULL AS ends_seen,
    CASE WHEN t.ends_seen OR k.tier IS NOT NULL
        THEN ['native', 'shim', 'derived'][e.worst] ELSE 'derived' END AS evidence
FROM ended e
JOIN teller t ON t.tier = e.tier AND t.component IS NOT DISTINCT FROM e.component
    AND t.key_space IS NOT DISTINCT FROM e.key_space
LEFT JOIN cleared k ON k.tier = e.tier AND k.component IS NOT DISTINCT FROM e.component
    AND k.key_space IS NOT DISTINCT FROM e.key_space
LEFT JOIN clearing x ON x.tier = e.tier AND x.component IS NOT DISTINCT FROM e.component
    AND x.engine IS NOT DISTINCT FROM e.engine AND x.locality IS NOT DISTINCT FROM e.locality
    AND x.key_space IS NOT DISTINCT FROM e.key_space AND x.clears = e.clears + 1
WHERE e.start_ns IS NOT NULL;

COMMENT ON VIEW residency IS 'one row an interval in which a key lay in a tier';
COMMENT ON COLUMN residency.key_space IS 'producer:algorithm:model; keys compare only inside one';
COMMENT ON COLUMN residency.key IS 'block or chunk key, as text';
COMMENT ON COLUMN residency.object_group IS 'group of layers or objects the key belongs to';
COMMENT ON COLUMN residency.tier IS 'physical medium; unknown when nobody said';
COMMENT ON COLUMN residency.component IS 'the product''s own name of the part';
COMMENT ON COLUMN residency.engine IS 'engine whose copy it is';
COMMENT ON COLUMN residency.locality IS 'local or remote, as the engine says';
COMMENT ON COLUMN residency.start_ns IS 'when an event brought it, unix ns';
COMMENT ON COLUMN residency.end_ns IS 'when an event took it away, unix ns; null: no event did';
COMMENT ON COLUMN residency.published_ns IS 'when it became visible to a router, unix ns; null: no event said so';
COMMENT ON COLUMN residency.tokens IS 'tokens the key stands for';
COMMENT ON COLUMN residency.bytes IS 'bytes of the block';
COMMENT ON COLUMN residency.ends_seen IS 'whether its source tells when keys go; false: it was written and may be gone';
COMMENT ON COLUMN residency.evidence IS 'the weakest of the events that brought it; derived where no end can be seen';
