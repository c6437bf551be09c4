"""What does the scheduler ask its connector, and what does it tell it?

The methods of a connector class that the scheduler calls are wrapped in place, once a class. With
MultiConnector both the parent's and its children's methods fire: the outermost call is the row, what the
children answered stays in its attributes. A worker's connector belongs to no scheduler and is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import wrapping
from kvtrace.instrument.lmcache.client import inquiries
from kvtrace.instrument.vllm import blocks, loads, lookups, products, retained
from kvtrace.instrument.vllm.track import of

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.track import Tracks

    Token = tuple[Tracks, int] | None  # None: not the scheduler's, or the same call again through super()

LONG_NS = 500_000_000
"""A call that lasts longer has waited inside for its answer."""
OTHERS = ("on_new_request", "build_connector_meta", "update_connector_output")


def instrument(cls: type) -> None:
    """Wrap what the scheduler calls on this connector class; methods it lacks are reported, not invented."""
    wrapping.around(cls, "get_num_new_matched_tokens", entered, matched, left)
    wrapping.around(cls, "update_state_after_alloc", entered, allocated, left)
    wrapping.around(cls, "get_external_cache_hit_sources", entered, sources, left)
    wrapping.around(cls, "request_finished", entered, finished, left)
    if hasattr(cls, "request_finished_all_groups"):
        wrapping.around(cls, "request_finished_all_groups", entered, finished, left)
    for name in OTHERS:
        wrapping.around(cls, name, entered, done, left)


def entered(connector: Any, *_: Any, **__: Any) -> Token:
    """Count how deep in connectors the scheduler is."""
    tracks = of(connector)
    if tracks is None or (tracks.connectors and tracks.connectors[-1] is connector):
        return None
    tracks.connectors.append(connector)
    return tracks, recorder.now()


def left(token: Token, error: BaseException, connector: Any, *_: Any, **__: Any) -> None:
    """The engine's own error: only the depth is put right."""
    del error
    if token is not None:
        _leave(token[0], connector)


def done(token: Token, result: Any, connector: Any, *_: Any, **__: Any) -> None:
    """Nothing to tell but the blocks it took or gave back."""
    del result
    if token is not None and _leave(token[0], connector):
        blocks.connector_left(token[0], connector, None, "store")


def finished(token: Token, result: Any, connector: Any, *_: Any, **__: Any) -> None:
    """A request is over for the connector, which may have found out that its server is gone."""
    del result
    if token is not None and _leave(token[0], connector):
        blocks.connector_left(token[0], connector, None, "store")
        for watch in token[0].watches:
            watch.poll()


def matched(
    token: Token, result: Any, connector: Any, request: Any, num_computed_tokens: int, *_: Any, **__: Any
) -> None:
    """The connector was asked how much it has beyond the GPU's own."""
    if token is None:
        return
    tracks, start_ns = token
    outermost = _leave(tracks, connector)
    returned = result[0]
    track = tracks.all.get(request.request_id)
    inquiry = None if track is None else track.inquiry
    if outermost and track is not None:
        name = products.component(connector)
        inquiry = lookups.called(tracks, track, start_ns, num_computed_tokens, result, name)
    gave_up = _gave_up(tracks, connector)
    if returned is None or (outermost and (inquiry is None or inquiry.end_ns is not None)):
        if outermost:
            tracks.children.clear()
        return
    waited = recorder.now() - start_ns > LONG_NS or (inquiry is not None and inquiry.unanswered > 0)
    answer = products.answer(
        connector, request, num_computed_tokens, returned, waited=waited, gave_up=gave_up
    )
    if inquiry is not None and inquiry.end_ns is None:
        _why(inquiry, *inquiries.why(connector, request))
    if not outermost:
        tracks.children.append((products.component(connector), returned, answer))
    elif track is not None:
        children, tracks.children = tracks.children, []
        lookups.answered(tracks, track, _of_all(answer, children), _named(children))
        blocks.connector_left(tracks, connector, request.request_id, "load")


def _why(inquiry: lookups.Inquiry, timeout_of: str | None, skipped_for: str | None) -> None:
    """What LMCache's client knows of its own answer; of a connector of several, the first that knows."""
    inquiry.timeout_of = inquiry.timeout_of or timeout_of
    inquiry.skipped_for = inquiry.skipped_for or skipped_for


def allocated(
    token: Token, result: Any, connector: Any, request: Any, blocks_: Any, num_external_tokens: int,
    *_: Any, **__: Any,
) -> None:  # fmt: skip
    """The request has its blocks: it is admitted, or an asynchronous load into them begins."""
    del result
    if token is None:
        return
    tracks = token[0]
    if not _leave(tracks, connector):
        if num_external_tokens:
            tracks.children.append((connector, num_external_tokens))
        return
    chosen = tracks.children[0][0] if tracks.children else connector
    tracks.children.clear()
    blocks.connector_left(tracks, connector, request.request_id, "load")
    track = tracks.all.get(request.request_id)
    if track is None:
        return
    lookups.settle(track, recorder.now())
    if not track.admitted:
        track.external = num_external_tokens
    inquiry = track.inquiry
    if num_external_tokens and inquiry is not None and inquiry.asynchronous:
        loads.submitted(tracks, track, chosen, num_external_tokens)
        tracks.fresh.append(track)
        retained.needed(tracks, track, chosen, blocks_, num_external_tokens)


def sources(token: Token, result: Any, connector: Any, request: Any, *_: Any, **__: Any) -> None:
    """The connector says from which media the tokens of a load come."""
    if token is not None and _leave(token[0], connector):
        track = token[0].all.get(request.request_id)
        if track is not None:
            loads.came_from(track, result)


def _gave_up(tracks: Tracks, connector: Any) -> bool:
    """Whether this connector has just found out that its cache does not answer."""
    flips = [watch.poll() for watch in tracks.watches if watch.connector is connector]
    return any(flips)


def _leave(tracks: Tracks, connector: Any) -> bool:
    """One connector less; True when it was the outermost."""
    if tracks.connectors and tracks.connectors[-1] is connector:
        tracks.connectors.pop()
    return not tracks.connectors


def _of_all(answer: products.Answer, children: list[tuple[Any, ...]]) -> products.Answer:
    """Of a parent that knows nothing itself: the deepest find of its children, or why they found nothing."""
    answers = [child[2] for child in children]
    if not answers:
        return answer
    found = [each[0] for each in answers if each[0] is not None]
    if any(found) or answer[0]:
        return (max([*found, answer[0] or 0]), "ok", None)
    for outcome in ("timeout", "failed", "miss"):
        for each in answers:
            if each[1] == outcome:
                return each
    return answers[0]


def _named(children: list[tuple[Any, ...]]) -> str | None:
    return " ".join(f"{name}={returned}" for name, returned, _ in children) or None
