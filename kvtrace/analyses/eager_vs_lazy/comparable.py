"""May these two runs stand side by side: same engine, same state, and one of them lazy?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.errors import NotComparableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run import Run

FIXED = (
    "model", "revision", "dtype", "quantisation", "kv_cache_dtype", "block_size", "chunk_size",
    "tensor_parallel_size", "pipeline_parallel_size", "engine_version",
)  # fmt: skip
"""What the state and its blocks are made of. When it is stored may differ, and who stores it."""
SETTING = "lazy_offload"
"""How LMCache's client (lmcache.mp.lazy_offload) and vLLM's SimpleCPUOffloadConnector call it."""

_IDENTITY = """
SELECT source, field, list_sort(list(DISTINCT value)) AS told FROM identity
WHERE value IS NOT NULL AND value <> 'per request' AND source IS NOT NULL GROUP BY source, field
"""
_ENGINES = """
SELECT list_sort(list(DISTINCT product)) FROM process
WHERE product IS NOT NULL AND engine IN (SELECT engine FROM request)
"""
_QUEUES = "SELECT count(*) FROM span WHERE op IS NULL AND name = 'lmcache_lazy_queue'"


def require_comparable(eager: Run, lazy: Run) -> None:
    """Refuse two runs that differ in what must be the same, or in the order they are given.

    Raises:
        NotComparableError: another engine, model, dtype, block or chunk size, parallel layout or version.
        UsageError: the first run stores lazily, or the second is known to store eagerly.
    """
    differs = next(_factors(eager, lazy), None)
    if differs:
        factor, first, second = differs
        raise NotComparableError(
            f"eager_vs_lazy: the runs differ in {factor} ({first} in EAGER, {second} in LAZY), which must be "
            "the same; record both with the same engine, model and blocks."
        )
    if stores_lazily(eager):
        other = "give the runs the other way round" if not stores_lazily(lazy) else "both do"
        raise UsageError(f"eager_vs_lazy: {eager.origin}, given as EAGER, stores lazily; {other}.")
    if stores_lazily(lazy) is False:
        raise UsageError(
            f"eager_vs_lazy: {lazy.origin}, given as LAZY, stores eagerly: its connector is known and its "
            f"{SETTING} is not on."
        )


def stores_lazily(run: Run) -> bool | None:
    """Whether the engines of a run store lazily; null where neither settings nor a queue tell."""
    settings = [facts for facts in _settings(run) if any(name.startswith("kv_connector") for name in facts)]
    said = [text for facts in settings for name, text in facts.items() if name.split(".")[-1] == SETTING]
    ((waited,),) = run.connection().sql(_QUEUES).fetchall()
    if waited or any(str(text).lower() == "true" for text in said):
        return True
    return False if settings else None


def _settings(run: Run) -> Iterator[dict[str, object]]:
    engines = run.meta.get("engines")
    for facts in engines.values() if isinstance(engines, dict) else engines or ():
        if isinstance(facts, dict):
            yield facts


def _factors(eager: Run, lazy: Run) -> Iterator[tuple[str, str, str]]:
    """Factor and its two values, for each that both runs tell and that differs.

    Values compare only where the same source told them: a cache server's version is none of vLLM's.
    """
    ((engines,),), ((others,),) = (run.connection().sql(_ENGINES).fetchall() for run in (eager, lazy))
    if engines and others and engines != others:
        yield "engine", ", ".join(engines), ", ".join(others)
    first, second = (
        {(source, field): told for source, field, told in run.connection().sql(_IDENTITY).fetchall()}
        for run in (eager, lazy)
    )
    for source, field in sorted(first.keys() & second.keys(), key=lambda key: (key[1], key[0])):
        mine, other = first[source, field], second[source, field]
        if field in FIXED and mine != other:
            yield field, ", ".join(mine), ", ".join(other)
