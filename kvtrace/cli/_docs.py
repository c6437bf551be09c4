"""What docstrings say: summary, prose, and sections such as `Example:` and `Columns:`.

Read from the source with ast, so that help and lists need not import what they describe.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^([A-Z][a-z]+):$")
_COLUMN = re.compile(r"^([a-z_][a-z0-9_]*(?:, [a-z_][a-z0-9_]*)*)(?: \([^)]*\))?: (\S.*)$")


@dataclass(frozen=True, slots=True)
class Doc:
    """A docstring in its parts: a line a paragraph of prose; sections hold their text without indentation."""

    summary: str
    prose: str
    sections: dict[str, str]


def parse(docstring: str | None) -> Doc:
    """Split a docstring; a section is a line such as `Columns:` and what is indented below it."""
    prose: list[str] = []
    sections: dict[str, list[str]] = {}
    current: str | None = None
    for line in inspect.cleandoc(docstring or "").split("\n"):
        heading = _SECTION.match(line)
        if heading:
            current = heading[1]
            sections[current] = []
        elif current and (not line or line.startswith(" ")):
            sections[current].append(line)
        else:
            current = None
            prose.append(line)
    text = "\n\n".join(" ".join(part.split()) for part in "\n".join(prose).split("\n\n") if part.strip())
    kept = {name: inspect.cleandoc("\n" + "\n".join(lines)) for name, lines in sections.items()}
    return Doc(text.split("\n")[0], text, kept)


def columns(docstring: str | None) -> dict[str, str]:
    """Column -> meaning, from the section `Columns:`; `a, b: meaning` documents both.

    A line that is indented deeper, or does not begin with a name and a colon, continues the one before.
    """
    found: dict[str, str] = {}
    names: list[str] = []
    for line in parse(docstring).sections.get("Columns", "").split("\n"):
        start = _COLUMN.match(line)
        if start:
            names = start[1].split(", ")
            found.update(dict.fromkeys(names, start[2]))
        elif line.strip():
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found


@cache
def commands() -> dict[str, str]:
    """Command -> its docstring: a command is a file here with a function of its name.

    A trailing underscore keeps Python's own words apart: `import_.py` is the command `import`.
    """
    found: dict[str, str] = {}
    for entry in sorted(files("kvtrace.cli").iterdir(), key=lambda entry: entry.name):
        stem = entry.name.removesuffix(".py")
        if not entry.name.endswith(".py") or stem.startswith("_"):
            continue
        for node in ast.parse(entry.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == stem:
                found[stem.rstrip("_")] = ast.get_docstring(node) or ""
    return found


def constant(package: str, module: str, name: str) -> str:
    """A text constant of a module, read without importing it; empty when it is not a plain text."""
    source = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            targets = [node.target.id]
        else:
            continue
        if name in targets and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return node.value.value
    return ""
