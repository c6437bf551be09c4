"""Which requests does an engine iteration serve, with how many tokens, and what had they before it?

    schedule()  ──► SchedulerOutput ──► workers ──► update_from_output(the same SchedulerOutput)
        start                                                                              end

With asynchronous scheduling the next step is scheduled before this one has ended: the two are told apart by
the identity of their SchedulerOutput. `computed_before` is what the request had before the step: schedule()
advances it at once, and takes back what speculative decoding lost when the step before has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import rows

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.track import Track, Tracks

IN_FLIGHT = 256


class Step:
    """One scheduled iteration whose output has not come back."""

    __slots__ = ("before", "idle", "output", "phases", "start_ns")

    def __init__(self, output: Any, start_ns: int, idle: int) -> None:
        self.output = output  # keeps the identity taken
        self.start_ns = start_ns
        self.idle = idle
        self.phases: list[str] = []
        self.before: list[int | None] = []


def scheduled(tracks: Tracks, scheduler: Any, output: Any) -> None:
    """A pass is over: note the step it made, and the first admissions it tells of."""
    tokens = output.num_scheduled_tokens
    if not tokens:
        tracks.idle_passes += 1
        return
    step = Step(output, tracks.pass_ns, tracks.idle_passes)
    tracks.idle_passes = 0
    requests = scheduler.requests
    for request_id, scheduled_tokens in tokens.items():
        request = requests.get(request_id)
        if request is None:
            step.before.append(None)
            step.phases.append("decode")
            continue
        before = request.num_computed_tokens - scheduled_tokens
        step.before.append(before)
        prefill = before < request.num_prompt_tokens or before < request.num_tokens - 1
        step.phases.append("prefill" if prefill else "decode")
        if prefill:
            track = tracks.all.get(request_id)
            if track is not None and not track.admitted:
                admitted(track, before - (track.external or 0))
    tracks.steps[id(output)] = step
    while len(tracks.steps) > IN_FLIGHT:
        tracks.steps.pop(next(iter(tracks.steps)))
        recorder.lost("dropped", op="step", detail="scheduled, its output never came back")


def admitted(track: Track, gpu_hit_tokens: int) -> None:
    """First admission: what the GPU had, and what the scheduler decided to load."""
    track.admitted = True
    recorder.record((rows.REQUEST_ADMITTED, track.span_id, max(0, gpu_hit_tokens), track.external or 0))


def returned(tracks: Tracks, scheduler: Any, output: Any) -> Step | None:
    """Before a step's output is handled: the step, its `computed_before` corrected for lost drafts."""
    step = tracks.steps.pop(id(output), None)
    if step is None or not tracks.speculative:
        return step
    requests = scheduler.requests
    for position, request_id in enumerate(output.num_scheduled_tokens):
        request = requests.get(request_id)
        if request is None or request.num_stale_output_tokens or request.is_finished():
            continue
        noted = step.before[position]
        now = request.num_computed_tokens - request.num_in_flight_tokens
        if noted is not None and 0 <= now < noted:
            step.before[position] = now
    return step


def finished(step: Step, results: Any, now_ns: int) -> None:
    """The step's output was handled: `results` are the outputs by client, None when handling raised."""
    tokens = step.output.num_scheduled_tokens
    put_out: tuple[int | None, ...]
    if results is None:
        put_out = (None,) * len(tokens)
    else:
        made: dict[str, int] = {}
        for outputs in results.values():
            for each in outputs.outputs:
                made[each.request_id] = made.get(each.request_id, 0) + len(each.new_token_ids)
        put_out = tuple([made.get(request_id, 0) for request_id in tokens])
    members = (tuple(tokens), tuple(step.phases), tuple(tokens.values()), put_out, tuple(step.before))
    total = step.output.total_num_scheduled_tokens
    outcome = "failed" if results is None else "ok"
    recorder.record((rows.STEP, step.start_ns, now_ns, total, members, outcome, step.idle))
