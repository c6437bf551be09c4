"""What does vLLM's scheduler do with each request, pass by pass?

Nothing of vLLM is imported here: the scheduler's class is wrapped when the engine asks for it
(`SchedulerConfig.get_scheduler_cls`), which only the EngineCore process does, or at once where it is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm import (
    blocks,
    configuration,
    invalid,
    loads,
    lookups,
    products,
    queue,
    rows,
    steps,
    waiting,
)
from kvtrace.instrument.vllm.track import Track, attach, of, tidy

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.steps import Step
    from kvtrace.instrument.vllm.track import Tracks

LOADED = (
    ("vllm.v1.core.sched.scheduler", "Scheduler"),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
)


def install() -> None:
    """Wrap the scheduler's class now if it is loaded, and any that the engine will ask for."""
    for module, name in LOADED:
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None:
            instrument(cls)
    config = getattr(sys.modules.get("vllm.config.scheduler"), "SchedulerConfig", None)
    if config is not None:
        wrapping.after(config, "get_scheduler_cls", asked_for)


def asked_for(cls: Any, *_: Any, **__: Any) -> None:
    """The engine is about to make a scheduler of this class."""
    instrument(cls)
    configuration.report()


def instrument(cls: type) -> None:
    """Wrap one scheduler class; methods that this version lacks are reported in `wrapping.status()`."""
    if not wrapping.after(cls, "_free_request", request_freed):
        return  # without an end nothing of what began could ever be forgotten
    wrapping.after(cls, "__init__", made)
    wrapping.around(cls, "schedule", pass_begins, pass_ends, pass_failed)
    wrapping.around(cls, "update_from_output", output_comes, output_handled, output_failed)
    wrapping.around(cls, "add_request", request_comes, request_added)
    wrapping.after(cls, "_enqueue_waiting_request", enqueued)
    wrapping.after(cls, "_handle_blocked_waiting_request", visited)
    wrapping.after(cls, "_preempt_request", preempted)
    wrapping.after(cls, "_update_waiting_for_remote_kv", promoted)
    wrapping.after(cls, "_free_blocks", blocks_freed)
    wrapping.around(cls, "_handle_invalid_blocks", invalid.reported, invalid.handled)


