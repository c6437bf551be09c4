"""What became of the cache's offer: the verdict of `fallbacks` in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import NOT_OBSERVED, count, duration, many
from kvtrace.analyses.explain.contract import broken, other_key
from kvtrace.analyses.explain.hit import hit
from kvtrace.analyses.explain.waste import wasted

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Row, Story

_MISS = {
    "never_stored": "nobody had stored it before",
    "evicted": "it had been stored and was evicted",
    "not_yet_stored": "an earlier request's store of it was not over",
    "key_mismatch": "the same content lay there under another key",
    "below_chunk": "its prompt is shorter than a chunk",
    "not_asked": "the cache was not asked",
    "unknown": "why is not known",
}
_WORDS = {
    "hung": "It never ended, as far as was recorded{waited}",
    "failed": "It failed{waited}",
    "cancelled": "It was aborted{waited}",
    "recompute_after_timeout": "Its {op} waited {timeout} and timed out; {recomputed}",
    "recompute_degraded": "It was admitted while its engine saw the cache as {reason}, so that the cache was "
    "not reached; {recomputed}",
    "admission_fallback": "What the cache had found no room to land; {recomputed}",
    "recompute_after_failure": "Its load failed{because} and nothing was loaded; {recomputed}",
    "partial": "Only {loaded} of {expected} expected tokens were loaded{because}; {recomputed}",
    "recompute_after_preemption": "It was preempted; {recomputed}",
    "noop": "The blend found chunks and used none of them",
    "loaded": "It got what the cache offered: {loaded} of {expected} expected tokens{waited}",
    "declined": "The cache had {found} tokens, more than the GPU's {gpu_hit}, and the scheduler loaded none",
    "shadowed": "The GPU itself held all of the {found} tokens that the cache had",
    "miss": "The cache gave it nothing: {miss}",
}


def offer(story: Story) -> tuple[str, str]:
    """The verdict as a sentence."""
    row = story.verdict
    verdict = row["verdict"]
    if not row["tiered"] or verdict is None:
        none = "No external cache is recorded for its engine, so there was no offer."
        more, stands_on = broken(story)
        known = "verdict not observed" if row["tiered"] else "no row"
        return f"{_untold(row) if row['tiered'] else none}{more}", f"fallbacks: {known}{stands_on}"
    waited = row["waited_ns"]
    values = {
        "waited": f", {duration(waited)} of it spent on lookups, loads and locks" if waited else "",
        "op": "load" if row["load_timed_out"] and not row["lookup_timed_out"] else "lookup",
        "timeout": duration(_timeout(story)),
        "reason": row["reason"] or "not well",
        "because": f" ({row['reason']})" if row["reason"] else "",
        "loaded": count(row["loaded"]),
        "expected": count(row["expected_tokens"]),
        "found": count(row["found"]),
        "gpu_hit": count(row["gpu_hit"]),
        "recomputed": _recomputed(row),
        "miss": _MISS.get(row["reason"] or "unknown", _MISS["unknown"]),
    }
    said = _WORDS[verdict].format(**values).replace(f"{NOT_OBSERVED} of", f"({NOT_OBSERVED}) of")
    also = f" (also: {row['also'].replace('_', ' ')})" if row["also"] else ""
    also = f"{other_key(story) if verdict == 'miss' else ''}{also}"
    more, stands_on = _besides(story)
    return f"{said}{also}.{more}", f"fallbacks: {verdict}{stands_on}"


def _besides(story: Story) -> tuple[str, str]:
    """What follows it, where there is something: of the hit, of waste, of a broken contract."""
    parts = [hit(story), wasted(story), broken(story, beside_hit=True)]
    return "".join(said for said, _ in parts), "".join(stands_on for _, stands_on in parts)


def _timeout(story: Story) -> int | None:
    """How long the inquiry (or load) that timed out lasted."""
    ops = ("load",) if not story.verdict["lookup_timed_out"] else ("lookup",)
    for row in story.spans:
        is_late = row["outcome"] == "timeout" or row["reason"] == "timeout"
        if row["op"] in ops and is_late and row["end_ns"] is not None:
            return int(row["end_ns"] - row["start_ns"])
    return None


def _recomputed(row: Row) -> str:
    """What had to be computed in its place; with nothing loaded, all that the GPU did not hold."""
    tokens, spent = row["recomputed_tokens"], row["recompute_ns"]
    if tokens:
        took = f" in {duration(spent)}" if spent else ""
        return f"{many(tokens, 'token')} were computed again{took}"
    if row["loaded"] == 0 or (row["loaded"] is None and row["good"] == 0):
        kept = f", but for the {row['gpu_hit']:,} tokens in the GPU" if row["gpu_hit"] else ""
        return f"everything was recomputed{kept}"
    return "nothing had to be computed again" if tokens == 0 else f"what was computed again is {NOT_OBSERVED}"


def _untold(row: Row) -> str:
    """Why there is no verdict."""
    if row["inquiries"] == 0:
        return (
            "What became of the cache's offer cannot be told: no inquiry of it was seen, and only the cache "
            "itself records inquiries."
        )
    if row["unanswered"]:
        return "What became of the cache's offer cannot be told: no answer to its inquiry was seen."
    said = f"The cache said it had {count(row['found'])} tokens and no load of it was seen"
    return f"{said}; whether the GPU held them or the scheduler declined them cannot be told."
