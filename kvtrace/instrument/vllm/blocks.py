"""Which blocks does a connector take references to, and who takes or frees blocks that are held?

`BlockPool.touch` and `free_blocks` inside a connector's call are a hold of its own; outside of one they only
move the counts of holds that are open. What the pool hands out and gets back is compared with the holds
(pool_checks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import wrapping
from kvtrace.instrument.vllm import needs, products
from kvtrace.instrument.vllm.pool_checks import about_to_go, gone
from kvtrace.instrument.vllm.track import of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kvtrace.instrument.vllm.pool_checks import Gone
    from kvtrace.instrument.vllm.track import Tracks


def instrument(manager: Any) -> None:
    """Wrap the classes of a scheduler's cache manager and of its block pool."""
    wrapping.after(type(manager), "allocate_slots", slots)
    wrapping.around(type(manager), "free", freeing, freed, not_freed)
    pool = getattr(manager, "block_pool", None)
    if pool is not None:
        wrapping.after(type(pool), "touch", touched)
        wrapping.around(type(pool), "free_blocks", going_back, given_back)
        wrapping.after(type(pool), "unpin_blocks", unpinned)
        wrapping.after(type(pool), "get_new_blocks", handed_out)


def slots(result: Any, manager: Any, request: Any, num_new_tokens: int, *_: Any, **options: Any) -> None:
    """Slots were asked for: tell when a waiting request did not get them."""
    if result is None:
        tracks = of(manager)
        track = tracks and tracks.waiting.get(request.request_id)
        if tracks and track:
            needs.refused(tracks, track, manager, num_new_tokens, options)


def freeing(manager: Any, request: Any, *_: Any, **__: Any) -> list[Any]:
    """Before a request's blocks are freed: those that holds refer to as well."""
    tracks = of(manager)
    if tracks is None or not tracks.holds.holders:
        return []
    holds = tracks.holds
    holds.checks.releasing = holds.by_request.get(request.request_id)
    return [block for block in of_request(manager, request.request_id) if block.block_id in holds.holders]


def freed(shared: list[Any], result: Any, manager: Any, request: Any, *_: Any, **__: Any) -> None:
    """Afterwards the request's own hold is over, and another may be the last that refers to them."""
    del result
    tracks = of(manager)
    if shared and tracks is not None:
        now_ns = recorder.now()
        tracks.holds.checks.releasing = None
        tracks.holds.close_request(request.request_id, now_ns)
        tracks.holds.moved(shared, now_ns)


def not_freed(shared: list[Any], error: BaseException, manager: Any, *_: Any, **__: Any) -> None:
    """The engine's own error."""
    del error
    tracks = of(manager)
    if shared and tracks is not None:
        tracks.holds.checks.releasing = None


def touched(result: Any, pool: Any, blocks: Any, *_: Any, **__: Any) -> None:
    """References were taken, by a connector or for a prefix hit."""
    del result
    tracks = of(pool)
    if tracks is None:
        return
    if tracks.connectors:
        tracks.pins += blocks
    elif tracks.holds.holders:
        tracks.holds.moved(blocks, recorder.now())


def going_back(pool: Any, ordered_blocks: Any, *_: Any, **__: Any) -> Gone | None:
    """References are about to be given back."""
    tracks = of(pool)
    if tracks is None or (tracks.holds.checks.idle and not tracks.connectors):
        return None
    return about_to_go(tracks.holds, ordered_blocks, tracks.pins)


def given_back(token: Gone | None, result: Any, pool: Any, *_: Any, **__: Any) -> None:
    """References were given back: by a connector, or for a request that is over."""
    del result
    tracks = of(pool)
    if token is None or tracks is None:
        return
    if tracks.connectors:
        tracks.unpins += gone(token, pool)
    else:
        tracks.holds.checks.given_back(gone(token, pool))


def unpinned(result: Any, pool: Any, blocks: Any, *_: Any, **__: Any) -> None:
    """A connector's references went back; who still reads the blocks is told when they are reused."""
    del result
    tracks = of(pool)
    if tracks is not None and tracks.holds.pins and isinstance(blocks, (list, tuple)):
        tracks.holds.unpin(blocks, recorder.now())


def handed_out(result: Any, pool: Any, *_: Any, **__: Any) -> None:
    """The pool gave blocks away."""
    tracks = of(pool)
    if tracks is not None and not tracks.holds.checks.idle:
        tracks.holds.checks.handed_out(result)


def connector_left(tracks: Tracks, connector: Any, request_id: str | None, reason: str) -> None:
    """The outermost call of a connector is over: what it took and did not give back at once is held."""
    if not tracks.pins and not tracks.unpins:
        return
    now_ns = recorder.now()
    pins, tracks.pins = tracks.pins, []
    unpins, tracks.unpins = tracks.unpins, []
    taken = {id(block): block for block in pins}
    given = [block for block in unpins if taken.pop(id(block), None) is None]
    if given:
        tracks.holds.unpin(given, now_ns)
        tracks.holds.checks.given_back(given)
    name = products.component(connector)
    owners = products.pin_owners(connector) if taken and request_id is None else {}
    by_owner: dict[str | None, list[Any]] = {}
    for block in taken.values():
        by_owner.setdefault(owners.get(block.block_id, request_id), []).append(block)
    for owner, blocks in by_owner.items():
        tracks.holds.pin(owner, reason, name, blocks, now_ns)


def of_request(manager: Any, request_id: str) -> Iterable[Any]:
    """A request's blocks over all groups, without the null block."""
    groups = manager.coordinator.get_blocks(request_id)
    return [block for group in groups for block in group if not block.is_null]
