"""What a server says of itself: configuration, identity, version; no place and no secret of its machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from kvtrace.instrument.lmcache import facts, plugin
from kvtrace.recorder.shapes import DEFINITIONS

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told
    from tests.unit.instrument.lmcache.conftest import Server


def test_a_server_says_its_configuration_without_its_places(server: Server, told: Told) -> None:
    adapter = SimpleNamespace(
        base_path="/srv/cache", host="redis-7", api_key="hunter2", rate=0.5, use_odirect=False
    )
    server.config.l2_adapter_config.adapters.append(adapter)
    medium, _ = facts.storage(server.config)
    assert medium == "dram"
    config = told.described[-1]["config"]
    assert (config["read_ttl_seconds"], config["l2.0.rate"], config["l1_medium"]) == ("3", "0.5", "dram")
    assert not [word for word in ("srv", "redis-7", "hunter2") if word in repr(config)]


@pytest.mark.usefixtures("server")
def test_a_server_says_who_it_is_and_what_its_keys_are_made_of(told: Told) -> None:
    served = SimpleNamespace(create_request_server=lambda *_: "server", __name__="factory")
    facts.install(served)
    config = SimpleNamespace(
        instance_id="lmc-1", chunk_size=64, hash_algorithm="blake3", engine_type="default"
    )
    assert served.create_request_server([], config) == "server"
    assert told.described[-1]["engine"] == "lmc-1"
    assert told.described[-1]["config"] == {
        "chunk_size": "64",
        "hash_algorithm": "blake3",
        "server_mode": "default",
    }
    ((name, side, fields, how), _) = told.identities
    assert (name, side, fields["chunk_size"], how["enforced_by"]["chunk_size"]) == (
        "lmc-1",
        "writer",
        "64",
        "key",
    )


@pytest.mark.parametrize(
    ("algorithm", "given", "seed"),
    [
        ("blake3", "7", None),
        ("sha256_cbor", None, "vllm-none-hash"),
        ("sha256_cbor", "7", "7"),
        ("builtin", None, "random"),
        ("builtin", "7", "given"),
        (None, "7", None),
    ],
)
def test_keys_grow_from_vllms_seed_where_their_algorithm_has_one(
    monkeypatch: pytest.MonkeyPatch, algorithm: str | None, given: str | None, seed: str | None
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONHASHSEED", given)
    assert facts.seed_of(algorithm) == seed


@pytest.mark.usefixtures("server")
def test_a_server_says_what_its_keys_grow_from(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    served = SimpleNamespace(create_request_server=lambda *_: "server", __name__="factory")
    facts.install(served)
    served.create_request_server([], SimpleNamespace(instance_id="l", hash_algorithm="sha256_cbor"))
    ((_, _, fields, how), _) = told.identities
    assert (fields["hash_seed"], how["enforced_by"]["hash_seed"]) == ("7", "key")


@pytest.mark.usefixtures("server")
def test_another_version_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "_warned", False)
    monkeypatch.setitem(sys.modules, "lmcache", SimpleNamespace(__version__="9.9"))
    for _ in range(2):
        plugin.warn_of_an_unknown_version()
    assert [record.getMessage()[:44] for record in caplog.records] == [
        "kvtrace knows LMCache 0.5.* and found 9.9: n"
    ]


def test_every_row_of_ours_is_a_row_of_a_table() -> None:
    from kvtrace.schema.tables import TABLES

    for kind in DEFINITIONS:
        names = {column.name for column in TABLES[kind.table]}
        columns = {name for name in (*kind.columns, *kind.constants) if "." not in name}
        assert columns <= names | {"span_id", "members"}, kind.table
