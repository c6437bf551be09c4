"""Recurrent states: their tensors, as the shapes of vLLM 0.32 (layers/mamba/mamba_utils.py) say.

A convolution keeps one input less than its kernel is wide. Without speculation, which would widen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.layers import StateLayer, StatePart

if TYPE_CHECKING:
    from kvtrace.geometry.configuration import Configuration


def mamba(*, inner: int, state: int, kernel: int, number_bytes: int, field: str) -> StateLayer:
    """Mamba 1: a convolution over the inner channels, and a state for each of them."""
    return StateLayer(
        "mamba",
        (StatePart(field, inner, kernel - 1, number_bytes), StatePart(field, inner, state, number_bytes)),
    )


def mamba2(
    config: Configuration,
    *,
    inner: int,
    groups: str,
    heads: str,
    head: int,
    state: str,
    kernel: str,
    number_bytes: int,
    state_number_bytes: int | None = None,
) -> StateLayer:
    """Mamba 2: the convolution covers inputs, B and C of every group; a matrix state a head.

    Groups fewer than ranks are replicated. `groups`, `heads`, `state` and `kernel` are fields.
    """
    size = config.count(state)
    convolution = StatePart(
        groups, inner, config.count(kernel) - 1, number_bytes, config.count(groups), 2 * size
    )
    matrix = StatePart(heads, config.count(heads), head * size, state_number_bytes or number_bytes)
    return StateLayer("mamba2", (convolution, matrix))


def gated_delta(config: Configuration, *, number_bytes: int, state_number_bytes: int) -> StateLayer:
    """Gated delta net: a convolution over queries, keys and values; a matrix state a value head."""
    key = config.count("linear_key_head_dim")
    value = config.count("linear_value_head_dim")
    values = config.count("linear_num_value_heads")
    width = 2 * key * config.count("linear_num_key_heads") + value * values
    kernel = config.count("linear_conv_kernel_dim")
    return StateLayer(
        "gated_delta",
        (
            StatePart("linear_num_key_heads", width, kernel - 1, number_bytes),
            StatePart("linear_num_value_heads", values, value * key, state_number_bytes),
        ),
    )


def head_size_of_state(config: Configuration, name: str, inner: int, heads: str) -> int:
    """A state head's size; "auto" is the inner size over the heads."""
    if config.get(name) not in (None, "auto"):
        return config.count(name)
    number = config.count(heads)
    if inner % number:
        config.refuse(heads, f"is {number}, which does not divide the inner size {inner}")
    return inner // number
