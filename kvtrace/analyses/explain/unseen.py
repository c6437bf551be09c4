"""What was not seen of a request: losses, instruments that were not there, numbers that are bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import listed, many
from kvtrace.analyses.explain.hit import unchecked

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Story

_FACTS = {
    "queue_reason_and_blocks": "why it queued",
    "lookup_found_tokens": "what the cache had",
    "engine_waits": "waits of its engine",
    "gpu_blocks_held": "GPU blocks held by transfers",
    "cache_health": "the health of the cache",
    "load_submit_and_usable": "when loads were asked for and usable",
    "key_events": "which keys the cache held",
}
"""Facts of `coverage` that say something about a single request, in words."""
_OWN = (
    ("first_token_ns", "its first token"),
    ("end_ns", "its end"),
    ("status", "its status"),
    ("gpu_hit_tokens", "what the GPU held of its prompt"),
    ("selected_tokens", "what was selected to be loaded"),
)


def unseen(story: Story) -> tuple[str, str]:
    """The last sentence: what the others could not stand on."""
    missing = [words for column, words in _OWN if story.request[column] is None]
    missing += [words for fact, words in _FACTS.items() if not story.observed.get(fact)]
    told = []
    if story.bound == "upper":
        told.append("when it computed, so that every <= is a bound and no measure")
    told += [*missing, *unchecked(story)]
    lost = sum(row["count"] for row in story.losses)
    gap = ""
    if lost:
        ops = sorted({row["op"] or "any kind" for row in story.losses})
        gap = f" Lost, and maybe of its time: {many(lost, 'record')} ({listed(ops)})."
    if not told:
        return f"Nothing that kvtrace looks for went unseen.{gap}", "coverage, loss"
    return f"Not seen: {listed(told, 12)}.{gap}", "coverage, loss, exposure.bound"
