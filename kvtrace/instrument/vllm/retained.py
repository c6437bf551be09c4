"""Which state must a load bring for each group of layers, and what did it bring?

    scheduler   retained_state   what the first computed token needs, and what of it is on the GPU already
    worker      restored_state   the blocks that were filled, a row a group, also of one that got none

Two observers, a row a group and load each, tied by the load's transfer_id. They have no op: what they tell is
part of the load's row. The scheduler says it when the load is asked for, the worker when the copy is over, so
that a copy that never ends has restored nothing. Which of a request's blocks a worker fills native offloading
alone tells; of other connectors the scheduler's rows stand alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, products
from kvtrace.instrument.wrapping import lose

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kvtrace.instrument.vllm.groups import Group
    from kvtrace.instrument.vllm.track import Track, Tracks

    Filled = tuple[Group, int, int]  # of a group: its first block, how many

NEEDED, RESTORED = "retained_state", "restored_state"
_SAID = (
    "request_id", "transfer_id", "start_ns", "end_ns", "tokens", "blocks", "state_kind", "component",
    "attempt", "attributes.group", "attributes.kind", "attributes.window", "attributes.block_tokens",
    "attributes.layers",
)  # fmt: skip
_NEEDED = recorder.shape(
    "span",
    (*_SAID, "attributes.groups", "attributes.from_token", "attributes.first_computed",
     "attributes.asked_from_tokens", "attributes.on_gpu"),
    name=NEEDED, observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
_RESTORED = recorder.shape(
    "span",
    (*_SAID, "bytes", "rank", "outcome", "attributes.from_token"),
    name=RESTORED, observer="worker", evidence="shim", attribution="request", clock="host",
)  # fmt: skip


def needed(tracks: Tracks, track: Track, connector: Any, blocks: Any, external_tokens: int) -> None:
    """The blocks of an asynchronous load are allocated: what it is there for, group by group.

    An engine whose tables are of another form is asked once; its lookups and loads are told without it.
    """
    try:
        _needed(tracks, track, connector, blocks, external_tokens)
    except Exception as error:  # noqa: BLE001 - whatever another version raises
        tracks.groups = ()
        lose("vllm.retained", error)


def _needed(tracks: Tracks, track: Track, connector: Any, blocks: Any, external_tokens: int) -> None:
    inquiry, load = track.inquiry, track.load
    if inquiry is None or load is None or not tracks.groups:
        return
    # A request that has all of its tokens computes the last one again.
    first = min(inquiry.local + external_tokens, track.request.num_tokens - 1)
    now_ns = recorder.now()
    component = products.component(connector)
    for group, table in zip(tracks.groups, blocks.blocks, strict=True):
        if group is None or first <= 0:
            continue
        begin = group.needs_from(first)
        low, high = begin // group.block_tokens, -(-first // group.block_tokens)
        recorder.record((
            _NEEDED, track.request_id, load.transfer_id, now_ns, now_ns, first - begin,
            high - low if first > begin else 0, group.state_kind, component, track.attempt, group.number,
            group.kind, group.span, group.block_tokens, group.layers, len(tracks.groups), begin, first,
            inquiry.local, _on_gpu(table, low, high, group.block_tokens),
        ))  # fmt: skip


def filled(groups: Sequence[Group | None], gpu: Any) -> list[Filled]:
    """Which blocks of each group a job of a worker is about; empty where its form is another one."""
    sizes, firsts = getattr(gpu, "group_sizes", None), getattr(gpu, "block_indices", None)
    if not sizes or not firsts or not len(sizes) == len(firsts) == len(groups):
        return []
    told = zip(groups, firsts, sizes, strict=True)
    return [(group, int(first), int(size)) for group, first, size in told if group is not None]


def restored(
    parts: Sequence[Filled], request_id: str | None, transfer_id: str | None, attempt: int | None,
    start_ns: int, end_ns: int, *, ok: bool,
) -> None:  # fmt: skip
    """A load of native offloading is over."""
    for group, first, size in parts:
        recorder.record((
            _RESTORED, request_id, transfer_id, start_ns, end_ns, size * group.block_tokens, size,
            group.state_kind, "vllm.offloading", attempt, group.number, group.kind, group.span,
            group.block_tokens, group.layers,
            None if group.block_bytes is None else size * group.block_bytes, configuration.here().rank,
            "ok" if ok else "failed", first * group.block_tokens,
        ))  # fmt: skip


def _on_gpu(table: Sequence[Any], low: int, high: int, block_tokens: int) -> str:
    """Tokens of cached blocks among these, as `0-256 384-512`: those with a hash.

    A fresh block has none, the null block neither. A table of 128k tokens has 8,000 blocks: they are looked
    at once, and the ranges are found in bytes.
    """
    cached = bytes([block.block_hash is not None for block in table[low:high]])
    found, stop = [], 0
    while (start := cached.find(1, stop)) >= 0:
        stop = cached.find(0, start)
        stop = len(cached) if stop < 0 else stop
        found.append(f"{(low + start) * block_tokens}-{(low + stop) * block_tokens}")
    return " ".join(found)
