"""May these runs be compared at all? What must be the same on both sides, from run.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses._text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.run import Run

FIXED = (
    "model", "revision", "dtype", "kv_cache_dtype", "quantization", "max_model_len", "block_size",
    "chunk_size", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
)  # fmt: skip
"""Of an engine's configuration: what makes the work another work. All else may be what is being tested."""
FIXED_OF_RUN = ("workload", "slo")


def differing(
    base: Sequence[Run], head: Sequence[Run], *, more: tuple[str, ...] = (), allowed: Sequence[str] = ()
) -> list[str]:
    """A sentence a factor that is not the same in all runs; what a run does not say cannot differ.

    more: further fields of an engine's configuration that are fixed; allowed: factors, or fields of them,
    that may differ.
    """
    told = [_factors(run.meta, (*FIXED, *more)) for run in (*base, *head)]
    sentences = []
    for factor in sorted({factor for each in told for factor in each}):
        if factor in allowed or factor.rpartition(".")[2] in allowed:
            continue
        found: dict[str, list[str]] = {}
        for run, each in zip((*base, *head), told, strict=True):
            if factor in each:
                found.setdefault(each[factor], []).append(str(run.origin.name))
        if len(found) > 1:
            sides = (f"{value} in {listed(names, 3)}" for value, names in found.items())
            sentences.append(f"{factor} differs: {'; '.join(sides)}")
    return sentences


def _factors(meta: dict[str, Any], fixed: tuple[str, ...]) -> dict[str, str]:
    """product.field -> its value; of several engines of a product all their values."""
    gathered: dict[str, set[str]] = {}
    engines = meta.get("engines")
    for engine in engines.values() if isinstance(engines, dict) else ():
        if isinstance(engine, dict):
            for field in fixed:
                if engine.get(field) is not None:
                    gathered.setdefault(f"{engine.get('product')}.{field}", set()).add(str(engine[field]))
    for field in FIXED_OF_RUN:
        if meta.get(field) is not None:
            gathered[field] = {str(meta[field])}
    return {factor: listed(sorted(values)) for factor, values in gathered.items()}
