"""Source of a wheel that cannot run here: downloaded once, without what it depends on, and only read."""

from __future__ import annotations

import ast
import subprocess
import zipfile
from typing import TYPE_CHECKING

from tests.engines.environment import base_python, cache_folder

if TYPE_CHECKING:
    from pathlib import Path

DOWNLOAD_TIMEOUT_S = 600


def wheel(name: str, version: str) -> Path:
    """The wheel's file; downloads it the first time. A registry without it is an error."""
    folder = cache_folder() / "wheels" / f"{name}-{version}"
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    asked = [base_python(), "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*asked, "--dest", str(folder), f"{name}=={version}"],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} {version} was not downloaded: {done.stderr.strip()[-500:]}")
    return next(iter(folder.glob("*.whl")))


def classes(path: Path, module: str) -> dict[str, ast.ClassDef]:
    """The classes of one module of a wheel, by name; empty when it has no such module."""
    with zipfile.ZipFile(path) as archive:
        name = module.replace(".", "/") + ".py"
        if name not in archive.namelist():
            return {}
        tree = ast.parse(archive.read(name))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def parameters(cls: ast.ClassDef, method: str) -> list[str] | None:
    """The names of a method's parameters after self, in order; None when the class has none of that name."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            return [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]][1:]
    return None


def fields(cls: ast.ClassDef) -> set[str]:
    """What an object of the class has: annotated in its body, or assigned to self in one of its methods."""
    declared = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return declared | assigned
