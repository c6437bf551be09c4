"""What holds of single scenarios."""

from __future__ import annotations

import kvtrace
from tests.golden.truths.recording import SECOND, Recording

DROPPED = (
    "SELECT request_id FROM store WHERE op = 'drop' EXCEPT SELECT request_id FROM store WHERE op = 'store'"
)
ASKED_AGAIN = f"""
WITH first AS (
    SELECT DISTINCT request_id, key, start_ns, end_ns FROM request_key JOIN request USING (request_id)
    WHERE position = 0
)
SELECT DISTINCT f.request_id FROM first f JOIN first g USING (key)
WHERE g.request_id IN ({DROPPED}) AND g.end_ns < f.start_ns AND NOT EXISTS (
    SELECT 1 FROM block b WHERE b.event = 'written' AND b.key = f.key AND b.time_ns < f.start_ns)
"""
"""Requests for a prompt of which nothing was written before, though one had been dropped."""


def more_is_found_than_moved(recording: Recording) -> None:
    """A prefix that the GPU holds as well is found by the cache and not loaded."""
    ((found,),) = recording.rows("SELECT sum(found_tokens)::BIGINT FROM lookup")
    ((moved,),) = recording.rows("SELECT sum(tokens)::BIGINT FROM transfer WHERE op = 'load'")
    assert found > moved > 0


def a_full_load_is_1280_tokens_and_2621440_bytes(recording: Recording) -> None:
    most = recording.rows(
        "SELECT tokens, bytes, tier_from, tier_to, outcome FROM transfer "
        "WHERE op = 'load' AND tier_to = 'gpu' ORDER BY tokens DESC LIMIT 1"
    )
    assert most == [(1280, 2_621_440, "host", "gpu", "ok")]


def a_prompt_below_a_chunk_is_not_looked_up(recording: Recording) -> None:
    rows = recording.rows(
        "SELECT prompt_tokens, l.outcome, l.reason, requested_tokens, found_tokens FROM lookup l "
        "JOIN request USING (request_id) WHERE l.reason = 'below_chunk'"
    )
    assert rows == [(200, "miss", "below_chunk", 200, 0)]


def drops_keep_nothing_for_an_unknown_reason(recording: Recording) -> None:
    """L1 was full; no lookup had found those keys, and no span says why nothing was stored."""
    rows = recording.rows(
        "SELECT reason, outcome, sum(tokens)::BIGINT FROM store WHERE op = 'drop' GROUP BY ALL"
    )
    assert rows == [("unknown", "skipped", 0)]


def drops(recording: Recording) -> int:
    ((count,),) = recording.rows("SELECT count(*) FROM store WHERE op = 'drop'")
    return int(count)


def drops_are_the_stores_that_wrote_nothing(recording: Recording) -> None:
    """Of every request that computed a whole chunk anew the cache server was asked to store something.

    Its storage trace says what it wrote: as many stores as that knows of, the others are drops.
    """
    ((stored, dropped),) = recording.rows(
        "SELECT count(*) FILTER (op = 'store'), count(*) FILTER (op = 'drop') FROM store "
        "WHERE component = 'lmcache.l1'"
    )
    ((written,),) = recording.rows(
        "SELECT max(calls) FROM (SELECT count(DISTINCT time_ns) AS calls FROM block WHERE event = 'written' "
        "AND component = 'lmcache.l1' AND reason = 'asked' GROUP BY process)"
    )
    assert stored == written
    assert dropped >= 1


def what_had_no_room_is_never_stored_and_missed_again(recording: Recording) -> None:
    """Whose store kept nothing has nothing there; who asks for its prompt later is told why it misses."""
    names = {name for (name,) in recording.rows(DROPPED)}
    assert names
    lag = {row["request_id"]: row for row in kvtrace.analyze(recording.run, "store_lag").to_dicts()}
    for name in names:
        assert [lag[name][of] for of in ("stored_tokens", "completed_ns", "never_stored")] == [0, None, True]
        assert lag[name]["skip_reason"] == "unknown", "the server does not say why"
    fates = {row["request_id"]: row for row in kvtrace.analyze(recording.run, "fallbacks").to_dicts()}
    again = {name for (name,) in recording.rows(ASKED_AGAIN)}
    assert {(fates[name]["verdict"], fates[name]["reason"]) for name in again} <= {("miss", "never_stored")}


