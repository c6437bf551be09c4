"""What does the front end see of a request: when it came, when its first token left, how it ended?

    time ─────────────────────────────────────────────────────────────────────────►
    HTTP handler   render ─► _base_request_id           (caller's id and traceparent, kept for this task)
    front end                  └► OutputProcessor.add_request            open, names
    output loop                        process_outputs                   first token
                                       └ _update_stats_from_finished     close
                                       abort_requests, propagate_error   close

`start_ns` is vLLM's own arrival, taken before the prompt was tokenized; it is wall-clock time there, counted
back from now: a clock that is set moves no request by more than LONGEST_S. A request that is resumed with
more input stays one row. Between first token and finish nothing is done for an output.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import names
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LONGEST_S = 600.0
"""No prompt takes longer from arrival to here; what seems to is a clock that was set."""
STATUSES = {"error": "error", "abort": "aborted"}
"""vLLM's reason to finish -> status; all others are ok."""
_OPENED = recorder.shape(
    "span",
    (
        "span_id", "request_id", "start_ns", "prompt_tokens", "parent_request_id", "user_request_id",
        "trace_id", "parent_span_id",
    ),
    part="open", op="request", observer="api", evidence="shim", attribution="request",
)  # fmt: skip
_FIRST = recorder.shape("span", ("span_id", "first_token_ns"), part="update")
_CLOSED = recorder.shape(
    "span",
    (
        "span_id", "end_ns", "first_token_ns", "prompt_tokens", "output_tokens", "reported_cached_tokens",
        "status", "reason", "attributes.finish_reason", "attributes.error",
    ),
    part="close",
)  # fmt: skip


class Seen:
    """One request between arrival and finish."""

    __slots__ = ("first_ns", "request_id", "span_id", "state")

    def __init__(self, request_id: str, state: Any) -> None:
        self.request_id = request_id
        self.state = state
        self.span_id = recorder.next_id()
        self.first_ns: int | None = None


class Requests:
    """The open requests of one OutputProcessor, and those of them without a token yet."""

    __slots__ = ("open", "waiting")

    def __init__(self) -> None:
        self.open: dict[str, Seen] = {}
        self.waiting: dict[str, Seen] = {}

    def ended(self, request_id: str, finish_reason: str | None, error: str | None = None) -> None:
        """Write the end of a request, once."""
        seen = self.open.pop(request_id, None)
        self.waiting.pop(request_id, None)
        if seen is None:
            return
        now, state = recorder.now(), seen.state
        detokenizer = state.detokenizer
        output = None if detokenizer is None else detokenizer.num_output_tokens()
        if seen.first_ns is None and output:
            seen.first_ns = now
        cached = None if state.is_prefilling else state.num_cached_tokens
        status = STATUSES.get(finish_reason or "", "ok")
        reason = None if status == "ok" else status
        recorder.record(
            (_CLOSED, seen.span_id, now, seen.first_ns, state.prompt_len, output, cached,
             status, reason, finish_reason, error)
        )  # fmt: skip


def install(module: ModuleType) -> None:
    """Wrap OutputProcessor. Where an end would go unseen, requests are opened and not kept."""
    owner = module.OutputProcessor
    ends = [
        after(owner, "_update_stats_from_finished", _finished),
        after(owner, "abort_requests", _aborted),
    ]
    after(owner, "propagate_error", _failed)
    after(owner, "_update_streaming_request_state", _resumed)
    around(owner, "process_outputs", _outputs_came, _outputs_went)
    after(owner, "add_request", _added if all(ends) else _added_only)


def install_names(module: ModuleType) -> None:
    """Wrap the one place where HTTP handlers read the caller's id."""
    after(module.BaseServing, "_base_request_id", names.asked)


def requests_of(processor: Any) -> Requests:
    """The requests of one OutputProcessor."""
    kept: Requests | None = vars(processor).get("_kvtrace")
    if kept is None:
        kept = processor._kvtrace = Requests()  # noqa: SLF001 - ours, on an object of the engine
    return kept


def _added(
    _result: Any,
    processor: Any,
    request: Any,
    _prompt: Any = None,
    parent_req: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    kept = requests_of(processor)
    if request.request_id in kept.open:
        return
    seen = _opened(processor, request, parent_req)
    if seen is not None:
        kept.open[seen.request_id] = kept.waiting[seen.request_id] = seen


def _added_only(
    _result: Any,
    processor: Any,
    request: Any,
    _prompt: Any = None,
    parent_req: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    _opened(processor, request, parent_req)


def _opened(processor: Any, request: Any, parent: Any) -> Seen | None:
    """Write the arrival and the names of a request; None when it was over before it began."""
    state = processor.request_states.get(request.request_id)
    if state is None:
        return None
    seen = Seen(request.request_id, state)
    call = names.call_of(state.external_req_id)
    traceparent = names.traceparent_of(request, call)
    recorder.record(
        (_OPENED, seen.span_id, seen.request_id, _arrival_ns(request), state.prompt_len,
         None if parent is None else parent.request_id, names.user_call(request),
         *names.trace_of(traceparent))
    )  # fmt: skip
    names.record(seen.request_id, state.external_req_id, call, traceparent)
    return seen


def _arrival_ns(request: Any) -> int:
    """VLLM's wall-clock arrival on the monotonic clock; now, where the two cannot be compared."""
    ago_s = time.time() - request.arrival_time
    return recorder.now() - (int(ago_s * 1e9) if 0 <= ago_s < LONGEST_S else 0)


def _outputs_came(processor: Any, engine_core_outputs: Any, *_: Any, **__: Any) -> list[Seen]:
    waiting = requests_of(processor).waiting
    if not waiting:
        return []
    came = [output for output in engine_core_outputs if output.request_id in waiting]
    return [waiting[output.request_id] for output in came if output.new_token_ids]


def _outputs_went(came: list[Seen], _result: Any, processor: Any, *_: Any, **__: Any) -> None:
    """First tokens have left for their callers now; those that ended with it have said so already."""
    if not came:
        return
    now, waiting = recorder.now(), requests_of(processor).waiting
    for seen in came:
        if waiting.pop(seen.request_id, None) is not None:
            seen.first_ns = now
            recorder.record((_FIRST, seen.span_id, now))


def _finished(_result: Any, processor: Any, req_state: Any, finish_reason: Any, *_: Any, **__: Any) -> None:
    requests_of(processor).ended(req_state.request_id, str(finish_reason))


def _aborted(result: Any, processor: Any, *_: Any, **__: Any) -> None:
    kept = requests_of(processor)
    for request_id in result:
        kept.ended(request_id, "abort")


def _failed(_result: Any, processor: Any, error: Any, *_: Any, **__: Any) -> None:
    """The engine died: every open request gets its error."""
    kept = requests_of(processor)
    for request_id in list(kept.open):
        kept.ended(request_id, "error", type(error).__name__)


def _resumed(_result: Any, processor: Any, req_state: Any, *_: Any, **__: Any) -> None:
    """The last input of a resumed request came after its last output: it ends here."""
    if req_state.request_id not in processor.request_states:
        requests_of(processor).ended(req_state.request_id, "stop")
