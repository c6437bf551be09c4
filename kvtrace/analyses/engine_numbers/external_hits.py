"""vLLM's external prefix cache hits: counted when a request is admitted, and never corrected (0.32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers._known import total
from kvtrace.analyses.engine_numbers._number import Cause, in_words
from kvtrace.analyses.engine_numbers._vllm import Counter, counted, failed, last_tokens, unused

if TYPE_CHECKING:
    import polars as pl

    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_HITS = Counter(
    "vllm:external_prefix_cache_hits_total", "tokens", "used_tokens", "loaded_tokens of hit_funnel",
    "gpu_hit_tokens", which="has_asked", only="tiered",
)  # fmt: skip


def external_hits(known: Known) -> list[Number]:
    """Tokens that a connector promised, against those that were loaded and used."""
    return counted(known, _HITS, _causes)


def _causes(rows: pl.DataFrame) -> list[Cause]:
    again = total(rows, "returned_again")
    repeated = Cause(again, f"{in_words(again, 'tokens')} were promised again, of requests that asked again")
    return [failed(rows), repeated, last_tokens(rows), unused(rows)]
