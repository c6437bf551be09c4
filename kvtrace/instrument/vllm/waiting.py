"""What does each request still wait for when a scheduler pass is over?

vLLM walks its waiting requests in order, those that hold blocks first. One that cannot go on now is put aside
(`deferred_waiting`) and the walk continues; want of slots, budget or blocks ends the walk. So a request that
the pass did not come to waits for capacity, whatever else it may need. Only the first FIRST of each queue are
looked at in every pass: those behind keep one interval, capacity, with its blocks unknown. Nothing is looked
at while nothing moved.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from kvtrace.instrument.vllm import needs, queue
from kvtrace.instrument.vllm.track import pool_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kvtrace.instrument.vllm.track import Track, Tracks

FIRST = 64
RECHECK_NS = 500_000_000


def decided(tracks: Tracks, scheduler: Any, *, throttled: bool) -> None:
    """Give every waiting request that the pass may have changed its reason, blocks and free blocks."""
    fresh, tracks.fresh = tracks.fresh, []
    if not tracks.waiting:
        return
    free = tracks.refused_free
    pool = pool_of(scheduler)
    if free is None and pool is not None:
        free = pool.get_num_free_blocks()
    paused = getattr(getattr(scheduler, "_pause_state", None), "name", "UNPAUSED") != "UNPAUSED"
    if (
        not fresh
        and _signature(tracks, free, paused=paused) == tracks.signature
        and tracks.pass_ns < tracks.recheck_ns
    ):
        return
    tracks.recheck_ns = tracks.pass_ns + RECHECK_NS
    put_aside = getattr(scheduler, "deferred_waiting", ())
    ahead = 0
    for track in _heads(tracks, scheduler):
        reason = _reason(tracks, track, put_aside, paused=paused, throttled=throttled)
        track.seen = tracks.passes
        if reason not in ("capacity", "preempted"):
            queue.state(track, tracks.pass_ns, reason, None, None)
            continue
        ahead += needs.need(tracks, scheduler.kv_cache_manager, track) or 0
        queue.state(track, tracks.pass_ns, reason, None if tracks.needs_unknown else ahead, free)
    tracks.ahead = ahead
    tracks.signature = _signature(tracks, free, paused=paused)
    for track in fresh:
        if track.seen != tracks.passes and track.request_id in tracks.waiting:
            reason = _reason(tracks, track, put_aside, paused=paused, throttled=throttled)
            queue.state(track, tracks.pass_ns, reason, None, None)


def _signature(tracks: Tracks, free: int | None, *, paused: bool) -> tuple[Any, ...]:
    """What two passes have in common when the second changed no reason, no blocks and no free blocks."""
    short = None if queue.enough(tracks.ahead, free) else free
    return short, paused, tracks.version, tracks.visited_track, tracks.refused_track


def _heads(tracks: Tracks, scheduler: Any) -> list[Track]:
    found: list[Track] = []
    for name in ("kv_holding_waiting", "waiting"):
        for request in _first(getattr(scheduler, name, ())):
            track = tracks.waiting.get(request.request_id)
            if track is not None:
                found.append(track)
    return found


def _first(requests: Any) -> Iterable[Any]:
    """The first requests of a queue; of a heap, whose order costs a copy of it, only the very first."""
    if not requests:
        return ()
    if hasattr(requests, "_heap"):
        return (requests.peek_request(),)
    return islice(requests, FIRST)


def _reason(tracks: Tracks, track: Track, put_aside: Any, *, paused: bool, throttled: bool) -> str:
    status = track.request.status.name
    if status == "WAITING_FOR_REMOTE_KVS":
        return "remote_kv"
    if status in ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_STREAMING_REQ"):
        return "policy"
    if track.inquiry is not None and track.inquiry.unanswered == tracks.passes:
        return "lookup"
    if track.visited == tracks.passes:
        if track.refused != tracks.passes and (track.request in put_aside or throttled):
            return "policy"
    elif paused:
        return "policy"
    return "preempted" if status == "PREEMPTED" else "capacity"
