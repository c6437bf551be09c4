"""Which rows tell of a copy of native offloading, and where its times come from?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, retained

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.vllm.retained import Filled

MEDIA = {"GPULoadStoreSpec": "gpu", "CPULoadStoreSpec": "host"}
"""Class of vLLM that says where blocks are -> the tier; its subclasses too."""
MADE = "_kvtrace_ns"
"""On a TransferResult: when it was made."""
DEVICE = "_kvtrace_device"
"""On a TransferResult: what the device's events say of its copy."""
_OPENED = (
    "span_id", "request_id", "transfer_id", "submit_ns", "start_ns", "tokens", "blocks", "attempt", "rank",
    "attribution", "attributes.job",
)  # fmt: skip
LOAD = recorder.shape(
    "span", (*_OPENED, "tier_from"), part="open", name="offload_load", op="load", tier_to="gpu",
    purpose="reuse", observer="worker", evidence="shim", component="vllm.offloading",
)  # fmt: skip
STORE = recorder.shape(
    "span", (*_OPENED, "tier_to"), part="open", name="offload_store", op="store", tier_from="gpu",
    observer="worker", evidence="shim", component="vllm.offloading",
)  # fmt: skip
CLOSE = recorder.shape(
    "span",
    ("span_id", "start_ns", "end_ns", "bytes", "outcome", "reason", "clock", "device", "stream",
     "attributes.times", "attributes.reported_after_ns"),
    part="close",
)  # fmt: skip


class Job:
    """One copy under way."""

    __slots__ = ("request_id", "restores", "span_id", "submit_ns")

    def __init__(self, request_id: str | None, submit_ns: int) -> None:
        self.request_id = request_id
        self.restores: tuple[list[Filled], str | None, int | None] | None = None  # of a load: into what
        self.span_id = recorder.next_id()
        self.submit_ns = submit_ns


def opened(
    shape: recorder.Shape, job: Job, number: int, transfer_id: str | None, attempt: int | None,
    tokens: int | None, gpu: Any, medium: Any,
) -> None:  # fmt: skip
    """A worker was asked for a copy between these blocks of the GPU and that medium."""
    recorder.record((
        shape, job.span_id, job.request_id, transfer_id, job.submit_ns, job.submit_ns, tokens,
        len(gpu.block_ids), attempt, configuration.here().rank,
        "aggregate" if job.request_id is None else "request", number, _tier(medium),
    ))  # fmt: skip


def refused(job: Job) -> None:
    """The worker did not take it."""
    recorder.record((
        CLOSE, job.span_id, job.submit_ns, recorder.now(), None, "failed", "unknown", "host", None, None,
        "refused", None,
    ))  # fmt: skip


def closed(job: Job, result: Any, now: int) -> None:
    """The worker reports it now."""
    start_ns, end_ns, clock, device, stream, times = _times(result, job, now)
    recorder.record((
        CLOSE, job.span_id, start_ns, end_ns, result.transfer_size, "ok" if result.success else "failed",
        None if result.success else "unknown", clock, device, stream, times, now - end_ns,
    ))  # fmt: skip
    if job.restores is not None:
        parts, transfer_id, attempt = job.restores
        retained.restored(
            parts, job.request_id, transfer_id, attempt, start_ns, end_ns, ok=bool(result.success)
        )


def _tier(medium: Any) -> str:
    for kind in type(medium).__mro__:
        if kind.__name__ in MEDIA:
            return MEDIA[kind.__name__]
    return "unknown"


def _times(result: Any, job: Job, now: int) -> tuple[int, int, str, str | None, str | None, str]:
    """Start and end of the copy, whose clock says so, device, stream, and where the times come from."""
    own = vars(result)
    seen = own.get(DEVICE)
    if seen is not None:
        start_ns, end_ns, device, stream = seen
        start_ns = min(max(start_ns, job.submit_ns), now)
        return start_ns, min(max(end_ns, start_ns), now), "gpu", device, stream, "device_events"
    end_ns = max(own.get(MADE, now), job.submit_ns)
    if result.transfer_time is None:
        return job.submit_ns, end_ns, "host", None, None, "submit_to_result"
    start_ns = max(job.submit_ns, end_ns - round(result.transfer_time * 1e9))
    return start_ns, end_ns, "host", None, None, "result_made"
