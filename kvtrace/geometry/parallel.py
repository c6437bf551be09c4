"""Which layers a rank holds, and what is asked of tensor parallelism.

Pipeline stages take equal numbers of layers; what is left over goes to the stages before the last, the last
one of those first (vLLM 0.32, distributed/utils.py get_pp_indices, without VLLM_PP_LAYER_PARTITION).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from kvtrace.geometry.layers import Stack

MOST_RANKS = 1 << 16


@dataclass(frozen=True, slots=True)
class Placement:
    """How a model is spread: `tp` ranks share each layer, `pp` stages share the layers."""

    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name, value in (("--tp", self.tp), ("--pp", self.pp)):
            if not 1 <= value <= MOST_RANKS:
                raise UsageError(f"{name} {value}: is no number of ranks (1 to {MOST_RANKS}).")


def stages(stack: Stack, pp: int) -> tuple[Stack, ...]:
    """The layers of each pipeline stage.

    Raises:
        UsageError: more stages than layers, or layers that read another stage's keys and values.
    """
    if pp > len(stack):
        raise UsageError(f"--pp {pp}: num_hidden_layers is {len(stack)}; a stage would have no layer.")
    if pp > 1 and any(layer.kind == "shared" for layers in stack for layer in layers):
        raise UsageError(f"--pp {pp}: layers share the keys and values of others, perhaps of another stage.")
    sizes = [len(stack) // pp] * pp
    for back in range(2, len(stack) % pp + 2):
        sizes[-back] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    return tuple(stack[end - size : end] for size, end in zip(sizes, ends, strict=True))
