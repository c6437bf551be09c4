"""What families read alike: heads, head sizes, windows, layers by the words of `layer_types`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.storage import Storage

SHARED = TokenLayer("shared", heads=1, record_bytes=0)
ELSEWHERE = (
    "kv_lora_rank", "index_topk", "attention_chunk_size", "num_kv_shared_layers", "compress_ratios",
    "block_configs", "layers_block_type", "hybrid_override_pattern", "linear_attn_config", "attn_type_list",
    "per_layer_config", "global_head_dim", "cla_share_factor", "attention_k_eq_v",
)  # fmt: skip
"""Fields that change what a layer keeps: where a family does not read them, they are refused."""


def refuse_unread(config: Configuration, *, read: Sequence[str] = ()) -> None:
    """Refuse a field that would change the sums and that this family does not read."""
    for name in ELSEWHERE:
        if name not in read and config.get(name):
            config.refuse(name, "is not known of this model_type, and would change what its layers keep")


HEAD_SIZES = {
    "qwen3": 128, "qwen3_vl_text": 128, "qwen3_next": 256, "qwen3_5_text": 256, "qwen3_5_moe_text": 256,
    "ministral3": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256, "gemma3n_text": 256,
    "gemma4_text": 256, "glm": 128, "glm4": 128, "minimax_m2": 128, "ernie4_5": 128, "seed_oss": 128,
    "gpt_oss": 64, "llama4_text": 128, "nemotron_h": 128,
}  # fmt: skip
"""What the configuration class (transformers 5.19) says of a head where the file is silent."""


def head_size(config: Configuration) -> int:
    """`head_dim`, else what the class says, else the hidden size over the number of heads."""
    if config.get("head_dim") is not None:
        return config.count("head_dim")
    if (by_class := HEAD_SIZES.get(str(config.get("model_type")))) is not None:
        return by_class
    hidden, heads = config.count("hidden_size", "n_embd"), config.count("num_attention_heads", "n_head")
    if hidden % heads:
        config.refuse("head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden}")
    return hidden // heads


def full(config: Configuration, storage: Storage) -> TokenLayer:
    """A layer that keeps keys and values of every token."""
    size = head_size(config)
    return TokenLayer("full", config.count("num_key_value_heads"), storage.record_bytes(size, size))


def windowed(layer: TokenLayer, window: int) -> TokenLayer:
    """The same layer with a sliding window."""
    return TokenLayer("window", layer.heads, layer.record_bytes, window)


def by_words(
    config: Configuration, name: str, words: Sequence[str], kept: Mapping[str, tuple[Layer, ...]]
) -> Stack:
    """What each layer keeps, by the word that its place in a list has.

    Raises:
        InputError: a word that is not known, with its place.
    """
    for place, word in enumerate(words):
        if word not in kept:
            config.refuse(f"{name}[{place}]", f"is {word[:40]}, which is not known of this model_type")
    return tuple(kept[word] for word in words)
