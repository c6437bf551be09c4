"""Who a process is, in every kind of process that vLLM has."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import configuration, plugin
from tests.unit.instrument.vllm.test_settings import config

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.RANK, raising=False)
    monkeypatch.setenv("KVTRACE_WARNED", "1")


def several(index: int, **other: Any) -> Any:
    return config(parallel_config=Some(data_parallel_size=2, data_parallel_index=index, **other))


def test_one_rank_has_no_number() -> None:
    assert configuration.engine_name(config(), "scheduler") == "vllm-5e1f3"


def test_of_several_ranks_each_is_an_engine() -> None:
    assert configuration.engine_name(several(1), "scheduler") == "vllm-5e1f3-dp1"
    assert configuration.engine_name(several(0), "worker") == "vllm-5e1f3-dp0"


def test_a_front_end_of_all_ranks_has_no_rank() -> None:
    assert configuration.engine_name(several(0), "api") == "vllm-5e1f3"
    assert configuration.engine_name(several(1, local_engines_only=True), "api") == "vllm-5e1f3-dp1"


def test_a_rank_that_the_configuration_forgot_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(plugin.RANK, "0")
    assert configuration.engine_name(config(), "worker") == "vllm-5e1f3-dp0"


def test_a_front_end_says_who_it_is_before_and_after_its_engine_starts(told: Told) -> None:
    class AsyncLLM:
        def __init__(self, vllm_config: Any, *, log_stats: bool) -> None:
            assert log_stats
            assert len(told.described) == 1
            vllm_config.cache_config.num_gpu_blocks = 99

    configuration.install_front_end(Some(AsyncLLM=AsyncLLM))  # type: ignore[arg-type]
    AsyncLLM(vllm_config=config(), log_stats=True)  # as LLMEngine.from_engine_args does
    assert told.losses == []
    assert [facts["role"] for facts in told.described] == ["api", "api"]
    assert [facts["config"]["num_gpu_blocks"] for facts in told.described] == ["40", "99"]
    assert told.described[0]["engine"] == "vllm-5e1f3"


def test_a_process_that_is_all_of_it_is_the_front_end(told: Told) -> None:
    for role in ("worker", "scheduler", "api", "worker"):
        configuration.describe(config(), role)
    assert [facts["role"] for facts in told.described] == ["worker", "scheduler", "api", "api"]
    assert told.described[-1]["attributes"] == {"roles": "api,scheduler,worker"}


def test_engine_core_says_the_size_of_its_pool_and_what_its_blocks_are(told: Told) -> None:
    class EngineCore:
        def _initialize_kv_caches(self, vllm_config: Any) -> str:
            vllm_config.cache_config.num_gpu_blocks = 99
            return "sizes"

    configuration.install_core(Some(EngineCore=EngineCore))  # type: ignore[arg-type]
    for _ in range(2):
        assert EngineCore()._initialize_kv_caches(config()) == "sizes"
    assert told.described[1]["config"]["num_gpu_blocks"] == "99"
    assert [(row[0], row[1]) for row in told.identities] == [
        ("vllm-5e1f3", "writer"),
        ("vllm-5e1f3", "reader"),
    ]


def test_a_worker_says_its_rank(told: Told) -> None:
    class WorkerWrapperBase:
        global_rank = 3
        vllm_config = config()

        def init_device(self) -> None:
            pass

    configuration.install_worker(Some(WorkerWrapperBase=WorkerWrapperBase))  # type: ignore[arg-type]
    WorkerWrapperBase().init_device()
    (facts,) = told.described
    assert (facts["role"], facts["attributes"]["rank"]) == ("worker", 3)
    assert configuration.here().rank == 3


def test_a_forked_child_starts_anew(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration.describe(config(), "api")
    monkeypatch.setattr("os.getpid", lambda: -1)
    configuration.describe(config(), "worker")
    assert told.described[-1]["role"] == "worker"


@pytest.mark.parametrize(
    ("roles", "closed"), [({"scheduler"}, 1), ({"scheduler", "worker"}, 1), ({"api", "scheduler"}, 0)]
)
def test_an_engine_that_ends_closes_its_spool_unless_the_front_end_lives_on(
    told: Told, monkeypatch: pytest.MonkeyPatch, roles: set[str], closed: int
) -> None:
    class EngineCore:
        def _initialize_kv_caches(self, vllm_config: Any) -> None:
            assert vllm_config

        def shutdown(self) -> None:
            calls.append("engine")

    calls: list[str] = []
    monkeypatch.setattr("kvtrace.recorder.close", lambda: calls.append("spool"))
    configuration.install_core(Some(EngineCore=EngineCore))  # type: ignore[arg-type]
    configuration.here().roles |= roles
    EngineCore().shutdown()
    assert calls == ["spool"] * closed + ["engine"]
    assert told.losses == []
