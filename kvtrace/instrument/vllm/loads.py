"""When was a request's state asked for, when was it there, and when could the scheduler use it?

    update_state_after_alloc(n)     finished_recving reported       promoted by a later pass
          submit = start  ───────────────────► end ─────────────────────► usable

Only asynchronous loads: those that a connector does inside a step are seen by its worker. A failure is told
by request (`failed_recving`) or by block (`invalid_block_ids`, the valid prefix stays); both are reported
before the request is promoted, or fails itself (invalid.py sees the blocks in time). `attributes.failed_by`
says which of them it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import blocks, lookups, products, rows

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.track import Track, Tracks

FAILED_BY = recorder.shape("span", ("span_id", "attributes.failed_by"), part="update")
NAMED, BLOCKS = "request", "blocks"
DISTANCE = ("gpu", "host", "peer", "disk", "object", "unknown")


class Load:
    """One asynchronous load that has not ended."""

    __slots__ = (
        "computed", "end_ns", "failed", "failed_by", "gone", "span_id", "tokens", "transfer_id",
        "usable_tokens",
    )  # fmt: skip

    def __init__(self, tokens: int, transfer_id: str) -> None:
        self.span_id = recorder.next_id()
        self.tokens = tokens
        self.transfer_id = transfer_id
        self.computed: int | None = None  # tokens the request has when all of it arrives
        self.end_ns: int | None = None
        self.failed = False
        self.failed_by: list[str] = []
        self.gone = False  # its request ended before it did
        self.usable_tokens = tokens


def submitted(tracks: Tracks, track: Track, connector: Any, tokens: int) -> None:
    """Blocks were allocated and the connector was told to fill them."""
    load = Load(tokens, f"{track.request_id}/load/{track.attempt}")
    track.load = tracks.loads[track.request_id] = load
    parameters = getattr(track.request, "kv_transfer_params", None) or {}
    size = tracks.block_size
    now_ns = recorder.now()
    recorder.record((
        rows.LOAD_OPEN, load.span_id, track.request_id, load.transfer_id, now_ns, now_ns, tokens,
        -(-tokens // size) if size else None, products.tier(connector), products.component(connector),
        "handoff" if parameters.get("do_remote_prefill") else "reuse", track.attempt,
    ))  # fmt: skip


def came_from(track: Track, sources: dict[Any, int]) -> None:
    """The connector says which media the tokens come from: the deepest of them is the load's."""
    if track.load is None or not sources:
        return
    tiers = {
        products.SOURCES.get(str(getattr(source, "value", source)), "unknown"): tokens
        for source, tokens in sources.items()
    }
    known = [tier for tier in tiers if tier != "unknown"]
    if known:
        text = " ".join(f"{tier}={tokens}" for tier, tokens in tiers.items())
        recorder.record((rows.LOAD_SOURCES, track.load.span_id, max(known, key=DISTANCE.index), text))


def reported(tracks: Tracks, output: Any, now_ns: int) -> None:
    """Before the engine handles a step's output: which loads arrived, which failed."""
    for request_id in getattr(output, "failed_recving", None) or ():
        failed = tracks.loads.get(request_id)
        if failed is not None:
            failed.failed = True
            failed.usable_tokens = 0
            _failed_by(failed, NAMED)
    for request_id in getattr(output, "finished_recving", None) or ():
        load = tracks.loads.get(request_id)
        if load is not None and load.end_ns is None:
            load.end_ns = now_ns


def cut_back(tracks: Tracks, scheduler: Any, block_ids: Any) -> None:
    """The engine has looked at invalid blocks: which prefix of each load is still valid."""
    for request_id, load in tracks.loads.items():
        request = scheduler.requests.get(request_id)
        if request is not None and load.computed is not None and not load.gone:
            lost = load.computed - request.num_computed_tokens
            if lost > 0:
                own = blocks.of_request(scheduler.kv_cache_manager, request_id)
                if not load.failed or any(block.block_id in block_ids for block in own):
                    _failed_by(load, BLOCKS)
            load.usable_tokens = max(0, min(load.usable_tokens, load.tokens - max(0, lost)))


def _failed_by(load: Load, what: str) -> None:
    if what not in load.failed_by:
        load.failed_by.append(what)
        recorder.record((FAILED_BY, load.span_id, " ".join(load.failed_by)))


def handled(tracks: Tracks, scheduler: Any, output: Any) -> None:
    """After it: what is left of loads with invalid blocks, and what nobody waits for."""
    invalid = getattr(output, "invalid_block_ids", None)
    if invalid:
        cut_back(tracks, scheduler, invalid)
    for request_id in getattr(output, "finished_recving", None) or ():
        done = tracks.loads.get(request_id)
        if done is not None and done.gone:
            _close(tracks, request_id, done, None)


def promoted(tracks: Tracks, track: Track, now_ns: int) -> None:
    """A pass took the request back: what arrived is usable; what failed is asked for again, or computed."""
    load = track.load
    if load is None:
        return
    track.load = None
    lost = load.failed or load.usable_tokens == 0
    _close(tracks, track.request_id, load, None if lost else now_ns)
    track.need = None
    tracks.version += 1
    if lost:
        track.attempt += 1
        lookups.forget(track, now_ns)


def request_gone(tracks: Tracks, track: Track, *, held: bool) -> None:
    """The request ended while its load was under way; its blocks are held until the load ends, or not."""
    load = track.load
    if load is not None:
        load.gone = True
        if not held:
            _close(tracks, track.request_id, load, None)


def _close(tracks: Tracks, request_id: str, load: Load, usable_ns: int | None) -> None:
    tracks.loads.pop(request_id, None)
    end_ns = recorder.now() if load.end_ns is None else load.end_ns
    if load.failed or load.usable_tokens == 0:
        outcome = "failed"
    elif load.usable_tokens < load.tokens:
        outcome = "partial"
    else:
        outcome = "cancelled" if load.gone else "ok"
    recorder.record((rows.LOAD_CLOSE, load.span_id, end_ns, usable_ns, outcome, load.usable_tokens))
