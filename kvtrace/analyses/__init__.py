"""Questions: one function a file, named as the file: (run, *, options) -> polars.DataFrame.

Every table that comes out is a question of its own. All are pure functions of a run; an empty run gives
zero rows with the same columns; null means not observed. A new question is a new file: there is no list.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    Question = Callable[..., pl.DataFrame]


@cache
def questions() -> dict[str, str]:
    """Question -> what it asks (the first line of its docstring), read without importing anything."""
    found: dict[str, str] = {}
    for entry in sorted(files("kvtrace.analyses").iterdir(), key=lambda entry: entry.name):
        name = entry.name.removesuffix(".py")
        source = entry / "__init__.py" if entry.is_dir() else entry
        if name.startswith("_") or not source.is_file() or not source.name.endswith(".py"):
            continue
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                found[name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def question(name: str) -> Question:
    """The function that answers a question.

    Raises:
        UsageError: no such question.
    """
    if name not in questions():
        near = difflib.get_close_matches(name, questions(), n=1)
        hint = f" Did you mean {near[0]}?" if near else " kvtrace list names them."
        raise UsageError(f"{name}: no such question.{hint}")
    function: Question = getattr(importlib.import_module(f"kvtrace.analyses.{name}"), name)
    return function
