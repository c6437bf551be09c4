"""Is a block that a hold keeps ever handed out again, or a hold's block given back more than once?

    A holds b7   |---------------- hold ----------------|
    the pool     ^ hands out b7: held_block_reused       ^ b7 given back, once: fine
                 ^ somebody gives b7 back: freed_twice   ^ and once more: freed_twice

A row only where a contract is broken; how many allocations were compared is told of the process at most once
a second (`checked_allocations`). Nothing is compared while there is no hold, nor was one whose blocks nobody
has taken since. What cannot be told from a connector's own way of giving back is no violation.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from kvtrace import recorder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kvtrace.instrument.vllm.holds import Hold, Holds

    Gone = list[Any] | dict[int, tuple[Any, int]]

BROKEN = recorder.shape(
    "block", ("time_ns", "reason", "request_id", "key", "span_id"),
    event="failed", tier="gpu", component="vllm.gpu", evidence="shim",
)  # fmt: skip
"""A contract of the block pool was broken; `key` is the block's number, `span_id` the hold."""
TELL_NS = 1_000_000_000
_REVERSED: type = type(reversed([0]))


class Counted:
    """Allocations that were compared in this process, over all its schedulers."""

    def __init__(self) -> None:
        self.allocations = 0
        self.told_ns: int | None = None

    def one_more(self, now_ns: int) -> None:
        """Count, and say so once in a while."""
        self.allocations += 1
        if self.told_ns is None or now_ns - self.told_ns >= TELL_NS:
            self.told_ns = now_ns
            recorder.describe(checked_allocations=self.allocations)


counted = Counted()


class PoolChecks:
    """What the holds of one scheduler allow its pool to do."""

    __slots__ = ("ended", "holds", "releasing", "told")

    def __init__(self, holds: Holds) -> None:
        self.holds = holds
        self.ended: dict[int, str | None] = {}  # block -> whose hold gave it back; nobody took it since
        self.releasing: Hold | None = None  # its blocks are being given back now
        self.told: set[tuple[int, str]] = set()

    @property
    def idle(self) -> bool:
        """There is nothing that could be broken."""
        return not self.holds.holders and not self.ended

    def over(self, number: int, request_id: str | None) -> None:
        """The last hold of a block ended."""
        self.ended[number] = request_id
        self.told.discard((number, "held_block_reused"))

    def handed_out(self, blocks: Iterable[Any]) -> None:
        """The pool gave these blocks to somebody: none of them may be held."""
        numbers = {block.block_id for block in blocks}
        holders = self.holds.holders
        if holders:
            counted.one_more(recorder.now())
            for number in holders.keys() & numbers:
                self._broken("held_block_reused", number, holders[number][0])
        if self.ended:
            for number in self.ended.keys() & numbers:
                del self.ended[number]
                self.told.discard((number, "freed_twice"))

    def given_back(self, blocks: Iterable[Any]) -> None:
        """References to these blocks were given back: each hold must still have its own."""
        every, ended = self.holds.holders, self.ended
        for block in blocks:
            number = block.block_id
            if number not in every:
                if block.ref_cnt < 0 and number in ended and not block.is_null:
                    self._broken("freed_twice", number, None)
            elif block.ref_cnt < len(every[number]):
                self._short(block, number)

    def _short(self, block: Any, number: int) -> None:
        """A held block has fewer references than holds.

        The connector's own go first: it may have given some back in calls that nobody wraps, unseen as long
        as another's reference stood in for them.
        """

        def is_short(holders: list[Hold]) -> bool:
            return block.ref_cnt < len(holders) - (self.releasing in holders)

        while number in self.holds.pins and is_short(self.holds.holders.get(number, [])):
            self.holds.unpin((block,), recorder.now())
        holders = self.holds.holders.get(number, [])
        if is_short(holders):
            self._broken("freed_twice", number, holders[0])

    def _broken(self, reason: str, number: int, hold: Hold | None) -> None:
        if (number, reason) not in self.told:
            self.told.add((number, reason))
            request_id = self.ended.get(number) if hold is None else hold.request_id
            span_id = None if hold is None else hold.span_id
            recorder.record((BROKEN, recorder.now(), reason, request_id, str(number), span_id))


def about_to_go(holds: Holds, ordered_blocks: Any, pinned: Iterable[Any]) -> Gone:
    """Of blocks that are about to be given back, what will tell afterwards which they were.

    An iterator is the engine's to consume. One over a reversed list is copied; of any other (a generator)
    the references that held blocks have before.
    """
    if isinstance(ordered_blocks, (list, tuple)):
        return list(ordered_blocks)
    if type(ordered_blocks) is _REVERSED:
        again: Any = copy(ordered_blocks)
        return list(again)
    known = {block.block_id: (block, block.ref_cnt) for block in pinned}
    for number, holders in holds.holders.items():
        block = holders[0].blocks[number]
        known[number] = (block, block.ref_cnt)
    return known


def gone(found: Gone, pool: Any) -> list[Any]:
    """The blocks that were given back; those of another pool bear the same numbers and are not ours."""
    if isinstance(found, list):
        return [block for block in found if getattr(block, "pool", None) in (None, pool)]
    return [block for block, before in found.values() if block.ref_cnt < before]
