"""vLLM's prefill time: from the first step to the first token, with what lies between and is waited for.

first step [== wait ==]   [====] first token
           |------- vLLM ------|
After a load that failed under the policy `fail` there was no step: what is told is the uptime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers._known import total
from kvtrace.analyses.engine_numbers._number import Cause, in_words, instrument
from kvtrace.analyses.engine_numbers._vllm import Counter, counted, errors, told

if TYPE_CHECKING:
    import polars as pl

    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_WHAT = "steps that computed its prompt, without the engine's waits for loads and lookups inside them"
_PREFILL = Counter(
    "vllm:request_prefill_time_seconds_sum", "ns", "prefill_ns", _WHAT, "step_members", which="is_counted"
)


def prefill_time(known: Known) -> list[Number]:
    """How long prompts were computed, as the histogram and as the request spans tell it."""
    spans = "gen_ai.latency.time_in_model_prefill"
    return [
        *counted(known, _PREFILL, _causes),
        *told(known, spans, "told_prefill_ns", _PREFILL, instrument("queue_time"), _causes),
    ]


def _causes(rows: pl.DataFrame) -> list[Cause]:
    waits, gaps = total(rows, "step_waits_ns"), total(rows, "gaps_ns")
    found = [
        Cause(waits, f"{in_words(waits, 'ns')} in it are waits for loads and lookups inside steps"),
        Cause(gaps, f"{in_words(gaps, 'ns')} in it lie between the steps that computed a prompt"),
    ]
    return [*found, *errors(rows)]
