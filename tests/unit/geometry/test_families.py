"""What each layer keeps, by hand: heads x (key + value) x 2 bytes, 512 + 64 numbers, a state's tensors."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.errors import InputError
from kvtrace.geometry import Placement, groups, model_of
from kvtrace.geometry.families import families
from tests.unit.geometry import shapes

Kept = list[tuple[str | None, int | None, int, int]]


def kept(config: dict[str, Any], **options: Any) -> Kept:
    """Kind, span, layers, and the bytes of one logical copy: of a block of one token, else of a state."""
    rows = groups(model_of(config, **options), Placement(), block_size=1, tokens=1)
    return [
        (
            row.group,
            row.span_tokens,
            row.layers,
            (row.bytes_per_block or row.bytes_per_sequence) // row.layers,
        )
        for row in rows
    ]


@pytest.mark.parametrize("name", sorted(shapes.KINDS))
def test_a_published_shape_keeps_what_its_layers_say(name: str) -> None:
    config, expected = shapes.KINDS[name]
    assert kept(config) == expected


def test_llama_3_8b_takes_128_kib_a_token_and_deepseek_v3_70272_bytes() -> None:
    assert sum(layers * size for _, _, layers, size in kept(shapes.LLAMA_8B)) == 128 * 1024
    assert sum(layers * size for _, _, layers, size in kept(shapes.DEEPSEEK_V3)) == 70_272


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 8192), ("fp8", 2048), ("fp8_e5m2", 2048), ("int8_per_token_head", 2048 + 8 * 8),
        ("int4_per_token_head", 1024 + 8 * 8),
    ],
)  # fmt: skip
def test_scales_a_token_and_head_are_in_the_record(dtype: str, size: int) -> None:
    assert kept(shapes.LLAMA_8B, dtype=dtype) == [("full", None, 32, size)]


@pytest.mark.parametrize(
    ("field", "scheme"),
    [
        ("quantization_config", {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
        ("quantization_config", {"quantization": {"kv_cache_quant_algo": "FP8"}}),
        ("compression_config", {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
    ],
)
def test_auto_is_fp8_where_the_checkpoint_says_so(field: str, scheme: dict[str, Any]) -> None:
    assert kept(shapes.LLAMA_8B | {field: scheme}) == [("full", None, 32, 2048)]
    assert kept(shapes.LLAMA_8B | {field: scheme}, dtype="bfloat16") == [("full", None, 32, 4096)]


def test_a_packed_record_is_of_its_own_geometry_alone() -> None:
    assert kept(shapes.DEEPSEEK_V32, dtype="fp8_ds_mla")[0] == ("latent", None, 61, 656)
    with pytest.raises(Exception, match="kv_lora_rank is 256"):
        kept(shapes.DEEPSEEK_V32 | {"kv_lora_rank": 256}, dtype="fp8_ds_mla")
    with pytest.raises(Exception, match="packed record of latent attention"):
        kept(shapes.LLAMA_8B, dtype="fp8_ds_mla")
    with pytest.raises(Exception, match="beside an indexer"):
        kept(shapes.DEEPSEEK_V32, dtype="fp8")


def test_layers_that_use_anothers_choice_have_no_indexer() -> None:
    every_fourth = kept(shapes.DEEPSEEK_V32 | {"index_topk_freq": 4, "num_hidden_layers": 9})
    assert every_fourth[1] == ("indexer", None, 3, 132)  # layers 0, 1, 5
    pattern = kept(shapes.DEEPSEEK_V32 | {"index_topk_pattern": "FSSF", "num_hidden_layers": 4})
    assert pattern[1] == ("indexer", None, 2, 132)
    words = ["full", "full", "shared", "shared", "full"]
    named = kept(shapes.DEEPSEEK_V32 | {"indexer_types": words, "num_hidden_layers": 5})
    assert named == [("latent", None, 5, 1152), ("indexer", None, 3, 132)]


def test_layer_types_go_before_a_window_that_is_switched_on() -> None:
    words = ["full_attention", "sliding_attention"] * 24
    switched = shapes.QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 512, "layer_types": words}
    assert kept(switched) == [("full", None, 24, 2048), ("window", 512, 24, 2048)]


def test_a_window_of_zero_or_one_that_is_not_used_is_none() -> None:
    assert kept(shapes.MISTRAL_V1 | {"sliding_window": 0}) == [("full", None, 32, 4096)]
    assert kept(shapes.QWEN2_WINDOW | {"use_sliding_window": False}) == [("full", None, 28, 2048)]


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (shapes.LLAMA_8B, {"model_type": None}, "model_type: is missing"),
        (shapes.LLAMA_8B, {"model_type": "lama"}, "model_type: is lama, .* did the file mean llama"),
        (shapes.LLAMA_8B, {"num_hidden_layers": None}, "num_hidden_layers: is missing"),
        (shapes.LLAMA_8B, {"num_hidden_layers": True}, "num_hidden_layers: is true"),
        (shapes.LLAMA_8B, {"num_hidden_layers": 10**9}, "num_hidden_layers: is 1000000000, more than any"),
        (shapes.LLAMA_8B, {"hidden_size": -4096}, "hidden_size: is -4096"),
        (shapes.LLAMA_8B, {"hidden_size": 4097}, "head_dim: is missing"),
        (shapes.LLAMA_8B, {"dtype": None}, "dtype: is missing"),
        (shapes.LLAMA_8B, {"dtype": "float3"}, "dtype: is float3"),
        (shapes.LLAMA_8B, {"kv_lora_rank": 512}, "kv_lora_rank: is not known of this model_type"),
        (shapes.LLAMA_8B, {"layer_types": ["full_attention"]}, "layer_types: names 1 layers"),
        (shapes.LLAMA_8B, {"layer_types": ["odd"] * 32}, r"layer_types\[0\]: is odd"),
        (shapes.LLAMA_8B, {"quantization_config": {"kv_cache_scheme": {"num_bits": 4}}}, "scheme: stores"),
        (shapes.MIXTRAL, {"num_key_value_heads": None}, "num_key_value_heads: is missing"),
        (shapes.QWEN2_WINDOW, {"max_window_layers": None}, "max_window_layers: is missing"),
        (shapes.QWEN3_MOE, {"use_sliding_window": True}, "layer_types: is missing, and use_sliding_window"),
        (shapes.GPT_OSS, {"sliding_window": "128"}, "sliding_window: is \"128\""),
        (shapes.DEEPSEEK_V3, {"qk_rope_head_dim": None}, "qk_rope_head_dim: is missing"),
        (shapes.DEEPSEEK_V32, {"index_topk_pattern": "FXS"}, "index_topk_pattern: is no pattern"),
        (shapes.DEEPSEEK_V32, {"index_head_dim": None}, "index_head_dim: is missing"),
        (shapes.KIMI_LINEAR, {"linear_attn_config": {}}, "linear_attn_config.num_heads: is missing"),
        (shapes.MINIMAX_TEXT, {"attn_type_list": None}, "attn_type_list: does not name"),
        (shapes.QWEN3_NEXT, {"linear_key_head_dim": None}, "linear_key_head_dim: is missing"),
        (shapes.GRANITE_HYBRID, {"layer_types": None}, "layer_types: is missing"),
        (shapes.JAMBA, {"attn_layer_offset": None}, "attn_layer_offset: is missing"),
        (shapes.NEMOTRON_H, {"hybrid_override_pattern": "M-M*-MEX"}, r"hybrid_override_pattern\[7\]: is X"),
        (shapes.NEMOTRON_H, {"mamba_ssm_cache_dtype": "fp4"}, "mamba_ssm_cache_dtype: is fp4"),
        (shapes.GEMMA3N, {"num_kv_shared_layers": 35}, "num_kv_shared_layers: leaves no layer"),
    ],
)  # fmt: skip
def test_what_is_not_known_names_its_field(
    config: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kept({name: value for name, value in (config | change).items() if value is not None})


def test_a_field_inside_the_text_configuration_is_named_with_its_place() -> None:
    inner = shapes.LLAMA4["text_config"]
    with pytest.raises(InputError, match=r"text_config\.attention_chunk_size: is missing"):
        kept(shapes.LLAMA4 | {"text_config": {k: v for k, v in inner.items() if k != "attention_chunk_size"}})


def test_every_file_of_a_family_is_found() -> None:
    assert len({module.__name__ for module in families().values()}) >= 14  # type: ignore[attr-defined]
    assert {
        config["model_type"] for config, _ in shapes.KINDS.values() if "text_config" not in config
    } <= set(families())
