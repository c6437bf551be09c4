"""Which GPU blocks can nobody reuse because a transfer still needs them, since when, and whose are they?

Two ways to hold: a finished request's blocks are not freed until its transfer ends (`delay_free`), or a
connector takes references of its own (`BlockPool.touch`). A hold counts a block when nothing but holds refers
to it; of several holds of one block the earliest counts it.

    A holds b1 b2   |------------- 2 -------------|      b2 is shared with the running request B:
    B runs, frees   ...uses b2....| free                 A counts 1 until B is gone, 2 after it
    rows of A       |----- 1 -----|------ 2 ------|

When a count changes, the row is cut in two adjacent ones; `attributes.hold` names the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import rows
from kvtrace.instrument.vllm.pool_checks import PoolChecks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class Hold:
    """One holder and the blocks it refers to."""

    __slots__ = ("blocks", "component", "counted", "first_span", "reason", "request_id", "span_id", "told")

    def __init__(self, request_id: str | None, reason: str, component: str, blocks: list[Any]) -> None:
        self.request_id = request_id
        self.reason = reason
        self.component = component
        self.blocks = {block.block_id: block for block in blocks}
        self.counted = 0
        self.told = -1  # the count of the row that is open
        self.span_id = 0
        self.first_span = 0


class Holds:
    """Every open hold of one scheduler, and who holds each block."""

    def __init__(self) -> None:
        self.by_request: dict[str, Hold] = {}
        self.holders: dict[int, list[Hold]] = {}  # block id -> its holds, the earliest first
        self.counted: dict[int, Hold] = {}  # block id -> the hold that counts it
        self.pins: dict[int, list[Hold]] = {}  # block id -> the holds that a connector's touch opened
        self.checks = PoolChecks(self)

    def open(
        self, request_id: str | None, reason: str, component: str, blocks: Iterable[Any], now_ns: int
    ) -> Hold:
        """A hold begins; its blocks still have the reference that it stands for."""
        hold = Hold(request_id, reason, component, [block for block in blocks if not block.is_null])
        for block_id in hold.blocks:
            self.holders.setdefault(block_id, []).append(hold)
        changed = self._count(hold.blocks.values())
        changed[id(hold)] = hold
        self._tell(changed, now_ns)
        return hold

    def open_request(
        self, request_id: str, reason: str, component: str, blocks: Iterable[Any], now_ns: int
    ) -> None:
        """A finished request keeps its blocks until its transfer ends."""
        self.by_request[request_id] = self.open(request_id, reason, component, blocks, now_ns)

    def close_request(self, request_id: str, now_ns: int) -> None:
        """Its blocks went back to the pool; nothing happens for a request that held none."""
        hold = self.by_request.pop(request_id, None)
        if hold is not None:
            self._close(hold, now_ns)

    def pin(
        self, request_id: str | None, reason: str, component: str, blocks: Iterable[Any], now_ns: int
    ) -> None:
        """A connector took references of its own."""
        hold = self.open(request_id, reason, component, blocks, now_ns)
        for block_id in hold.blocks:
            self.pins.setdefault(block_id, []).append(hold)

    def unpin(self, blocks: Iterable[Any], now_ns: int) -> None:
        """A connector gave references back, the oldest of each block first."""
        changed: dict[int, Hold] = {}
        done: list[Hold] = []
        for block in blocks:
            pinned = self.pins.get(block.block_id)
            if not pinned:
                continue
            hold = pinned.pop(0)
            if not pinned:
                del self.pins[block.block_id]
            self._leave(hold, block.block_id)
            hold.blocks.pop(block.block_id, None)
            changed.update(self._count((block,)))
            if hold.blocks:
                changed[id(hold)] = hold
            else:
                done.append(hold)
        for hold in done:
            changed.pop(id(hold), None)
            recorder.record((rows.HOLD_CLOSE, hold.span_id, now_ns))
        self._tell(changed, now_ns)

    def moved(self, blocks: Iterable[Any], now_ns: int) -> None:
        """Somebody else took or gave back references to these blocks."""
        if self.holders:
            self._tell(self._count(block for block in blocks if block.block_id in self.holders), now_ns)

    def _close(self, hold: Hold, now_ns: int) -> None:
        recorder.record((rows.HOLD_CLOSE, hold.span_id, now_ns))
        for block_id in hold.blocks:
            self._leave(hold, block_id)
        changed = self._count(hold.blocks.values())
        changed.pop(id(hold), None)
        self._tell(changed, now_ns)

    def _leave(self, hold: Hold, block_id: int) -> None:
        holders = self.holders.get(block_id, [])
        if hold in holders:
            holders.remove(hold)
            if not holders:
                del self.holders[block_id]
                self.checks.over(block_id, hold.request_id)

    def _count(self, blocks: Iterable[Any]) -> dict[int, Hold]:
        """Decide again who counts each block; the holds whose count moved."""
        changed: dict[int, Hold] = {}
        for block in blocks:
            holders = self.holders.get(block.block_id)
            now = holders[0] if holders and block.ref_cnt <= len(holders) else None
            before = self.counted.get(block.block_id)
            if now is before:
                continue
            if before is not None:
                before.counted -= 1
                changed[id(before)] = before
                del self.counted[block.block_id]
            if now is not None:
                now.counted += 1
                changed[id(now)] = now
                self.counted[block.block_id] = now
        return changed

    def _tell(self, changed: dict[int, Hold], now_ns: int) -> None:
        for hold in changed.values():
            if hold.counted == hold.told:
                continue
            if hold.span_id:
                recorder.record((rows.HOLD_CLOSE, hold.span_id, now_ns))
            hold.span_id = recorder.next_id()
            hold.first_span = hold.first_span or hold.span_id
            hold.told = hold.counted
            recorder.record((
                rows.HOLD_OPEN, hold.span_id, hold.request_id, now_ns, hold.counted, hold.reason,
                hold.component, len(hold.blocks), hold.first_span,
            ))  # fmt: skip
