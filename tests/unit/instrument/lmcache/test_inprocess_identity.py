"""LMCache inside an engine says what its own keys are made of; the engine's identity is of its GPU blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.lmcache.inprocess import engine
from kvtrace.instrument.vllm import configuration

if TYPE_CHECKING:
    import pytest
    from tests.unit.instrument.conftest import Told


class LMCacheEngine:
    """As much of it as is wrapped when it is made."""

    def __init__(self, config: Any, metadata: Any) -> None:
        self.config, self.metadata = config, metadata


def made() -> LMCacheEngine:
    engine.install(SimpleNamespace(LMCacheEngine=LMCacheEngine, __name__="cache_engine"))  # type: ignore[arg-type]
    config = SimpleNamespace(chunk_size=256, pre_caching_hash_algorithm="builtin", remote_serde="naive")
    dtype = type("dtype", (), {"__str__": lambda _self: "torch.bfloat16"})()
    return LMCacheEngine(config, SimpleNamespace(world_size=2, kv_dtype=dtype))


def test_an_engine_with_lmcache_inside_says_how_it_hashes(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    configuration.here().config = SimpleNamespace(instance_id="5e1f3")
    made()
    assert [identity[:2] for identity in told.identities] == [
        ("vllm-5e1f3:lmcache", "writer"), ("vllm-5e1f3:lmcache", "reader"),
    ]  # fmt: skip
    fields, how = told.identities[0][2:]
    assert (fields["chunk_size"], fields["hash_algorithm"], fields["hash_seed"]) == (
        "256",
        "builtin",
        "random",
    )
    assert (fields["world_size"], fields["kv_cache_dtype"]) == ("2", "bfloat16")
    kept = {name for name, who in how["enforced_by"].items() if who == "key"}
    assert kept == {"chunk_size", "hash_algorithm", "hash_seed", "world_size", "kv_cache_dtype"}


def test_one_whose_engine_is_not_known_says_nothing(told: Told) -> None:
    made()
    assert told.identities == []
