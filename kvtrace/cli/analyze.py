"""kvtrace analyze: one question; options from the function's signature, run, rows and format from us.

Every question is a command of its own, `kvtrace.cli.analyze:ask_exposure`, made when it is asked for:
cyclopts imports commands by such a path, so that a list of questions imports none of them.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from kvtrace.analyses import answer, question, require, takes
from kvtrace.cli._docs import columns, parse
from kvtrace.cli._rows import FormatOption, OutputOption, write

if TYPE_CHECKING:
    from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if not name.startswith("ask_"):
        raise AttributeError(name)
    return analyze(name.removeprefix("ask_"))


def analyze(name: str) -> Callable[..., None]:
    """Ask one question of a run, or of the several that it takes; its options come from the question itself.

    `kvtrace list` names all questions with what they ask, `kvtrace describe QUESTION` defines one and its
    columns, `kvtrace analyze QUESTION --help` shows its options.

    Example:
        kvtrace analyze exposure run --window ttft --format csv
    """
    function = question(name)

    def ask(*runs: Path, form: FormatOption = None, output: OutputOption = None, **options: Any) -> None:
        from kvtrace.run import open_run  # `--help` need not start a database

        require(name, len(runs))
        said = columns(function.__doc__)
        inapplicable = frozenset(name for name, meaning in said.items() if "null for" in meaning)
        rows = answer(name, [open_run(run) for run in runs], **options)
        write(rows, form, output, inapplicable=inapplicable)

    own = list(inspect.signature(ask).parameters.values())[1:-1]
    signature = inspect.Signature([*_runs(name), *_options(function), *own])
    hints = get_type_hints(ask, include_extras=True)
    # `from __future__ import annotations` made texts of ours; the question's were resolved in its module
    resolved = [parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
                for parameter in signature.parameters.values()]  # fmt: skip
    ask.__signature__ = signature.replace(parameters=resolved, return_annotation=None)  # type: ignore[attr-defined]
    ask.__annotations__ = {parameter.name: parameter.annotation for parameter in resolved}
    ask.__name__ = name
    return ask


def _runs(name: str) -> list[inspect.Parameter]:
    """The runs by their names, then all others: too many are refused in our own words, or taken."""
    wanted = takes(name)
    kind = inspect.Parameter.POSITIONAL_ONLY
    named = [inspect.Parameter(each, kind, annotation=Path) for each in wanted.names]
    shown = Annotated[Path, Parameter(show=wanted.more)]
    return [*named, inspect.Parameter("more", inspect.Parameter.VAR_POSITIONAL, annotation=shown)]


def _options(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The keyword-only parameters of a question, with their types and what its `Args:` say about them."""
    said = _arguments(function.__doc__)
    found = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    texts = SimpleNamespace(__annotations__={p.name: p.annotation for p in found})
    names = getattr(function, "__globals__", {})
    hints = get_type_hints(texts, globalns=names, include_extras=True)
    return [
        p.replace(annotation=Annotated[hints[p.name], Parameter(help=said.get(p.name), negative_iterable=())])
        for p in found
    ]


def _arguments(docstring: str | None) -> dict[str, str]:
    """Option -> meaning, from a section `Args:` or `Options:`."""
    sections = parse(docstring).sections
    found: dict[str, str] = {}
    name = ""
    for line in (sections.get("Args") or sections.get("Options") or "").split("\n"):
        head, colon, text = line.partition(": ")
        if colon and not line.startswith(" "):
            name = head.split(" ")[0]
            found[name] = text
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found
