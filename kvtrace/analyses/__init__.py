"""Questions: one function a file, named as the file: (run, *, options) -> polars.DataFrame.

Its positional parameters are the runs that it takes: most take one, those that compare take several, each
named for what it is (eager, lazy). `*runs` takes any number more. Options are keyword-only.

Every table that comes out is a question of its own. All are pure functions of a run; an empty run gives
zero rows with the same columns; null means not observed. A new question is a new file: there is no list.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from kvtrace.run import Run

    Question = Callable[..., pl.DataFrame]


class Takes(NamedTuple):
    """The runs that a question takes: their names in order, and whether any number may follow."""

    names: tuple[str, ...]
    more: bool = False

    def __str__(self) -> str:
        """`one run`, or `2 runs (EAGER LAZY)`."""
        count = len(self.names)
        if count == 1 and not self.more:
            return "one run"
        names = " ".join([*(name.upper() for name in self.names), *(["..."] if self.more else [])])
        return f"{count} run{'' if count == 1 else 's'}{' or more' if self.more else ''} ({names})"


@cache
def questions() -> dict[str, str]:
    """Question -> what it asks (the first line of its docstring), read without importing anything."""
    return {name: (ast.get_docstring(node) or "").split("\n")[0] for name, node in _functions().items()}


@cache
def takes(name: str) -> Takes:
    """Which runs a question takes, read without importing anything.

    Raises:
        UsageError: no such question.
    """
    arguments = _known(name).args
    names = tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args))
    return Takes(names, arguments.vararg is not None)


@cache
def _functions() -> dict[str, ast.FunctionDef]:
    return dict(_found())


def _found() -> Iterator[tuple[str, ast.FunctionDef]]:
    for entry in sorted(files("kvtrace.analyses").iterdir(), key=lambda entry: entry.name):
        name = entry.name.removesuffix(".py")
        source = entry / "__init__.py" if entry.is_dir() else entry
        if name.startswith("_") or not source.is_file() or not source.name.endswith(".py"):
            continue
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                yield name, node


def question(name: str) -> Question:
    """The function that answers a question.

    Raises:
        UsageError: no such question.
    """
    _known(name)
    function: Question = getattr(importlib.import_module(f"kvtrace.analyses.{name}"), name)
    return function


def answer(name: str, runs: Sequence[Run], **options: Any) -> pl.DataFrame:
    """Ask one question of the runs that it takes, in its order.

    Raises:
        UsageError: no such question, or it takes more or fewer runs.
    """
    require(name, len(runs))
    return question(name)(*runs, **options)


def require(name: str, given: int) -> None:
    """Refuse a question asked of more or fewer runs than it takes.

    Raises:
        UsageError: no such question, or it takes more or fewer runs.
    """
    wanted = takes(name)
    if given < len(wanted.names) or (given > len(wanted.names) and not wanted.more):
        raise UsageError(f"{name}: takes {wanted}, and was given {given}.")


def _known(name: str) -> ast.FunctionDef:
    if name not in _functions():
        near = difflib.get_close_matches(name, questions(), n=1)
        hint = f" Did you mean {near[0]}?" if near else " kvtrace list names them."
        raise UsageError(f"{name}: no such question.{hint}")
    return _functions()[name]
