"""vLLM's preemptions: the counter, which is right; the line of its log never shows any (0.32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses.engine_numbers._vllm import Counter, counted

if TYPE_CHECKING:
    from kvtrace.analyses.engine_numbers._known import Known
    from kvtrace.analyses.engine_numbers._number import Number

_PREEMPTIONS = Counter(
    "vllm:num_preemptions_total", "times", "preemptions", "preemptions that the scheduler's shim saw",
    "queue_reason_and_blocks",
)  # fmt: skip


def preemptions(known: Known) -> list[Number]:
    """How often a request was put back for want of blocks."""
    return counted(known, _PREEMPTIONS, lambda _: [])
