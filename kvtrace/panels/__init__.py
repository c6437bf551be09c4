"""Pictures: one file each: data(run, *, options) -> frames, draw(frames) -> plotly Figure.

A panel's module says TITLE (the question it answers), READING (one line: how to read it) and, in data(),
why there is nothing to see when there is nothing. A new panel is a new file: there is no list.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType


@cache
def panels() -> tuple[str, ...]:
    """Names of all panels, by listing the folder."""
    names = (entry.name.removesuffix(".py") for entry in files("kvtrace.panels").iterdir())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def panel(name: str) -> ModuleType:
    """The module of a panel.

    Raises:
        UsageError: no such panel.
    """
    if name not in panels():
        near = difflib.get_close_matches(name, panels(), n=1)
        hint = f" Did you mean {near[0]}?" if near else f" There are {', '.join(panels())}."
        raise UsageError(f"{name}: no such panel.{hint}")
    return importlib.import_module(f"kvtrace.panels.{name}")
