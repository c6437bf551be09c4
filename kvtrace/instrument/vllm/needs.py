"""How many GPU blocks does a waiting request need before it can be admitted?

Asked of the engine's own arithmetic, `coordinator.get_num_blocks_to_allocate`, with the arguments with which
the allocation failed: the new blocks, those that a prefix hit would take out of the free list, the watermark,
and the blocks reserved for prefills in flight. A request that no pass came to has no prefix hit yet: its
whole sequence is an upper bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kvtrace.instrument.vllm.track import Track, Tracks

_COMPARED = (
    "num_new_computed_tokens", "num_external_computed_tokens", "num_lookahead_tokens", "reserved_blocks",
    "full_sequence_must_fit", "has_scheduled_reqs",
)  # fmt: skip


def refused(tracks: Tracks, track: Track, manager: Any, num_new_tokens: int, options: dict[str, Any]) -> None:
    """`allocate_slots` returned None for a waiting request: note what it needed and what was free."""
    free = manager.block_pool.get_num_free_blocks()
    asked = (num_new_tokens, free, *[options.get(name) for name in _COMPARED])
    if track.refusal != asked:
        track.refusal = asked
        track.need = _guarded(tracks, _of_allocation, manager, track.request, num_new_tokens, options, free)
        tracks.version += 1
    track.refused = tracks.passes
    tracks.refused_free = free
    tracks.refused_track = track


def need(tracks: Tracks, manager: Any, track: Track) -> int | None:
    """Blocks the request needs, as an allocation last said, else for its whole sequence; None = unknown."""
    if track.need is None and manager is not None:
        track.need = _guarded(tracks, _of_sequence, manager, track.request)
    return track.need


def _guarded(tracks: Tracks, question: Callable[..., int], *arguments: Any) -> int | None:
    """An engine whose arithmetic has changed is asked once; everything else goes on without it."""
    if tracks.needs_unknown:
        return None
    try:
        return question(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever another version raises
        tracks.needs_unknown = True
        recorder.lost("hook_failure", detail=f"vllm.needs: {type(error).__name__}")
        return None


def _of_allocation(
    manager: Any, request: Any, num_new_tokens: int, options: dict[str, Any], free: int
) -> int:
    local = request.num_computed_tokens + options.get("num_new_computed_tokens", 0)
    total = local + options.get("num_external_computed_tokens", 0)
    hit = options.get("new_computed_blocks")
    blocks = (manager.empty_kv_cache_blocks if hit is None else hit).blocks
    waits = request.status.name in ("WAITING", "PREEMPTED")
    watermark = manager.watermark_blocks if waits and options.get("has_scheduled_reqs", True) else 0
    if options.get("full_sequence_must_fit"):
        sequence = _asked(
            manager, request, _length(manager, request), None, blocks, (total, local), full=True
        )
        if sequence + watermark > free:
            return sequence + watermark
    main = total + num_new_tokens
    slots = min(main + options.get("num_lookahead_tokens", 0), manager.max_model_len)
    first = _asked(manager, request, slots, main, blocks, (total, local), full=False)
    return first + watermark + int(options.get("reserved_blocks", 0))


def _of_sequence(manager: Any, request: Any) -> int:
    computed = request.num_computed_tokens
    blocks = manager.empty_kv_cache_blocks.blocks
    return _asked(manager, request, _length(manager, request), None, blocks, (computed, computed), full=True)


def _length(manager: Any, request: Any) -> int:
    return min(request.num_tokens, manager.max_model_len)


def _asked(
    manager: Any, request: Any, tokens: int, main: int | None, blocks: Any, computed: tuple[int, int], *,
    full: bool,
) -> int:  # fmt: skip
    return int(
        manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=tokens,
            new_computed_blocks=blocks,
            num_encoder_tokens=0,
            total_computed_tokens=computed[0],
            num_local_computed_tokens=computed[1],
            num_tokens_main_model=tokens if main is None else main,
            apply_admission_cap=full,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
    )
