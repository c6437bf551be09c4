"""vLLM's external prefix cache queries: a request that asks again after a failed load is counted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.analyses.engine_numbers._known import total
from kvtrace.analyses.engine_numbers._number import Cause, in_words
from kvtrace.analyses.engine_numbers._vllm import Counter, counted

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_QUERIES = Counter(
    "vllm:external_prefix_cache_queries_total", "tokens", "beyond_tokens",
    "prompt_tokens - gpu_hit_tokens of hit_funnel, once a request", "gpu_hit_tokens", which="has_asked",
    only="tiered",
)  # fmt: skip


def external_queries(known: Known) -> list[Number]:
    """Tokens beyond the GPU's hit that a connector was asked for."""
    return counted(known, _QUERIES, _causes)


def _causes(rows: pl.DataFrame) -> list[Cause]:
    again = rows.filter(pl.col("asks") > 1)
    tokens = total(again.with_columns(pl.col("beyond_tokens") * (pl.col("asks") - 1)), "beyond_tokens")
    said = f"{in_words(tokens, 'tokens')} counted again, of {many(again.height, 'request')} that asked again"
    return [Cause(tokens, said)]
