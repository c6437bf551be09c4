"""What run.json says of an engine: no place and no secret of the machine."""

from __future__ import annotations

import enum
from types import SimpleNamespace as Some
from typing import Any

import pytest
from kvtrace.instrument.vllm.identity import hash_seed, identity, key_space
from kvtrace.instrument.vllm.settings import said, settings


def config(**parts: Any) -> Any:
    """A VllmConfig with little in it."""
    model = {"model": "tiny-llama", "dtype": "bfloat16", "tokenizer": "tiny-llama"}
    cache = {"block_size": 16, "num_gpu_blocks": 40, "prefix_caching_hash_algo": "sha256"}
    return Some(
        instance_id="5e1f3",
        model_config=Some(**{**model, **parts.pop("model", {})}),
        cache_config=Some(**{**cache, **parts.pop("cache", {})}),
        **parts,
    )


def test_what_is_set_is_said_and_the_rest_left_out() -> None:
    found = settings(config())
    assert found == {
        "model": "tiny-llama",
        "dtype": "bfloat16",
        "block_size": "16",
        "num_gpu_blocks": "40",
        "hash_algorithm": "sha256",
    }


def test_the_connectors_own_settings_are_said_without_secrets_and_places() -> None:
    extra = {
        "shared_storage_path": "/mnt/kv",
        "lmcache.mp.host": "tcp://127.0.0.1",
        "url": "redis://user:word@cache:6379/0?password=x",
        "api_key": "s3cr3t",
        "hf_token": "s3cr3t",
        "max_tokens": 5,
        "eager": True,
        "connectors": [{"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"path": "~/kv"}}],
    }
    transfer = Some(kv_connector="MultiConnector", kv_connector_extra_config=extra)
    found = settings(config(kv_transfer_config=transfer))
    assert {name: text for name, text in found.items() if name.startswith("kv_connector")} == {
        "kv_connector": "MultiConnector",
        "kv_connector.lmcache.mp.host": "tcp://127.0.0.1",
        "kv_connector.url": "redis://cache:6379",
        "kv_connector.max_tokens": "5",
        "kv_connector.eager": "true",
        "kv_connector.connectors.0.kv_connector": "ExampleConnector",
    }


@pytest.mark.parametrize(
    "text",
    [
        "/mnt/kv",
        "~/kv",
        "./kv",
        "../kv",
        "C:\\kv",
        "file:///kv",
        "ipc:///run/kv",
        "root=/mnt/kv",
        '{"a": "/b"}',
    ],
)
def test_a_place_of_the_machine_is_not_said(text: str) -> None:
    assert said(text) is None


@pytest.mark.parametrize("text", ["org/model", "sha256", "tcp://127.0.0.1:5557", "http://cache:80", "a.b.C"])
def test_a_name_is_said(text: str) -> None:
    assert said(text) == text


def test_a_model_in_a_folder_is_named_by_its_last_part() -> None:
    found = settings(config(model={"model": "/models/llama-8b/"}))
    assert found["model"] == "llama-8b"


def test_types_and_enumerations_are_named() -> None:
    class Mode(enum.Enum):
        FAST = "fast"

    dtype = type("dtype", (), {"__str__": lambda _self: "torch.bfloat16"})()
    assert [said(each) for each in (Mode.FAST, Mode, dtype, None, object(), False)] == [
        "fast", f"{Mode.__qualname__}", "bfloat16", None, None, "false",
    ]  # fmt: skip


def test_the_key_vouches_for_what_is_hashed_and_for_nothing_else() -> None:
    fields, enforced_by = identity(config())
    assert {name for name, who in enforced_by.items() if who == "key"} == {
        "block_size", "hash_algorithm", "hash_seed", "lora", "multimodal", "cache_salt",
    }  # fmt: skip
    assert enforced_by["model"] == enforced_by["dtype"] == "nobody"
    assert fields.keys() == enforced_by.keys()


def test_what_is_not_quantised_and_has_no_window_says_so() -> None:
    fields, _ = identity(config())
    assert (fields["quantization"], fields["window"]) == ("none", "none")
    fields, _ = identity(config(model={"quantization": "fp8"}, cache={"sliding_window": 128}))
    assert (fields["quantization"], fields["window"]) == ("fp8", "128")


def test_keys_compare_inside_algorithm_and_model() -> None:
    assert key_space(config(model={"model": "/models/llama-8b"})) == "vllm:sha256:llama-8b"


def test_a_secret_seed_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert (hash_seed("sha256"), hash_seed("xxhash")) == ("7", "given")
    monkeypatch.delenv("PYTHONHASHSEED")
    assert (hash_seed("sha256"), hash_seed("xxhash")) == ("vllm-none-hash", "random")
