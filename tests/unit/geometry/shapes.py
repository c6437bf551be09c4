"""Configurations in the shape of published ones: the fields that theirs have, and the answers by hand.

A name is the shape's, not a download: what stands here are the numbers that a layer's cache depends on.
"""

from __future__ import annotations

from typing import Any

BF16: dict[str, Any] = {"dtype": "bfloat16", "max_position_embeddings": 131072}
LLAMA_8B = BF16 | {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8,
}  # fmt: skip
MISTRAL_V1 = LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096}
MIXTRAL = LLAMA_8B | {"model_type": "mixtral", "sliding_window": None}
QWEN3_MOE = BF16 | {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": 48,
}  # fmt: skip
QWEN3_SILENT = BF16 | {  # no head_dim: its class says 128, not 1024 / 16
    "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8,
}  # fmt: skip
MISTRAL_SILENT = {name: value for name, value in MISTRAL_V1.items() if name != "sliding_window"}
QWEN2_WINDOW = BF16 | {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
    "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 8192, "max_window_layers": 20,
}  # fmt: skip
PHI3 = BF16 | {
    "model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32,
    "sliding_window": 2047,
}  # fmt: skip
GEMMA2 = BF16 | {
    "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
    },
}  # fmt: skip
GEMMA3N = BF16 | {
    "model_type": "gemma3n_text", "num_hidden_layers": 35, "num_kv_shared_layers": 15, "hidden_size": 2048,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4", "dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
        "attention_k_eq_v": True, "num_kv_shared_layers": 0, "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    },
}  # fmt: skip
GEMMA4_SHARED = BF16 | {
    "model_type": "gemma4_text", "num_hidden_layers": 35, "hidden_size": 1536, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 20,
    "sliding_window": 512, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}  # fmt: skip
GPT_OSS = BF16 | {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip
COHERE2 = BF16 | {
    "model_type": "cohere2", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": 4,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "no_rope_layers": [],
        "max_position_embeddings": 10485760,
    },
}  # fmt: skip
DEEPSEEK_V3 = BF16 | {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "q_lora_rank": 1536,
}  # fmt: skip
GLM_SPARSE = BF16 | {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
    "v_head_dim": 256, "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "index_topk_freq": 4,
}  # fmt: skip
DEEPSEEK_V32 = DEEPSEEK_V3 | {
    "model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {"model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64}
