"""What a program that moves bytes measures itself, around each of its calls: the truth of the wrappers.

Runs inside the engine's own environment: standard library alone.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Caller:
    """Makes calls and writes down when each began and ended, on the run's clock, and what it moved."""

    def __init__(self) -> None:
        monotonic, unix = map(int, os.environ["KVTRACE_ANCHOR"].split(":"))
        self._offset_ns = unix - monotonic
        self.calls: list[dict[str, Any]] = []

    def now(self) -> int:
        """Unix ns, by the monotonic clock and the run's anchor."""
        return time.monotonic_ns() + self._offset_ns

    def call(self, name: str, function: Callable[..., Any], *args: Any, moved: int | None = None) -> Any:
        """Call it; `moved`: bytes that this call moves if it does what it should."""
        start_ns = self.now()
        result = function(*args)
        self.noted(name, start_ns, moved=moved)
        return result

    def noted(self, name: str, start_ns: int, *, moved: int | None = None, **more: Any) -> None:
        """Write down what ends now."""
        self.calls.append({"name": name, "start_ns": start_ns, "end_ns": self.now(), "bytes": moved, **more})

    def save(self, **more: Any) -> None:
        """The answers, for the test."""
        Path("calls.json").write_text(json.dumps({"calls": self.calls, **more}))
