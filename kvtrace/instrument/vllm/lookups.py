"""How long does an inquiry outside the GPU take, how often is it repeated, and what does it find?

    get_num_new_matched_tokens:  None  None  None  1280   1280   1280      admitted
                                  |------ lookup ------|      (blocks are missing: asked again, same answer)

One row an inquiry: from its first call to its first answer that is not None. vLLM asks again in every pass
until it has blocks for the request; such calls are counted, they are no new inquiry. A new one begins after
a preemption or a failed load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import rows

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.products import Answer
    from kvtrace.instrument.vllm.track import Track, Tracks

TOLD_AFTER_NS = 500_000_000


class Inquiry:
    """One inquiry: when it began, how often it was repeated, and how it was answered."""

    __slots__ = (
        "answer", "asked_from", "asynchronous", "attempt", "calls", "children", "component", "end_ns",
        "local", "requested", "returned", "skipped_for", "span_id", "start_ns", "timeout_of", "told",
        "unanswered",
    )  # fmt: skip

    def __init__(self, start_ns: int, requested: int, component: str | None, attempt: int) -> None:
        self.start_ns = start_ns
        self.requested = requested
        self.component = component
        self.attempt = attempt
        self.calls = 0
        self.unanswered = 0  # the pass that got None last
        self.span_id: int | None = None
        self.end_ns: int | None = None
        self.answer: Answer | None = None
        self.asked_from = 0
        self.local = 0  # what the GPU had when it was asked last
        self.returned: int | None = None
        self.children: str | None = None
        self.asynchronous = False
        self.timeout_of: str | None = None  # LMCache: which of its waits was too long
        self.skipped_for: str | None = None  # LMCache: why it asked nobody
        self.told = False


def called(
    tracks: Tracks, track: Track, start_ns: int, asked_from: int, result: Any, component: str | None
) -> Inquiry:
    """The connector was asked; returns the inquiry that this call belongs to."""
    inquiry = track.inquiry
    if inquiry is None or inquiry.told:
        requested = track.request.num_tokens
        inquiry = track.inquiry = Inquiry(start_ns, requested, component, track.attempt)
    inquiry.calls += 1
    inquiry.local = asked_from
    tokens, inquiry.asynchronous = result
    if tokens is None:
        if inquiry.unanswered != tracks.passes - 1:
            tracks.version += 1
        inquiry.unanswered = tracks.passes
        if inquiry.span_id is None and start_ns - inquiry.start_ns > TOLD_AFTER_NS:
            _open(track, inquiry)
    elif inquiry.end_ns is None:
        inquiry.returned = tokens
        inquiry.asked_from = asked_from
    return inquiry


def answered(tracks: Tracks, track: Track, answer: Answer, children: str | None) -> None:
    """The first answer that is not None; its row waits for the admission, which ends the repeats."""
    inquiry = track.inquiry
    if inquiry is not None and inquiry.end_ns is None:
        inquiry.end_ns = recorder.now()
        inquiry.answer = answer
        inquiry.children = children
        tracks.answered.append(track)
        tracks.version += 1


def pass_over(tracks: Tracks) -> None:
    """Requests answered in this pass and still waiting: their answer must not be lost with the process."""
    pending, tracks.answered = tracks.answered, []
    for track in pending:
        inquiry = track.inquiry
        if inquiry is not None and not inquiry.told and inquiry.span_id is None:
            _open(track, inquiry)


def settle(track: Track, now_ns: int) -> None:
    """The request was admitted, preempted, failed to load, or is gone: no more repeats of this inquiry."""
    inquiry = track.inquiry
    if inquiry is None or inquiry.told:
        return
    inquiry.told = True
    if inquiry.end_ns is None:
        inquiry.end_ns = now_ns
        inquiry.answer = (None, "cancelled", None)
    if inquiry.span_id is None:
        recorder.record((rows.LOOKUP, *_values(track, inquiry)))
    else:
        recorder.record((rows.LOOKUP_CLOSE, inquiry.span_id, *_values(track, inquiry)))


def forget(track: Track, now_ns: int) -> None:
    """What comes next is a new inquiry."""
    settle(track, now_ns)
    track.inquiry = None


def _open(track: Track, inquiry: Inquiry) -> None:
    inquiry.span_id = recorder.next_id()
    recorder.record((rows.LOOKUP_OPEN, inquiry.span_id, *_values(track, inquiry)))


def _values(track: Track, inquiry: Inquiry) -> tuple[Any, ...]:
    found, outcome, reason = inquiry.answer or (None, None, None)
    return (
        track.request_id, inquiry.start_ns, inquiry.end_ns, inquiry.requested, found, outcome, reason,
        inquiry.component, inquiry.attempt, inquiry.calls, inquiry.asked_from, inquiry.returned,
        inquiry.children, inquiry.timeout_of, inquiry.skipped_for,
    )  # fmt: skip
