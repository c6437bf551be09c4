"""What the bare scheduler is made to do, one function a case. Runs inside the engines' interpreter.

A request is named `<case>.<letter>`. Every case leaves its scheduler idle unless it says otherwise.
"""

from __future__ import annotations

import time

from bare import Bare
from fake_connector import FakeConnector, SecondConnector

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PAUSE_S = 0.005


def plain() -> None:
    bare = Bare(connector=None)
    bare.add("plain.a", 40, trace=TRACE)
    time.sleep(PAUSE_S)
    for _ in range(4):
        bare.step()


def gpu_hit() -> None:
    bare = Bare()
    bare.add("gpu_hit.a", 70)
    for _ in range(4):
        bare.step()
    bare.add("gpu_hit.b", 70)
    for _ in range(4):
        bare.step()


def async_load() -> None:
    FakeConnector.answers["async_load.a"] = [(None, False), (None, False), (48, True)]
    bare = Bare()
    bare.add("async_load.a", 100)
    for _ in range(3):
        bare.step()
        time.sleep(PAUSE_S)
    bare.step()
    bare.step(finished_recving={"async_load.a"})
    time.sleep(PAUSE_S)
    for _ in range(4):
        bare.step()


def failed_load() -> None:
    FakeConnector.answers["failed_load.a"] = [(48, True), (0, False)]
    bare = Bare()
    bare.add("failed_load.a", 100)
    bare.step()
    bare.step(finished_recving={"failed_load.a"}, failed_recving={"failed_load.a"})
    for _ in range(4):
        bare.step()


def partial_load() -> None:
    FakeConnector.answers["partial_load.a"] = [(48, True)]
    bare = Bare()
    bare.add("partial_load.a", 100)
    bare.step()
    blocks = bare.scheduler.kv_cache_manager.get_block_ids("partial_load.a")[0]
    bare.step(finished_recving={"partial_load.a"}, invalid_block_ids={blocks[1]})
    for _ in range(4):
        bare.step()


def refused_load() -> None:
    """The policy is to fail the request when its load fails."""
    FakeConnector.answers["refused_load.a"] = [(48, True)]
    bare = Bare(policy="fail")
    bare.add("refused_load.a", 100)
    bare.step()
    bare.step(finished_recving={"refused_load.a"}, failed_recving={"refused_load.a"})
    bare.step()


def full_load() -> None:
    """The whole prompt is loaded: its last token is computed again."""
    FakeConnector.answers["full_load.a"] = [(64, True)]
    bare = Bare()
    bare.add("full_load.a", 64)
    bare.step()
    bare.step(finished_recving={"full_load.a"})
    for _ in range(4):
        bare.step()


def sync_load() -> None:
    FakeConnector.answers["sync_load.a"] = [(48, False)]
    bare = Bare()
    bare.add("sync_load.a", 100)
    for _ in range(4):
        bare.step()


def chunked() -> None:
    bare = Bare(connector=None, budget=32)
    bare.add("chunked.a", 100)
    for _ in range(8):
        bare.step()


def preemption() -> None:
    """Nine usable blocks, two requests that grow beyond four of them each."""
    bare = Bare(connector=None, blocks=9)
    bare.add("preemption.a", 60, seed=1, most=20)
    bare.add("preemption.b", 60, seed=2, most=20)
    for _ in range(60):
        bare.step()


def held() -> None:
    """Twelve blocks; a and b hold five each for stores that end late; c needs seven, d waits behind it."""
    FakeConnector.delay = True
    bare = Bare(blocks=13)
    bare.add("held.a", 70, seed=1, most=1)
    bare.add("held.b", 70, seed=2, most=1)
    bare.step()
    bare.add("held.c", 100, seed=3, most=1)
    bare.add("held.d", 20, seed=4, most=1)
    for _ in range(40):
        bare.step()
    time.sleep(PAUSE_S)
    bare.step(finished_sending={"held.a"})
    time.sleep(PAUSE_S)
    bare.step()
    FakeConnector.delay = False
    for _ in range(3):
        bare.step()
    bare.step(finished_sending={"held.b", "held.c"})
    for _ in range(3):
        bare.step()


def shared_hold() -> None:
    """B runs on a's first four blocks while a holds them; a counts them once b is gone."""
    FakeConnector.delay = True
    bare = Bare()
    bare.add("shared_hold.a", 70, most=1)
    bare.step()
    bare.add("shared_hold.b", 70, most=3)
    bare.step()
    time.sleep(PAUSE_S)
    FakeConnector.delay = False
    for _ in range(3):
        bare.step()
    time.sleep(PAUSE_S)
    bare.step(finished_sending={"shared_hold.a"})


def touched() -> None:
    """A connector takes references to three cached blocks of a finished request and gives them back."""
    bare = Bare()
    bare.add("touched.a", 70)
    output = bare.schedule()
    blocks = bare.scheduler.kv_cache_manager.get_block_ids("touched.a")[0][:3]
    bare.put_out(output)
    for _ in range(3):
        bare.step()
    FakeConnector.touches.extend(blocks)
    bare.add("touched.b", 20, seed=9, most=1)
    bare.step()
    time.sleep(PAUSE_S)
    FakeConnector.frees.extend(blocks)
    bare.add("touched.c", 20, seed=10, most=1)
    bare.step(finished_sending=set())
    bare.step(finished_sending=set())


