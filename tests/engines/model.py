"""A model without a download: a four-layer random Llama whose tokenizer maps one word to one token.

One token of KV cache is 4 layers x 2 (key, value) x 4 heads x 32 x 2 bytes = 2,048 bytes.

layered.py has the others, of layers that keep different things; tokenizer and vocabulary are the same.
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
KV_BYTES_PER_TOKEN = LAYERS * 2 * KV_HEADS * HEAD_SIZE * 2


def word(number: int) -> str:
    """The text of one token; numbers below 3 are the special ones."""
    return f"w{number}"


def write_model(folder: Path, config: dict[str, object] | None = None) -> None:
    """Configuration and tokenizer; the weights are vLLM's `--load-format dummy`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": configuration() if config is None else config,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def configuration() -> dict[str, object]:
    """As Hugging Face's config.json has it."""
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
