"""vLLM's queue time: from arrival to the first step, with the lookups and the whole asynchronous load in it.

arrival [ lookup | remote_kv = the load | capacity ] first step
        |---------------- vLLM ---------------------|
After a load that failed under the policy `fail` there was no step: what is told is minus the uptime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.engine_numbers._known import total
from kvtrace.analyses.engine_numbers._number import Cause, in_words, instrument
from kvtrace.analyses.engine_numbers._vllm import Counter, counted, errors, told

if TYPE_CHECKING:
    import polars as pl

    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_WHAT = "queue rows before its first step, without those for a load (remote_kv) or a lookup"
_QUEUE = Counter(
    "vllm:request_queue_time_seconds_sum", "ns", "queue_ns", _WHAT, "queue_reason_and_blocks",
    which="is_counted",
)  # fmt: skip


def queue_time(known: Known) -> list[Number]:
    """How long requests queued for a place, as the histogram and as the request spans tell it."""
    spans = "gen_ai.latency.time_in_queue"
    return [
        *counted(known, _QUEUE, _causes),
        *told(known, spans, "told_queue_ns", _QUEUE, instrument("queue_time"), _causes),
    ]


def _causes(rows: pl.DataFrame) -> list[Cause]:
    loading, looking = total(rows, "loading_ns"), total(rows, "looking_ns")
    loaded = rows.filter(rows["loading_ns"].fill_null(0) > 0).height
    asked = rows.filter(rows["looking_ns"].fill_null(0) > 0).height
    found = [
        Cause(loading, f"{in_words(loading, 'ns')} in it are loads of {many(loaded, 'request')}"),
        Cause(looking, f"{in_words(looking, 'ns')} in it are lookups of {many(asked, 'request')}"),
    ]
    return [*found, *errors(rows)]