def some_lookup_finds_512_tokens_in_l1_and_768_below(recording: Recording) -> None:
    """Where L2 lies (a file system) only the server itself says; its spans alone leave it unknown."""
    rows = recording.rows(
        "SELECT found_by_tier['host'], coalesce(found_by_tier['disk'], found_by_tier['unknown']), "
        "found_tokens FROM lookup"
    )
    assert (512, 768, 1280) in rows


LOST = """
    SELECT cause, op, count FROM loss
    WHERE cause <> 'duplicate' AND (cause <> 'unclean_end' OR from_ns IS NULL OR (
        from_ns < (SELECT max(end_ns) FROM request)
        AND from_ns <= coalesce((
            SELECT max(coalesce(end_ns, start_ns)) FROM span WHERE span.process = loss.process), from_ns)))
"""
"""Losses, but for those of a process that was killed when every request was over, or had been idle since.

vLLM kills its own EngineCore and workers when it stops, now and then before they can say that they end. What
begins after the last row of its own process begins at its idle mark: nothing waited there.
"""


def nothing_was_lost(recording: Recording, *, at_once: bool = False) -> None:
    """Where requests overlap, LMCache's own tracer may lose a session's root span, no more."""
    lost = recording.rows(LOST)
    assert lost == [] or (at_once and [row[:2] for row in lost] == [("unclean_end", None)])


def the_killed_server_lost_spans(recording: Recording) -> None:
    """What its exporter still held: lookups that only the hash log knows, or parents that never came.

    Where it was recorded from inside, its spool has no closing mark; nobody else lost anything.
    """
    rows = recording.rows(
        "SELECT process = 'lmcache-1', product, cause, sum(loss.count)::BIGINT FROM loss "
        "JOIN process USING (process) WHERE cause <> 'duplicate' GROUP BY ALL ORDER BY ALL"
    )
    if rows == [(False, "lmcache", "unclean_end", 1)]:  # in time, or told from inside
        asked = sum(len(path.read_bytes().splitlines()) for path in recording.raw.rglob("*.jsonl*")
                    if b'"chunk_hashes"' in path.read_bytes())  # fmt: skip
        told = "SELECT count(*) FROM span WHERE op = 'lookup' AND observer = 'server'"
        assert recording.rows(told) == [(asked,)]
        return
    *inside, (*exported, lost) = rows
    assert inside in ([], [(False, "lmcache", "unclean_end", 1)])
    assert exported == [True, "lmcache", "unclean_end"]
    assert lost >= 1
    assert recording.rows("SELECT count(*) FROM loss WHERE cause <> 'duplicate' AND process IS NULL") == [
        (0,)
    ]


def after_the_kill_nothing_of_the_cache_was_seen(recording: Recording) -> None:
    killed = recording.marks_ns()["cache_server_killed"]
    rows = recording.rows(
        "SELECT count(*) FILTER (op = 'request') > 0, count(*) FILTER (observer = 'server') "
        f"FROM span WHERE start_ns > {killed}"
    )
    assert rows == [(True, 0)]


def waits_after_the_kill_ns(recording: Recording) -> list[int]:
    """Time to first token of the requests after the kill, in their order."""
    killed = recording.marks_ns()["cache_server_killed"]
    rows = recording.rows(f"SELECT ttft_ns FROM request WHERE start_ns > {killed} ORDER BY start_ns")
    return [ttft for (ttft,) in rows]


def the_first_request_after_the_kill_waits_for_its_lookup(recording: Recording) -> None:
    """`mq_timeout` is 5 s: the lookup of a server that is gone ends then, and the prompt is computed."""
    assert 4.9 * SECOND < waits_after_the_kill_ns(recording)[0] < 8 * SECOND


def the_fourth_request_after_the_kill_waits_for_held_blocks(recording: Recording) -> None:
    """Three finished requests hold their blocks for stores that never end.

    How long depends on when the workers' heartbeat notices: 3 to 14 s were seen, 0.1 s of those before.
    """
    _, second, third, fourth, *_ = waits_after_the_kill_ns(recording)
    assert fourth > 2 * max(second, third)