KIMI_LINEAR = BF16 | {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
    "num_key_value_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 28) if n not in (4, 8, 12, 16, 20, 24, 27)],
    },
}  # fmt: skip
GLM4_MOE = BF16 | {
    "model_type": "glm4_moe", "num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
MINIMAX_TEXT = BF16 | {
    "model_type": "minimax_text_01", "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "attn_type_list": ([0] * 7 + [1]) * 10,
}  # fmt: skip
QWEN3_NEXT = BF16 | {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
QWEN3_5 = QWEN3_NEXT | {
    "model_type": "qwen3_5_text", "linear_num_value_heads": 48, "mamba_ssm_dtype": "float32",
}  # fmt: skip
OLMO3 = BF16 | {
    "model_type": "olmo3", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 32, "sliding_window": 4096,
}  # fmt: skip
GRANITE_HYBRID = BF16 | {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "mamba_expand": 2, "mamba_n_heads": 128, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
}  # fmt: skip
FALCON_H1 = BF16 | {
    "model_type": "falcon_h1", "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 48, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
}  # fmt: skip
JAMBA = BF16 | {
    "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4,
}  # fmt: skip
MAMBA = {
    "model_type": "mamba", "dtype": "bfloat16", "num_hidden_layers": 64, "hidden_size": 2560, "expand": 2,
    "intermediate_size": 5120, "state_size": 16, "conv_kernel": 4,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "dtype": "bfloat16", "num_hidden_layers": 64, "hidden_size": 4096, "expand": 2,
    "n_groups": 8, "num_heads": 128, "head_dim": 64, "state_size": 128, "conv_kernel": 4,
}  # fmt: skip
ZAMBA2 = BF16 | {
    "model_type": "zamba2", "num_hidden_layers": 54, "hidden_size": 2560, "num_attention_heads": 32,
    "num_key_value_heads": 32, "mamba_expand": 2, "n_mamba_heads": 80, "mamba_headdim": 64,
    "mamba_ngroups": 1, "mamba_d_state": 64, "mamba_d_conv": 4,
    "layers_block_type": (["mamba"] * 5 + ["hybrid"]) * 9,
}  # fmt: skip
ZAMBA = BF16 | {
    "model_type": "zamba", "num_hidden_layers": 76, "hidden_size": 3712, "num_attention_heads": 16,
    "num_key_value_heads": 16, "attn_layer_period": 6, "attn_layer_offset": 4, "mamba_expand": 2,
    "n_mamba_heads": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
}  # fmt: skip
NEMOTRON_H = BF16 | {
    "model_type": "nemotron_h", "num_hidden_layers": 8, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "hybrid_override_pattern": "M-M*-MEM",
}  # fmt: skip
LFM2 = BF16 | {
    "model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 8, "conv_dim": 2048, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip
FALCON_7B = BF16 | {
    "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
    "multi_query": True, "new_decoder_architecture": False,
}  # fmt: skip
FALCON_40B = BF16 | {
    "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128,
    "num_kv_heads": 8, "new_decoder_architecture": True,
}  # fmt: skip
STARCODER = {
    "model_type": "gpt_bigcode", "torch_dtype": "float16", "n_layer": 40, "n_embd": 6144, "n_head": 48,
    "multi_query": True, "n_positions": 8192,
}  # fmt: skip
STARCODER2 = BF16 | {
    "model_type": "starcoder2", "num_hidden_layers": 32, "hidden_size": 4608, "num_attention_heads": 36,
    "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip

KINDS: dict[str, tuple[dict[str, Any], list[tuple[str, int | None, int, int]]]] = {
    # kind of layer, span, layers, bytes of one logical copy: a token's, or of a state a sequence's
    "llama": (LLAMA_8B, [("full", None, 32, 4096)]),
    "mistral": (MISTRAL_V1, [("window", 4096, 32, 4096)]),
    "mixtral": (MIXTRAL, [("full", None, 32, 4096)]),
    "qwen3-moe": (QWEN3_MOE, [("full", None, 48, 2048)]),
    "qwen3-silent": (QWEN3_SILENT, [("full", None, 28, 4096)]),
    "mistral-silent": (MISTRAL_SILENT, [("window", 4096, 32, 4096)]),
    "qwen2-window": (QWEN2_WINDOW, [("full", None, 20, 2048), ("window", 8192, 8, 2048)]),
    "phi3": (PHI3, [("window", 2047, 32, 12288)]),
    "gemma2": (GEMMA2, [("window", 4096, 21, 8192), ("full", None, 21, 8192)]),
    "gemma3": (GEMMA3, [("window", 1024, 29, 4096), ("full", None, 5, 4096)]),
    "gemma3n": (GEMMA3N, [("window", 512, 16, 2048), ("full", None, 4, 2048), ("shared", None, 15, 0)]),
    "gemma4": (GEMMA4, [("window", 1024, 25, 8192), ("full", None, 5, 4096)]),
    "gemma4-shared": (
        GEMMA4_SHARED, [("window", 512, 12, 1024), ("full", None, 3, 2048), ("shared", None, 20, 0)]
    ),
    "gpt-oss": (GPT_OSS, [("window", 128, 18, 2048), ("full", None, 18, 2048)]),
    "cohere2": (COHERE2, [("window", 4097, 24, 4096), ("full", None, 8, 4096)]),
    "llama4": (LLAMA4, [("chunked", 8192, 36, 4096), ("full", None, 12, 4096)]),
    "deepseek-v3": (DEEPSEEK_V3, [("latent", None, 61, 1152)]),
    "deepseek-v32": (DEEPSEEK_V32, [("latent", None, 61, 1152), ("indexer", None, 61, 132)]),
    "kimi-k2": (KIMI_K2, [("latent", None, 61, 1152)]),
    "kimi-linear": (KIMI_LINEAR, [("kda", None, 20, 73728 + 2097152), ("latent", None, 7, 1152)]),
    "glm4-moe": (GLM4_MOE, [("full", None, 46, 4096)]),
    "minimax-text": (MINIMAX_TEXT, [("lightning", None, 70, 2097152), ("full", None, 10, 4096)]),
    "qwen3-next": (QWEN3_NEXT, [("gated_delta", None, 36, 49152 + 1048576), ("full", None, 12, 2048)]),
    "granite-hybrid": (GRANITE_HYBRID, [("mamba2", None, 36, 50688 + 2097152), ("full", None, 4, 4096)]),
    "falcon-h1": (FALCON_H1, [("full", None, 36, 1024), ("mamba2", None, 36, 21504 + 1572864)]),
    "jamba": (JAMBA, [("mamba", None, 28, 49152 + 262144), ("full", None, 4, 4096)]),
    "mamba": (MAMBA, [("mamba", None, 64, 30720 + 163840)]),
    "olmo3": (OLMO3, [("window", 4096, 24, 16384), ("full", None, 8, 16384)]),
    "qwen3.5": (QWEN3_5, [("gated_delta", None, 36, 61440 + 3145728), ("full", None, 12, 2048)]),
    "glm-sparse": (GLM_SPARSE, [("latent", None, 78, 1152), ("indexer", None, 21, 132)]),
    "mamba2": (MAMBA2, [("mamba2", None, 64, 61440 + 2097152)]),
    "zamba2": (ZAMBA2, [("mamba2", None, 54, 31488 + 655360), ("full", None, 9, 20480)]),
    "zamba": (ZAMBA, [("mamba", None, 76, 44544 + 237568), ("full", None, 13, 29696)]),
    "nemotron-h": (NEMOTRON_H, [("mamba2", None, 4, 61440 + 4194304), ("full", None, 1, 4096)]),
    "lfm2": (LFM2, [("short_conv", None, 10, 8192), ("full", None, 6, 2048)]),
    "falcon-7b": (FALCON_7B, [("full", None, 32, 256)]),
    "falcon-40b": (FALCON_40B, [("full", None, 60, 2048)]),
    "starcoder": (STARCODER, [("full", None, 40, 512)]),
    "starcoder2": (STARCODER2, [("window", 4096, 32, 2048)]),
}  # fmt: skip
