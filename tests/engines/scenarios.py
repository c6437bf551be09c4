"""What the engines are made to do: one function a scenario, and how each start is configured.

A GPU pool of 40 blocks of 128 tokens holds three prompts of 1,500: every fourth prompt evicts the
oldest. LMCache keeps whole chunks of 256: five of a prompt, 1,280 tokens, 2,621,440 bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tests.engines.configuration import Configuration
from tests.engines.prompts import Prompt, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.drive import Client
    from tests.engines.stack import Stack

SHUTDOWN_S = 15
TIER_PAUSE_S = 1.5
HOST_DELAY_S = 0.04
"""How long every copy of the native offloading lasts at least."""
EXPORTED_PAUSE_S = 6.0


@dataclass
class Stage:
    """What a scenario acts on, and the instants it notes (name -> wall clock, ns)."""

    stack: Stack
    client: Client
    snapshot: Callable[[], None]
    marks_ns: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A name, a sentence for the recording, and what to play."""

    name: str
    story: str
    play: Callable[[Stage], None]


@dataclass(frozen=True)
class Session:
    """One start of the engines and the scenarios it serves, in order."""

    configuration: Configuration
    scenarios: tuple[Scenario, ...]


def l1_reuse(stage: Stage) -> None:
    """Repeats the GPU serves, repeats LMCache serves, shared prefixes, one prompt below a chunk."""
    ask = stage.client.ask
    ask(*plain(0, 0, 1, 2, 3))
    ask(*plain(0, 0, 1))
    ask(Prompt(number=10, shares=0, shared_tokens=768), Prompt(number=11, tokens=200))
    ask(*plain(4, 5, 2, 2, 3, 0))
    ask(Prompt(number=12, shares=1, shared_tokens=600))


def concurrent(stage: Stage) -> None:
    """Four prompts are made known; then two waves of known and new ones, some asked for twice at once."""
    stage.client.ask(*plain(0, 1, 2, 3))
    stage.client.ask_at_once(*plain(0, 1, 2, 3, 20, 21, 22, 22))
    stage.client.ask_at_once(*plain(20, 21, 4, 0, 23, 23, 1, 22, 5, 3))


def l2_loads(stage: Stage) -> None:
    """An L1 of three prompts: the pauses let LMCache copy to L2 and evict, then L2 serves."""
    for prompt in plain(0, 1, 2, 3, 4, 0, 1, 4, 2, 0):
        stage.client.ask(prompt)
        time.sleep(TIER_PAUSE_S)


def stores_dropped(stage: Stage) -> None:
    """An L1 of one and a half prompts: later stores find no room and are dropped in silence."""
    stage.client.ask(*plain(0, 1, 2, 3, 0, 1, 2, 3))


def server_killed(stage: Stage) -> None:
    """Four new prompts, a pause in which their spans are exported, four repeats, then kill -9."""
    stage.client.ask(*plain(0, 1, 2, 3))
    time.sleep(EXPORTED_PAUSE_S)
    stage.client.ask(*plain(0, 1, 2, 3))
    stage.snapshot()
    stage.marks_ns["cache_server_killed"] = stage.stack.kill_cache()
    stage.client.ask(*plain(0, 1, 2, 3, 0, 5))


def native_offload(stage: Stage) -> None:
    """Five prompts through a pool that holds three: the repeats come back from the host, some at once.

    Loads that are asked for together wait for each other; one that ends while another prompt is computed is
    reported only when that step is over.
    """
    stage.client.ask(*plain(0, 1, 2, 3, 4, 0, 1))
    stage.client.ask_at_once(*plain(2, 3, 0))
    stage.client.ask_at_once(*plain(4, 30, 1))


L1_REUSE = Scenario(
    "l1_reuse",
    "Repeats served by the GPU, and after eviction loaded from LMCache's L1.",
    l1_reuse,
)
CONCURRENT = Scenario(
    "concurrent",
    "Four requests, then eight, then ten requests at once.",
    concurrent,
)
L2_LOADS = Scenario(
    "l2_loads",
    "An L1 of three prompts in front of a file-system L2: some loads come from L2.",
    l2_loads,
)
STORES_DROPPED = Scenario(
    "stores_dropped",
    "An L1 of one and a half prompts and no L2: stores end normally and keep nothing.",
    stores_dropped,
)
SERVER_KILLED = Scenario(
    "server_killed",
    "The cache server is killed (SIGKILL) between two requests, with spans not yet exported.",
    server_killed,
)
NATIVE_OFFLOAD = Scenario(
    "native_offload",
    "vLLM's own offloading: prompts come back from the host in asynchronous loads, some of them at once.",
    native_offload,
)
_configured = partial(Configuration, shutdown_s=SHUTDOWN_S)
SESSIONS = (
    Session(_configured(l1_gb=0.064), (L1_REUSE,)),
    Session(_configured(l1_gb=0.064), (CONCURRENT,)),
    Session(_configured(l1_gb=0.008, l2=True), (L2_LOADS,)),
    Session(_configured(l1_gb=0.004), (STORES_DROPPED,)),
    Session(_configured(l1_gb=0.064, span_delay_ms=None), (SERVER_KILLED,)),
)
"""Starts of vLLM with LMCache."""
RECORDED = (*SESSIONS, Session(_configured(connector="native", delay_s=HOST_DELAY_S), (NATIVE_OFFLOAD,)))
"""All that the samples are made of."""
