"""The drawn runs that many panels look at, each written once a test process: nobody changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import write_run
from tests.unit.panels.drawn import small, span

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A run by name: `empty`, `steps`, `no steps`, or `hold`, which has steps and a hold."""
    folder = tmp_path_factory.mktemp("panels")
    runs: dict[str, Run] = {}

    def named(name: str) -> Run:
        if name not in runs:
            tables: dict[str, Any] = {} if name == "empty" else small(steps=name != "no steps")
            if name == "hold":
                tables["span"].append(span("cmpl-held-0", "hold", 10, 20, blocks=8, reason="store"))
            runs[name] = write_run(folder / name, **tables)
        return runs[name]

    return named
