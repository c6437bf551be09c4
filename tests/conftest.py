"""Options of the test suite; a test process that shares a machine with others of its kind has one thread.

With pytest-xdist a worker a core is busy already: pools of polars, Arrow, BLAS and DuckDB, a thread a core
each, would only take turns. Without it (`pytest -p no:xdist`) everything has the threads that it has at work.

Drawn examples are the same on every machine, so that what is green here is green there; KVTRACE_THOROUGH=1
draws others each time, and more of them: run it over a night, and keep what it finds as an `@example`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_SHARED = "PYTEST_XDIST_WORKER" in os.environ
_POOLS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
if _SHARED:  # read once, when the libraries are imported
    for _name in _POOLS:
        os.environ.setdefault(_name, "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write tests/golden/*/*.csv anew")


def pytest_configure() -> None:
    """Before any test module is imported, and any of its settings made."""
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True)
    if os.environ.get("KVTRACE_THOROUGH") != "1":
        settings.load_profile("repeatable")
    if _SHARED:
        _one_thread_for_duckdb()


def _one_thread_for_duckdb() -> None:
    """It takes its number of threads from no variable."""
    import duckdb

    connect = duckdb.connect

    def with_one_thread(*args: Any, config: dict[str, Any] | None = None, **more: Any) -> Any:
        return connect(*args, config={"threads": 1} | (config or {}), **more)

    duckdb.connect = with_one_thread