def made(result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
    """A scheduler exists: its parts learn to whom they belong."""
    del result
    if of(scheduler) is None:
        attach(scheduler)
        manager = getattr(scheduler, "kv_cache_manager", None)
        if manager is not None:
            blocks.instrument(manager)
            configuration.report()
        for watch in attach(scheduler).watches:
            watch.poll()


def request_comes(scheduler: Any, request: Any, *_: Any, **__: Any) -> int:
    """When it came."""
    tracks = attach(scheduler)
    now_ns = recorder.now()
    if request.request_id not in tracks.all:
        tidy(tracks, scheduler)
        track = tracks.all[request.request_id] = Track(request, now_ns)
        headers = getattr(request, "trace_headers", None)
        parent = headers.get("traceparent", "") if headers else ""
        trace_id = parent[3:35] if len(parent) >= 35 else None
        recorder.record((
            rows.REQUEST_OPEN, track.span_id, track.request_id, now_ns, request.num_prompt_tokens, trace_id
        ))  # fmt: skip
    return now_ns


def request_added(now_ns: int, result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """It waits, unless a version without our other hook has told so already."""
    del result
    tracks = attach(scheduler)
    track = tracks.all.get(request.request_id)
    if track is not None and track.request is request and track.request_id not in tracks.waiting:
        queue.begin(tracks, track, now_ns)


def enqueued(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """It enters the waiting queue: new, or a session that waits for its next input."""
    del result
    tracks = attach(scheduler)
    track = tracks.all.get(request.request_id)
    if track is not None and track.request_id not in tracks.waiting and track.admitted:
        queue.begin(tracks, track, recorder.now(), "policy")


def pass_begins(scheduler: Any, *_: Any, **__: Any) -> Tracks | None:
    """None for a subclass that calls its parent's `schedule`: one pass, not two."""
    tracks = attach(scheduler)
    if tracks.in_pass:
        return None
    tracks.in_pass = True
    tracks.passes += 1
    tracks.pass_ns = recorder.now()
    tracks.refused_free = tracks.refused_track = tracks.visited_track = None
    tracks.connectors.clear()
    return tracks


def pass_ends(tracks: Tracks | None, output: Any, scheduler: Any, *options: Any, **named: Any) -> None:
    """Who was scheduled, who was not, and why."""
    if tracks is None:
        return
    tracks.in_pass = False
    for request_id in output.num_scheduled_tokens.keys() & tracks.waiting.keys():
        track = tracks.waiting[request_id]
        queue.end(tracks, track, tracks.pass_ns)
        if track.load is not None:  # a version in which nobody told that it was promoted
            loads.promoted(tracks, track, tracks.pass_ns)
    steps.scheduled(tracks, scheduler, output)
    for track in tracks.fresh:
        load = track.load
        if load is not None and load.computed is None:
            load.computed = track.request.num_computed_tokens
            if not track.admitted:
                steps.admitted(track, load.computed - load.tokens)
    throttled = bool(named.get("throttle_prefills", options[0] if options else False))
    waiting.decided(tracks, scheduler, throttled=throttled)
    if tracks.answered:
        lookups.pass_over(tracks)
    for watch in tracks.watches:
        watch.poll()


def pass_failed(tracks: Tracks | None, error: BaseException, *_: Any, **__: Any) -> None:
    """The engine's own error in a pass."""
    del error
    if tracks is not None:
        tracks.in_pass = False


def visited(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """The pass came to this waiting request."""
    del result
    tracks = of(scheduler)
    track = tracks and tracks.waiting.get(request.request_id)
    if tracks and track:
        track.visited = tracks.passes
        tracks.visited_track = track


def preempted(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """It lost its blocks and waits again, from the start of the pass that took them."""
    del result
    tracks = attach(scheduler)
    track = tracks.all.get(request.request_id)
    if track is not None:
        now_ns = recorder.now()
        lookups.forget(track, now_ns)
        track.attempt += 1
        track.preemptions += 1
        queue.begin(tracks, track, tracks.pass_ns if tracks.in_pass else now_ns, "preempted")


def promoted(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """An asynchronous load is over for the scheduler."""
    del result
    tracks = of(scheduler)
    track = tracks and tracks.all.get(request.request_id)
    if tracks and track:
        loads.promoted(tracks, track, recorder.now())


def output_comes(
    scheduler: Any, scheduler_output: Any, model_runner_output: Any, *_: Any, **__: Any
) -> tuple[Tracks, Step | None]:
    """A step's output is there; the engine has not looked at it yet."""
    tracks = attach(scheduler)
    output = getattr(model_runner_output, "kv_connector_output", None)
    if output is not None and tracks.loads:
        loads.reported(tracks, output, recorder.now())
    tracks.handled = steps.returned(tracks, scheduler, scheduler_output)
    return tracks, tracks.handled


def output_handled(
    token: tuple[Tracks, Step | None], results: Any, scheduler: Any, scheduler_output: Any,
    model_runner_output: Any, *_: Any, **__: Any,
) -> None:  # fmt: skip
    """The step is over."""
    del scheduler_output
    tracks, step = token
    tracks.handled = None
    output = getattr(model_runner_output, "kv_connector_output", None)
    if output is not None and tracks.loads:
        loads.handled(tracks, scheduler, output)
    if step is not None:
        steps.finished(step, results, recorder.now())


def output_failed(token: tuple[Tracks, Step | None], error: BaseException, *_: Any, **__: Any) -> None:
    """The engine's own error while it handled a step's output: the step was, what it put out is unknown."""
    del error
    token[0].handled = None
    if token[1] is not None:
        steps.finished(token[1], None, recorder.now())


def request_freed(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """The request is over; its blocks may stay for a transfer."""
    del result
    tracks = attach(scheduler)
    track = tracks.all.pop(request.request_id, None)
    if track is None:
        return
    now_ns = recorder.now()
    queue.end(tracks, track, now_ns)
    lookups.settle(track, now_ns)
    held = request.request_id in scheduler.requests
    if held:
        reason = "load" if track.load is not None else "store"
        name = products.component(scheduler.connector)
        kept = blocks.of_request(scheduler.kv_cache_manager, request.request_id)
        tracks.holds.open_request(request.request_id, reason, name, kept, now_ns)
    loads.request_gone(tracks, track, held=held)
    status = request.status.name
    recorder.record((
        rows.REQUEST_CLOSE, track.span_id, now_ns, request.num_output_tokens, STATUSES.get(status, "ok"),
        track.attempt, str(request.get_finished_reason()), track.preemptions,
    ))  # fmt: skip


STATUSES = {"FINISHED_ABORTED": "aborted", "FINISHED_ERROR": "error"}
"""vLLM's final states that are no success; a request cut at its length limit is one."""


def blocks_freed(result: Any, scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """Its blocks went back to the pool."""
    del result
    tracks = of(scheduler)
    if tracks is not None:
        tracks.holds.close_request(request.request_id, recorder.now())
