"""vLLM's time to the first token: of a failed request it is the time to its failure (0.32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers._vllm import Counter, counted

if TYPE_CHECKING:
    import polars as pl

    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Cause, Number

_TTFT = Counter(
    "vllm:time_to_first_token_seconds_sum", "ns", "ttft_ns", "first_token_ns - start_ns of request",
    "first_token", which="has_token",
)  # fmt: skip


def first_token_time(known: Known) -> list[Number]:
    """From arrival to the first token, of the requests that had one."""
    return counted(known, _TTFT, _causes)


def _causes(rows: pl.DataFrame) -> list[Cause]:  # noqa: ARG001 - which requests failed is not among these
    return []
