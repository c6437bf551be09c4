"""How does a worker learn which requests a step's transfers belong to?

    EngineCore   build_connector_meta(scheduler_output) ─► metadata, and on it `_kvtrace`
                                                             │ pickled with the step
    worker       bind_connector_metadata(metadata) ──────────┴─► step_of(connector)

vLLM hands a worker block ids and no request ids in `start_load_kv`; an attribute on the metadata object
survives the way for every connector that ships. The ids are the very strings of the SchedulerOutput beside
it: pickle writes them once. Metadata that refuses attributes (slots, msgspec) goes as it is, counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm.track import of
from kvtrace.instrument.wrapping import after

if TYPE_CHECKING:
    from typing import Any

ATTRIBUTE = "_kvtrace"
_refused: dict[str, int] = {}


def instrument(connector: type) -> None:
    """Wrap the two ends of one connector class, and where its loads are decided."""
    after(connector, "update_state_after_alloc", _allocated)
    after(connector, "build_connector_meta", _built)
    after(connector, "bind_connector_metadata", _bound)


def step_of(connector: Any) -> dict[str, Any] | None:
    """In a worker: what came with the metadata that this connector has bound; None when nothing did.

    `step` counts the connector's metadata from 1, `requests` are computed in it, `loads` have their blocks;
    `attempts` says to which admission of its request each load belongs, None for one inside a step; `tokens`
    are those that each loads.
    """
    return vars(connector).get("_kvtrace_step")


def inside_the_step(connector: Any) -> tuple[str, ...]:
    """In a worker: the requests whose loads the scheduler put inside the step that is bound."""
    carried = step_of(connector)
    if carried is None:
        return ()
    pairs = zip(carried["loads"], carried["attempts"], strict=True)
    return tuple([request_id for request_id, attempt in pairs if attempt is None])


def computed_in_the_step(connector: Any) -> tuple[str, ...]:
    """In a worker: the requests that the step that is bound computes."""
    carried = step_of(connector)
    found: tuple[str, ...] = () if carried is None else carried["requests"]
    return found


def carried_by(metadata: Any) -> dict[str, Any] | None:
    """The same of metadata that no connector has bound yet."""
    return getattr(metadata, ATTRIBUTE, None)


def _allocated(
    _result: Any, connector: Any, request: Any, _blocks: Any, tokens: int, *_: Any, **__: Any
) -> None:
    if tokens > 0:
        tracks = of(connector)
        track = None if tracks is None else tracks.all.get(request.request_id)
        attempt: int | None = 1 if track is None else track.attempt
        if track is not None and track.inquiry is not None and not track.inquiry.asynchronous:
            attempt = None
        vars(connector).setdefault("_kvtrace_loads", {})[request.request_id] = (attempt, tokens)


def _built(metadata: Any, connector: Any, scheduler_output: Any, *_: Any, **__: Any) -> None:
    own = vars(connector)
    own["_kvtrace_steps"] = step = own.get("_kvtrace_steps", 0) + 1
    loads = own.pop("_kvtrace_loads", {})
    carried = {
        "step": step,
        "requests": tuple(scheduler_output.num_scheduled_tokens),
        "loads": tuple(loads),
        "attempts": tuple([attempt for attempt, _ in loads.values()]),
        "tokens": tuple([tokens for _, tokens in loads.values()]),
    }
    try:
        setattr(metadata, ATTRIBUTE, carried)
    except (AttributeError, TypeError):
        _count_refusal(type(metadata).__name__)


def _bound(_result: Any, connector: Any, connector_metadata: Any, *_: Any, **__: Any) -> None:
    vars(connector)["_kvtrace_step"] = carried_by(connector_metadata)


def _count_refusal(kind: str) -> None:
    count = _refused[kind] = _refused.get(kind, 0) + 1
    if count & (count - 1) == 0:  # told at 1, 2, 4, 8 ...: often enough, and never a stream of facts
        recorder.describe(attributes={f"refused_carrier.{kind}": count})
