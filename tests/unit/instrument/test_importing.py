"""A module is acted on when it is there, and nobody imports it for us."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import importing
from kvtrace.instrument.importing import Watcher, when_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.instrument.conftest import Told

pytestmark = pytest.mark.usefixtures("told")
NAME = "kvtrace_test_engine"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of an engine that nobody has imported yet."""
    (tmp_path / f"{NAME}.py").write_text("SIZE = 3\n")
    (tmp_path / f"{NAME}_broken.py").write_text("raise OSError('the engine is broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield NAME
    sys.modules.pop(NAME, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Watcher)]


def test_a_module_is_acted_on_after_it_was_executed(engine: str) -> None:
    seen: list[int] = []
    when_imported(engine, "part", lambda module: seen.append(module.SIZE))
    assert engine not in sys.modules
    assert seen == []
    assert importing.status() == {"part": f"not here: this process has not imported {engine}"}
    importlib.import_module(engine)
    assert seen == [3]
    assert importing.status() == {"part": "active"}


def test_a_module_that_is_there_is_acted_on_at_once(engine: str) -> None:
    seen: list[int] = []
    importlib.import_module(engine)
    when_imported(engine, "part", lambda module: seen.append(module.SIZE))
    assert seen == [3]


def test_the_same_part_acts_once(engine: str) -> None:
    seen: list[int] = []
    for _ in range(2):
        when_imported(engine, "part", lambda module: seen.append(module.SIZE))
    importlib.import_module(engine)
    importlib.reload(sys.modules[engine])
    assert seen == [3]


def test_a_loaded_module_keeps_the_loader_it_would_have_had(engine: str) -> None:
    when_imported(engine, "part", lambda _: None)
    module = importlib.import_module(engine)
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__spec__.loader)


def test_an_action_that_fails_is_counted_and_the_import_goes_on(engine: str, told: Told) -> None:
    def failing(_: Any) -> None:
        raise ValueError("ours")

    when_imported(engine, "part", failing)
    assert importlib.import_module(engine).SIZE == 3
    assert told.losses == [("hook_failure", "part: ValueError")]
    assert importing.status() == {"part": "not wrapped: ValueError: ours"}


def test_the_engines_own_import_error_is_its_own(engine: str) -> None:
    seen: list[Any] = []
    when_imported(f"{engine}_broken", "part", seen.append)
    with pytest.raises(OSError, match="the engine is broken"):
        importlib.import_module(f"{engine}_broken")
    assert seen == []


def test_a_module_that_does_not_exist_is_not_found_as_ever() -> None:
    when_imported("kvtrace_no_such_engine", "part", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kvtrace_no_such_engine")
