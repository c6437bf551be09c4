"""Where vLLM says that the prompts' tokens came from: what a load lost in part stays loaded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.engine_numbers._vllm import Counter, counted, failed, last_tokens, told, unused

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Cause, Number

_NAME = "vllm:prompt_tokens_by_source_total"
_SOURCES = (
    ("external_kv_transfer", "used_tokens", "loaded_tokens of hit_funnel", "gpu_hit_tokens", 1),
    ("local_cache_hit", "gpu_hit_tokens", "gpu_hit_tokens of hit_funnel", "gpu_hit_tokens", 0),
    ("local_compute", "computed_tokens", "computed_tokens of hit_funnel", "step_members", -1),
)
"""Source -> what was measured, the words for it, what records that, and which way a failed load moves it."""
_TOLD = Counter(
    "", "tokens", "cached_tokens", "gpu_hit_tokens + loaded_tokens of hit_funnel", "gpu_hit_tokens",
    only="has_report",
)  # fmt: skip


def prompt_sources(known: Known) -> list[Number]:
    """Prompt tokens by source, of requests whose prefill ended, and the cached tokens that answers tell."""
    found: list[Number] = []
    for source, column, what, fact, sign in _SOURCES:
        labels = (("source", source),)
        counter = Counter(_NAME, "tokens", column, what, fact, which="has_token", labels=labels)
        found += counted(known, counter, partial(_causes, sign=sign))
    name = "usage.prompt_tokens_details.cached_tokens"
    instrument = "the answers that clients kept (vLLM --enable-prompt-tokens-details)"
    return [*found, *told(known, name, "reported_cached_tokens", _TOLD, instrument, _causes)]


def _causes(rows: pl.DataFrame, sign: int = 1) -> list[Cause]:
    """What began anew after a load of which nothing arrived is told right: only others stay counted."""
    once = rows.filter(pl.col("asks") <= 1)
    return [failed(once, sign), last_tokens(rows, sign), unused(once, sign)] if sign else []