def broken_hold() -> None:
    """A connector gives back two blocks that a request holds; the pool hands them to another request."""
    FakeConnector.delay = True
    bare = Bare(blocks=9)
    bare.add("broken_hold.a", 70, seed=1, most=1)
    bare.step()
    FakeConnector.delay = False
    blocks = bare.scheduler.kv_cache_manager.get_block_ids("broken_hold.a")[0]
    FakeConnector.frees.extend(blocks[-2:])
    bare.step(finished_sending=set())
    bare.add("broken_hold.b", 70, seed=2, most=1)
    bare.step()
    bare.step(finished_sending={"broken_hold.a"})


def seats() -> None:
    """One seat: b waits for a slot, not for blocks."""
    bare = Bare(connector=None, seats=1)
    bare.add("seats.a", 40, seed=1)
    bare.add("seats.b", 40, seed=2)
    for _ in range(8):
        bare.step()
        time.sleep(PAUSE_S / 5)


def by_priority() -> None:
    bare = Bare(connector=None, seats=1, priority=True)
    bare.add("by_priority.a", 40, seed=1, priority=1)
    bare.step()
    bare.add("by_priority.b", 40, seed=2, priority=2)
    bare.add("by_priority.c", 40, seed=3, priority=0)
    for _ in range(12):
        bare.step()


def aborted() -> None:
    """One abort in each state: never seen by a pass, waiting for a slot, asking, loading, running."""
    FakeConnector.answers["aborted.asking"] = [(None, False)]
    FakeConnector.answers["aborted.loading"] = [(48, True)]
    bare = Bare(seats=2)
    bare.add("aborted.asking", 100, seed=1)
    bare.add("aborted.loading", 100, seed=2)
    bare.add("aborted.running", 100, seed=3, most=50)
    bare.add("aborted.served", 100, seed=4, most=50)
    bare.step()
    bare.add("aborted.slot", 100, seed=5)
    bare.step()
    bare.add("aborted.unseen", 100, seed=6)
    time.sleep(PAUSE_S)
    bare.abort("aborted.unseen", "aborted.slot", "aborted.asking", "aborted.loading", "aborted.running")
    bare.step()
    bare.step(finished_recving={"aborted.loading"})
    bare.abort("aborted.served")
    bare.step()


def repeated() -> None:
    """An answered inquiry whose request gets no blocks is asked again in every pass: one row."""
    FakeConnector.answers["repeated.b"] = [(None, False), (0, False)]
    bare = Bare(blocks=9)
    bare.add("repeated.a", 60, seed=1, most=60)
    bare.step()
    bare.add("repeated.b", 70, seed=2, most=1)
    for _ in range(80):
        bare.step()


def drafts() -> None:
    """Two drafts a step, one of them rejected each time."""
    bare = Bare(connector=None, drafts=2)
    bare.add("drafts.a", 40, most=9)
    for _ in range(8):
        bare.step(rejected=1)
        bare.draft(["drafts.a"], [[5, 6]])


def overlapped() -> None:
    """The next step is scheduled before the output of the last has come back."""
    bare = Bare(connector=None, overlap=True)
    bare.add("overlapped.a", 40, most=4)
    flight = [bare.schedule()]
    for _ in range(8):
        flight.append(bare.schedule())
        bare.put_out(flight.pop(0))
    bare.put_out(flight.pop(0))


def overlapped_drafts() -> None:
    """Both at once: what a step had before it is known only when the step before has ended."""
    bare = Bare(connector=None, overlap=True, drafts=2)
    bare.add("overlapped_drafts.a", 40, most=9)
    flight = [bare.schedule()]
    for _ in range(10):
        flight.append(bare.schedule())
        bare.put_out(flight.pop(0), rejected=1)
    bare.put_out(flight.pop(0), rejected=1)


def several() -> None:
    """MultiConnector: the first child finds nothing, the second 48 tokens."""
    SecondConnector.answers["several.a"] = [(None, False), (48, True)]
    bare = Bare(connector="MultiConnector")
    bare.add("several.a", 100)
    bare.step()
    bare.step()
    bare.step(finished_recving={"several.a"})
    for _ in range(4):
        bare.step()


def left_open() -> None:
    """The process ends while a loads, b holds and c waits."""
    FakeConnector.answers["left_open.a"] = [(48, True)]
    FakeConnector.answers["left_open.c"] = [(None, False)]
    FakeConnector.delay = True
    bare = Bare()
    bare.add("left_open.b", 70, seed=1, most=1)
    bare.step()
    bare.add("left_open.a", 100, seed=2)
    bare.add("left_open.c", 100, seed=3)
    bare.step()
    time.sleep(0.6)
    bare.step()
    FakeConnector.delay = False


ALL = (
    plain, gpu_hit, async_load, failed_load, partial_load, refused_load, full_load, sync_load, chunked,
    preemption, held, shared_hold, touched, broken_hold, seats, by_priority, aborted, repeated, drafts,
    overlapped, overlapped_drafts, several, left_open,
)  # fmt: skip
