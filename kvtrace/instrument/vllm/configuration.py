"""Who is this process: its engine, its role, what configures it, and what its cached state is?

Said as soon as a process holds the VllmConfig: the front end before it starts its engine, EngineCore around
the sizing of its pool (the plugin is loaded inside of EngineCore.__init__, too late to wrap that), a worker
after its device is there. One process may be several of them: the first in ROLES names it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import ranks, torch_cuda
from kvtrace.instrument.vllm import plugin
from kvtrace.instrument.vllm.identity import identity
from kvtrace.instrument.vllm.settings import at, settings
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

ROLES = ("api", "scheduler", "worker")


class Here:
    """What this process has said of itself; another process, also a forked one, starts anew."""

    __slots__ = ("config", "identified", "pid", "roles")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.roles: set[str] = set()
        self.config: Any = None
        self.identified = False

    @property
    def rank(self) -> int | None:
        """Of the worker of this process; None where there is none."""
        return ranks.mine()


_here = Here()


def here() -> Here:
    """The state of this process."""
    global _here
    if _here.pid != os.getpid():
        _here = Here()
    return _here


def install_front_end(module: ModuleType) -> None:
    """AsyncLLM and LLMEngine: known before they start their engine, the pool's size after."""
    for name in ("AsyncLLM", "LLMEngine"):
        owner = vars(module).get(name)
        if owner is not None:
            around(owner, "__init__", _front_end_starts, _front_end_started)


def install_core(module: ModuleType) -> None:
    """EngineCore: before and after its pool is sized, and before it ends."""
    around(module.EngineCore, "_initialize_kv_caches", _core_starts, _core_started)
    around(module.EngineCore, "shutdown", _ends, _nothing)


def install_worker(module: ModuleType) -> None:
    """A worker: when its device is there, and before it ends."""
    after(module.WorkerWrapperBase, "init_device", _worker_started)
    around(module.WorkerWrapperBase, "shutdown", _ends, _nothing)


def engine_name(config: Any, role: str) -> str:
    """`vllm-<instance>`, with `-dp<rank>` when there are several ranks.

    A front end that serves all ranks itself has no rank. vLLM resets the size and the ranks of a dense model,
    so EngineCore's comes from the name of its process and goes to its workers in the environment.
    """
    name = f"vllm-{at(config, 'instance_id')}"
    rank = os.environ.get(plugin.RANK)
    parallel = at(config, "parallel_config")
    several = (at(parallel, "data_parallel_size") or 1) > 1
    serves_all = role == "api" and not at(parallel, "local_engines_only")
    if rank is None and several and not serves_all:
        rank = str(at(parallel, "data_parallel_index"))
    return name if rank is None else f"{name}-dp{rank}"


def describe(config: Any, role: str, **attributes: str | int) -> None:
    """Tell the recorder what is known of this process; later calls add to it."""
    state = here()
    state.config = config
    state.roles.add(role)
    named = next(each for each in ROLES if each in state.roles)
    recorder.describe(
        engine=engine_name(config, role),
        role=named,
        product="vllm",
        version=plugin.version(),
        config={**settings(config)},
        instruments={**plugin.instruments()},
        attributes={"roles": ",".join(each for each in ROLES if each in state.roles), **attributes},
    )


def report() -> None:
    """Tell what is wrapped by now, if this process has said who it is."""
    if here().roles:
        recorder.describe(instruments={**plugin.instruments()})


def _front_end_starts(_self: Any, vllm_config: Any, *_: Any, **__: Any) -> Any:
    describe(vllm_config, "api")
    plugin.warn_of_an_unknown_version()
    return vllm_config


def _front_end_started(config: Any, *_: Any, **__: Any) -> None:
    describe(config, "api")


def _core_starts(_self: Any, vllm_config: Any) -> Any:
    describe(vllm_config, "scheduler")
    return vllm_config


def _core_started(config: Any, *_: Any, **__: Any) -> None:
    describe(config, "scheduler")
    plugin.warn_of_an_unknown_version()
    if not here().identified:
        here().identified = True
        name = engine_name(config, "scheduler")
        fields, enforced_by = identity(config)
        for side in ("writer", "reader"):
            recorder.identity(name, side, fields, source="VllmConfig", enforced_by=enforced_by)


def _worker_started(_result: Any, wrapper: Any) -> None:
    rank = int(at(wrapper, "global_rank") or 0)
    ranks.tell(rank)
    describe(wrapper.vllm_config, "worker", rank=rank)


def _ends(*_: Any, **__: Any) -> None:
    """The spool is closed here and now: a server that stops gives its engine no time (SIGTERM, SIGKILL).

    Not where the front end is in the same process: that goes on, perhaps with another engine.
    """
    if "api" not in here().roles:
        torch_cuda.finish()  # copies that are over and were not read yet are rows, the others are counted
        recorder.close()


def _nothing(*_: Any, **__: Any) -> None:
    pass
