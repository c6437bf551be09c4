"""Why is a request not scheduled, and since when?

    add_request          pass: no slots        pass: asked the cache    pass: scheduled
        |---- unknown ----|----- capacity ------|-------- lookup --------|  step ...

Intervals are back to back: their sum is the time not scheduled. A change becomes true at the start of the
pass that saw it. An interval that lasts is told as open, so that a process that dies leaves it behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import rows

if TYPE_CHECKING:
    from kvtrace.instrument.vllm.track import Track, Tracks

TOLD_AFTER_NS = 500_000_000


def begin(tracks: Tracks, track: Track, now_ns: int, reason: str = "unknown") -> None:
    """The request enters the waiting queue; a pass will say why it stays there."""
    track.since_ns = now_ns
    track.reason = reason
    track.queue_attempt = track.attempt
    track.blocks = track.free_blocks = track.queue_span = None
    track.need = track.refusal = None
    tracks.waiting[track.request_id] = track
    tracks.fresh.append(track)
    tracks.version += 1


def state(track: Track, now_ns: int, reason: str, blocks: int | None, free_blocks: int | None) -> None:
    """What a pass found; nothing happens unless it differs from what held before.

    While more blocks are free than are needed, want of blocks is not what it waits for: their number moves
    with every step of the others, and the row goes on with those of its first pass.
    """
    same = track.blocks == blocks and track.free_blocks == free_blocks
    if track.reason == reason and (
        same or (enough(track.blocks, track.free_blocks) and enough(blocks, free_blocks))
    ):
        if track.queue_span is None and now_ns - track.since_ns > TOLD_AFTER_NS:
            _tell_open(track)
        return
    _close(track, now_ns)
    track.since_ns = max(now_ns, track.since_ns)
    track.reason = reason
    track.queue_attempt = track.attempt
    track.blocks = blocks
    track.free_blocks = free_blocks


def enough(blocks: int | None, free_blocks: int | None) -> bool:
    """Whether so many blocks are free that want of them is no reason."""
    return blocks is not None and free_blocks is not None and blocks <= free_blocks


def end(tracks: Tracks, track: Track, now_ns: int) -> None:
    """The request was scheduled, or it is gone."""
    if tracks.waiting.pop(track.request_id, None) is not None:
        _close(track, now_ns)
        tracks.version += 1


def _tell_open(track: Track) -> None:
    track.queue_span = recorder.next_id()
    recorder.record((
        rows.QUEUE_OPEN, track.queue_span, track.request_id, track.since_ns, track.reason, track.blocks,
        track.free_blocks, track.queue_attempt,
    ))  # fmt: skip


def _close(track: Track, now_ns: int) -> None:
    if track.queue_span is not None:
        recorder.record((rows.QUEUE_CLOSE, track.queue_span, now_ns))
        track.queue_span = None
    elif now_ns > track.since_ns:
        recorder.record((
            rows.QUEUE, track.request_id, track.since_ns, track.reason, track.blocks, track.free_blocks,
            track.queue_attempt, now_ns,
        ))  # fmt: skip
