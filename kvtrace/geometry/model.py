"""A model: what each of its layers keeps, as its family's configurations say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.geometry.configuration import Configuration, configuration_of, read_configuration
from kvtrace.geometry.families import family
from kvtrace.geometry.storage import AUTO, storage_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.geometry.layers import Stack


@dataclass(frozen=True, slots=True)
class Model:
    """What a model keeps, layer by layer."""

    model_type: str
    dtype: str
    """Of the cache, `auto` resolved."""
    attention_heads: int | None
    """Query heads, which tensor parallelism has to divide; None without attention."""
    most_tokens: int | None
    """`max_position_embeddings`; None where the configuration does not say it."""
    stack: Stack


def read_model(path: Path, *, dtype: str = AUTO) -> Model:
    """The model that a config.json describes.

    Raises:
        InputError: no configuration, or a field that is missing or not known; the error names it.
        UsageError: a dtype that is not known, or not for this model.
    """
    return _model(read_configuration(path), dtype)


def model_of(value: Any, *, dtype: str = AUTO, where: str = "config.json") -> Model:
    """The same of a configuration that is read already."""
    return _model(configuration_of(value, where), dtype)


def _model(config: Configuration, dtype: str) -> Model:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        config.refuse("model_type", "is missing")
    module = family(config, model_type)
    filled = config.filling_in(module.DEFAULTS.get(model_type, {}))
    storage = storage_of(filled, dtype)
    stack = module.stack(filled, storage)
    has_heads = any(filled.get(name) is not None for name in ("num_attention_heads", "n_head"))
    return Model(
        model_type,
        storage.name,
        filled.count("num_attention_heads", "n_head") if has_heads else None,
        filled.count_or_none("max_position_embeddings"),
        stack,
    )
