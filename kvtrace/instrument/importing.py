"""How is a module of an engine wrapped without importing it on the engine's behalf?

A module that is there is acted on at once, one that is not the moment it has been executed: no process pays
for an import that it would not have made, and a module that a process never imports is never wrapped there.

    import vllm.v1.engine.core ─► Watcher.find_spec ─► the loader that anyone else would have found
                                                         exec_module, then our actions, then the import ends
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtrace.instrument.wrapping import ACTIVE, lose

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], object]

_waiting: dict[str, list[tuple[str, Action]]] = {}
_statuses: dict[str, str] = {}


def when_imported(module: str, part: str, action: Action) -> None:
    """Run `action(module)` as soon as that module is there, once; what it raises is counted, not raised.

    `part` names the action in `status()`; an action that has nothing to do there returns why, as text.
    """
    if part in _statuses:
        return
    loaded = sys.modules.get(module)
    if loaded is not None:
        _act(part, action, loaded)
        return
    _statuses[part] = f"not here: this process has not imported {module}"
    _waiting.setdefault(module, []).append((part, action))
    if not any(isinstance(finder, Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, Watcher())


def status() -> dict[str, str]:
    """Part -> "active", why not, or that this process has no use for it."""
    return dict(_statuses)


def awaited() -> tuple[str, ...]:
    """Modules that are waited for and not there yet."""
    return tuple(_waiting)


class Watcher:
    """A finder that finds what the others find, and has our actions run after it."""

    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module that is waited for; None for all others."""
        if name not in _waiting or name in self._asking:
            return None
        self._asking.add(name)
        try:
            return _watched(name, _found(self, name, path, target))
        except Exception as error:  # noqa: BLE001 - the import goes on as if we were not there
            lose(f"importing {name}", error)
            return None
        finally:
            self._asking.discard(name)


def _found(own: Watcher, name: str, path: Any, target: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        search = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = search(name, path, target) if search and finder is not own else None
        if spec is not None:
            return spec
    return None


def _watched(name: str, spec: ModuleSpec | None) -> ModuleSpec | None:
    """The loader is somebody else's and may load other modules too: it is changed for this one load."""
    loader = spec.loader if spec else None
    if loader is None or not hasattr(loader, "exec_module"):
        return spec
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:
            vars(loader).pop("exec_module", None)
            for part, action in _waiting.pop(name, ()):
                _act(part, action, module)

    loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _act(part: str, action: Action, module: ModuleType) -> None:
    try:
        idle = action(module)
        _statuses[part] = idle if isinstance(idle, str) else ACTIVE
    except Exception as error:  # noqa: BLE001 - an engine we do not know is no reason to stop it
        _statuses[part] = f"not wrapped: {type(error).__name__}: {error}"
        lose(part, error)
