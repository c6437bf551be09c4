"""Every way in which a load can fail, under both policies. Runs inside the engines' interpreter.

A request of 100 tokens loads 48, three blocks, and is told that it failed:

    by its name        failed_recving, with finished_recving, without which it never goes on
    by its blocks      invalid_block_ids: the second of the three, or all of them
    by both at once

A case is named `failed_load_<how>_<policy>`; its request is `<case>.a`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bare import Bare
from fake_connector import FakeConnector

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES = ("recompute", "fail")
LOADED = 48


@dataclass(frozen=True)
class Failure:
    """How a load fails: inside a step or beside it, named or not, and which of its blocks are invalid."""

    inside: bool = False
    named: bool = False
    blocks: tuple[int, ...] = ()


FAILURES = {
    "async_named": Failure(named=True),
    "async_named_and_blocks": Failure(named=True, blocks=(0, 1, 2)),
    "async_some_blocks": Failure(blocks=(1,)),
    "async_all_blocks": Failure(blocks=(0, 1, 2)),
    "sync_some_blocks": Failure(inside=True, blocks=(1,)),
    "sync_all_blocks": Failure(inside=True, blocks=(0, 1, 2)),
}


def _alone(case: str, policy: str, how: Failure) -> None:
    name = f"{case}.a"
    FakeConnector.answers[name] = [(LOADED, not how.inside), (0, False)]
    bare = Bare(policy=policy)
    bare.add(name, 100)
    output = bare.schedule()
    own = bare.scheduler.kv_cache_manager.get_block_ids(name)[0]
    told: dict[str, set[object]] = {"invalid_block_ids": {own[number] for number in how.blocks}}
    if not how.inside:
        bare.put_out(output)
        output = bare.schedule()
        told["finished_recving"] = {name}
        told["failed_recving"] = {name} if how.named else set()
    bare.put_out(output, **told)
    for _ in range(4):
        bare.step()


def _without_end(case: str, policy: str) -> None:
    """The worker says that it failed, and only when the client has left that it is over."""
    name = f"{case}.a"
    FakeConnector.answers[name] = [(LOADED, True), (0, False)]
    bare = Bare(policy=policy)
    bare.add(name, 100)
    bare.step()
    bare.step(failed_recving={name})
    for _ in range(4):
        bare.step()
    bare.abort(name)
    bare.step(finished_recving={name})


def _one_of_two(case: str, policy: str) -> None:
    """Two loads inside one step; a block of the second does not arrive."""
    names = [f"{case}.{letter}" for letter in "ab"]
    bare = Bare(policy=policy)
    for seed, name in enumerate(names):
        FakeConnector.answers[name] = [(LOADED, False)]
        bare.add(name, 100, seed=seed)
    output = bare.schedule()
    own = bare.scheduler.kv_cache_manager.get_block_ids(names[1])[0]
    bare.put_out(output, invalid_block_ids={own[1]})
    for _ in range(4):
        bare.step()


def _shared(case: str, policy: str) -> None:
    """B runs on blocks that a loads in the same step: one of them does not arrive."""
    names = [f"{case}.{letter}" for letter in "ab"]
    FakeConnector.answers[names[0]] = [(LOADED, False)]
    bare = Bare(policy=policy)
    for name in names:
        bare.add(name, 100)
    output = bare.schedule()
    own = bare.scheduler.kv_cache_manager.get_block_ids(names[0])[0]
    bare.put_out(output, invalid_block_ids={own[1]})
    for _ in range(5):
        bare.step()


def _strange(case: str, policy: str) -> None:
    """Blocks that no request of the step has."""
    name = f"{case}.a"
    FakeConnector.answers[name] = [(LOADED, False)]
    bare = Bare(policy=policy)
    bare.add(name, 100)
    bare.put_out(bare.schedule(), invalid_block_ids={99})
    for _ in range(4):
        bare.step()


def _cases() -> list[Callable[[], None]]:
    found: list[Callable[[], None]] = []

    def add(how: str, policy: str, play: Callable[[str, str], None]) -> None:
        def case() -> None:
            play(case.__name__, policy)

        case.__name__ = f"failed_load_{how}_{policy}"
        found.append(case)

    for policy in POLICIES:
        for how, failure in FAILURES.items():
            add(how, policy, lambda case, policy, failure=failure: _alone(case, policy, failure))
        for how, play in (("without_end", _without_end), ("one_of_two", _one_of_two), ("shared", _shared)):
            add(how, policy, play)
        add("strange_blocks", policy, _strange)
    return found


ALL = tuple(_cases())
