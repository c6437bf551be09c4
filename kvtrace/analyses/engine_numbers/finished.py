"""The requests that vLLM counts as ended: what all its other counters are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.analyses.engine_numbers._number import Cause
from kvtrace.analyses.engine_numbers._vllm import Counter, counted

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_FINISHED = Counter("vllm:request_success_total", "requests", "one", "requests with an end", "request_finish")


def finished(known: Known) -> list[Number]:
    """Requests that ended, however they did; vLLM does not count those whose clients left."""
    return counted(known, _FINISHED, _causes)


def _causes(rows: pl.DataFrame) -> list[Cause]:
    left = rows.filter(pl.col("status") == "aborted").height
    return [Cause(-left, f"{many(left, 'aborted request')}, which vLLM does not count")]
