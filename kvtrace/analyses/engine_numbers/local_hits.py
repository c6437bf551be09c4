"""vLLM's own prefix cache, on the GPU: queries and hits, counted once an admission."""

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
    "vllm:prefix_cache_queries_total", "tokens", "prompt_tokens", "prompt_tokens, once a request",
    "gpu_hit_tokens", which="admitted",
)  # fmt: skip
_HITS = Counter(
    "vllm:prefix_cache_hits_total", "tokens", "gpu_hit_tokens", "gpu_hit_tokens of hit_funnel",
    "gpu_hit_tokens", which="admitted",
)  # fmt: skip


def local_hits(known: Known) -> list[Number]:
    """Tokens of prompts, and those that the GPU held."""
    return [*counted(known, _QUERIES, _asked_again), *counted(known, _HITS, _hit_again)]


def _asked_again(rows: pl.DataFrame) -> list[Cause]:
    again = rows.filter(pl.col("asks") > 1)
    tokens = total(again.with_columns(pl.col("prompt_tokens") * (pl.col("asks") - 1)), "prompt_tokens")
    said = f"{in_words(tokens, 'tokens')} counted again, of {many(again.height, 'request')} admitted again"
    return [Cause(tokens, said)]


def _hit_again(rows: pl.DataFrame) -> list[Cause]:
    tokens = total(rows, "hit_again")
    return [Cause(tokens, f"{in_words(tokens, 'tokens')} were hit once more by requests admitted again")]
