"""Models without a download whose layers keep different things: windows, recurrent states.

windowed    Gemma 3: six layers, every third with full attention, the others with a window of 300 tokens
recurrent   Qwen3-Next: three layers of linear attention, each with one state whatever the number of tokens,
            and one of full attention
"""

from __future__ import annotations

from tests.engines import model

WINDOW = 300
_SLIDING = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_LINEAR = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]


def configuration(layers: str) -> dict[str, object]:
    """The config.json of the model with such layers; `full` is the usual one."""
    return {"full": model.configuration, "windowed": _windowed, "recurrent": _recurrent}[layers]()


def _windowed() -> dict[str, object]:
    return _same() | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": len(_SLIDING),
        "layer_types": _SLIDING,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": model.HEAD_SIZE,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    }


def _recurrent() -> dict[str, object]:
    """The state is float32 whatever the model's own dtype: so keep it the kernels for CPUs."""
    return _same() | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_act": "silu",
        "num_hidden_layers": len(_LINEAR),
        "layer_types": _LINEAR,
        "head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "mamba_ssm_dtype": "float32",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    }


def _same() -> dict[str, object]:
    dropped = ("architectures", "model_type", "hidden_act", "rope_theta")
    return {name: value for name, value in model.configuration().items() if name not in dropped}
