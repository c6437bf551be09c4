"""A model without a download: a four-layer random Llama whose tokenizer maps one word to one token.

One token of KV cache is 4 layers x 2 (key, value) x 4 heads x 32 x 2 bytes = 2,048 bytes.

Windowed it is a Gemma 3 of six layers, every third with full attention, the others with a window: a token of
one layer is 512 bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "tiny-llama"
LAYERS = 4
KV_HEADS = 4
HEAD_SIZE = 32
VOCABULARY = 1024
SPECIAL = ("<unk>", "<s>", "</s>")
WINDOW = 300
WINDOWED_LAYERS = ("sliding_attention", "sliding_attention", "full_attention") * 2
KV_BYTES_PER_TOKEN = LAYERS * 2 * KV_HEADS * HEAD_SIZE * 2


def word(number: int) -> str:
    """The text of one token; numbers below 3 are the special ones."""
    return f"w{number}"


def write_model(folder: Path, *, windowed: bool = False) -> None:
    """Configuration and tokenizer; the weights are vLLM's `--load-format dummy`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": windowed_config() if windowed else _config(),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def windowed_config() -> dict[str, object]:
    """The model with windows; the rest is as in the other."""
    dropped = ("architectures", "model_type", "hidden_act", "rope_theta")
    own = {name: value for name, value in _config().items() if name not in dropped}
    return own | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": len(WINDOWED_LAYERS),
        "layer_types": list(WINDOWED_LAYERS),
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": HEAD_SIZE,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    }


def _tokenizer() -> dict[str, object]:
    words = [*SPECIAL, *(word(number) for number in range(len(SPECIAL), VOCABULARY))]
    vocabulary = {text: number for number, text in enumerate(words)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIAL[0]},
    }


def _tokenizer_config() -> dict[str, object]:
    unknown, begin, end = SPECIAL
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": unknown,
        "bos_token": begin,
        "eos_token": end,
        "model_max_length": 8192,
    }
