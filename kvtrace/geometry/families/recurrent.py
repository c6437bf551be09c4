"""States alone: Mamba, Falcon Mamba, Mamba 2. Nothing grows with the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._state import mamba, mamba2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("mamba", "falcon_mamba", "mamba2")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    number_bytes = storage.state_number_bytes(config)
    if config.get("model_type") == "mamba2":
        layer = mamba2(
            config,
            inner=config.count("expand") * config.count("hidden_size"),
            groups="n_groups", heads="num_heads", head=config.count("head_dim"), state="state_size",
            kernel="conv_kernel", number_bytes=number_bytes,
        )  # fmt: skip
    else:
        layer = mamba(
            inner=_inner(config), state=config.count("state_size"), kernel=config.count("conv_kernel"),
            number_bytes=number_bytes, field="intermediate_size",
        )  # fmt: skip
    return ((layer,),) * config.layers()


def _inner(config: Configuration) -> int:
    if config.get("intermediate_size") is not None:
        return config.count("intermediate_size")
    return config.count("expand") * config.count("hidden_size")
