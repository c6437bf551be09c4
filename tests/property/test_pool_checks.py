"""Whatever requests and connectors rightly do with a pool breaks nothing; one reference too few is told.

The pool has a free list: what is handed out is what nobody refers to, as in vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvtrace.instrument.vllm import pool_checks
from tests.property.test_exposure import cases
from tests.unit.instrument.conftest import Told
from tests.unit.instrument.vllm.stand_in import Request, connector_class, made, output

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 12
FORMS: tuple[Callable[[list[Any]], Any], ...] = (list, tuple, reversed, lambda blocks: (b for b in blocks))


class World:
    """A scheduler, and what each request and connector refers to."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.scheduler = made(connector=connector_class())
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.pinned: list[list[Any]] = []
        self.delayed: list[str] = []
        self.running: list[str] = []
        self.names = 0

    def take(self, count: int) -> list[Any]:
        """Blocks that nobody refers to, the first ones."""
        self.pool.next = [b.block_id for b in self.pool.blocks[1:BLOCKS] if b.ref_cnt <= 0][:count]
        return self.pool.get_new_blocks(len(self.pool.next))  # type: ignore[no-any-return]

    def start(self, new: int, shared: int) -> None:
        """A request with new blocks and a prefix of blocks that others have."""
        name = f"r{self.names}"
        self.names += 1
        self.scheduler.add_request(Request(name, 16))
        common = [block for block in self.pool.blocks[1:BLOCKS] if block.ref_cnt > 0][:shared]
        self.pool.touch(common)
        self.scheduler.kv_cache_manager.tables[name] = common + self.take(new)
        self.running.append(name)

    def finish(self, which: int, *, delay: bool) -> None:
        """A request ends; its transfer goes on or there is none."""
        if self.running:
            name = self.running.pop(which % len(self.running))
            type(self.scheduler.connector).delay = delay
            request = self.scheduler.requests[name]
            request.state = "FINISHED_STOPPED"
            self.scheduler._free_request(request)
            if delay:
                self.delayed.append(name)

    def send(self, which: int) -> None:
        """A transfer ends."""
        if self.delayed:
            name = self.delayed.pop(which % len(self.delayed))
            self.scheduler.update_from_output(self.scheduler.schedule(), output(finished_sending={name}))

    def pin(self, count: int) -> None:
        """The connector takes references."""
        blocks = [block for block in self.pool.blocks[1:BLOCKS] if block.ref_cnt > 0][:count]
        self.scheduler.connector.during = lambda: self.pool.touch(blocks)
        self.scheduler.connector.build_connector_meta(None)
        if blocks:
            self.pinned.append(blocks)

    def unpin(self, which: int, form: int, *, wrapped: bool) -> None:
        """The connector gives them back, in a call that is wrapped or in another."""
        if self.pinned:
            blocks = self.pinned.pop(which % len(self.pinned))
            if not wrapped:
                self.pool.free_blocks(FORMS[form](blocks))
                return
            self.scheduler.connector.during = lambda: self.pool.free_blocks(FORMS[form](blocks))
            self.scheduler.connector.update_connector_output(None)


number = st.integers(0, 5)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), number, number),
        st.tuples(st.just("finish"), number, st.booleans()),
        st.tuples(st.just("send"), number),
        st.tuples(st.just("pin"), number),
        st.tuples(st.just("unpin"), number, st.integers(0, 3), st.booleans()),
    ),
    min_size=4,
    max_size=40,
)


def played(actions: list[tuple[Any, ...]]) -> World:
    with pytest.MonkeyPatch.context() as patch:
        told = Told()
        for name in ("record", "lost", "describe"):
            patch.setattr(f"kvtrace.recorder.{name}", getattr(told, name))
        patch.setattr("kvtrace.recorder.now", lambda: told.clock)
        patch.setattr("kvtrace.recorder.next_id", lambda: next(told.ids))
        patch.setattr("kvtrace.instrument.wrapping._statuses", {})
        patch.setattr(pool_checks, "counted", pool_checks.Counted())
        world = World(told)
        for name, *arguments in actions:
            if name == "finish":
                world.finish(arguments[0], delay=arguments[1])
            elif name == "unpin":
                world.unpin(arguments[0], arguments[1], wrapped=arguments[2])
            elif name == "early":
                block = world.pool.blocks[1:BLOCKS][arguments[0]]
                world.pool.free_blocks([block])
            else:
                getattr(world, name)(*arguments)
        assert told.losses == []
        return world


UNSEEN = [
    ("start", 3, 3),
    ("pin", 4),
    ("unpin", 4, 2, False),
    ("pin", 4),
    ("finish", 1, True),
    ("unpin", 4, 3, False),
]
"""The connector gives back, unseen, what the running request's own reference stands in for."""


@cases(300)
@example(UNSEEN)
@given(ACTIONS)
def test_no_right_order_of_taking_and_giving_back_is_a_violation(actions: list[tuple[Any, ...]]) -> None:
    assert played(actions).told.table("block") == []


@cases(300)
@given(ACTIONS)
def test_when_everything_has_ended_nothing_is_held(actions: list[tuple[Any, ...]]) -> None:
    ending = [("finish", 0, False)] * 40 + [("send", 0)] * 40 + [("unpin", 0, 0, True)] * 40
    holds = played([*actions, *ending]).scheduler._kvtrace_tracks.holds
    assert not holds.holders
    assert not holds.pins
    assert not holds.by_request


@cases(200)
@given(st.integers(1, 5), st.integers(0, 4), ACTIONS)
def test_a_reference_of_a_request_s_hold_that_somebody_else_gives_back_is_told(
    blocks: int, which: int, actions: list[tuple[Any, ...]]
) -> None:
    first = [("start", blocks, 0), ("finish", 0, True), ("early", which % blocks)]
    quiet = [action for action in actions if action[0] == "start"]
    found = {(row["reason"], row["request_id"]) for row in played([*first, *quiet]).told.table("block")}
    assert ("freed_twice", "r0") in found
    if any(action[1] for action in quiet):
        assert ("held_block_reused", "r0") in found
