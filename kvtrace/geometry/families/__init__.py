"""One file a way in which configurations describe their layers; a new one is found by listing this folder.

MODEL_TYPES  the `model_type`s whose configurations read so
DEFAULTS     what their own configuration classes (transformers 5.19) fill in where a file is silent, by
             model_type: published files of these models leave them out
stack        (configuration, storage) -> what each hidden layer keeps

The part that begins with an underscore is what several of them read alike.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage


class Family(Protocol):
    """A module of this folder."""

    MODEL_TYPES: tuple[str, ...]
    DEFAULTS: Mapping[str, Mapping[str, Any]]

    def stack(self, config: Configuration, storage: Storage, /) -> Stack:
        """What each hidden layer keeps."""


@cache
def families() -> dict[str, Family]:
    """The module that reads each model_type."""
    names = (entry.name.removesuffix(".py") for entry in files(__name__).iterdir())
    found: dict[str, Family] = {}
    for name in sorted(name for name in names if not name.startswith("_")):
        module = cast("Family", importlib.import_module(f"{__name__}.{name}"))
        found.update(dict.fromkeys(module.MODEL_TYPES, module))
    return found


def family(config: Configuration, model_type: str) -> Family:
    """The module that reads this model_type.

    Raises:
        InputError: none does.
    """
    if model_type not in families():
        near = difflib.get_close_matches(model_type, families(), n=1)
        hint = f"; did the file mean {near[0]}?" if near else ""
        config.refuse(
            "model_type", f"is {model_type[:60]}, whose layers are not known here, and none is guessed{hint}"
        )
    return families()[model_type]
