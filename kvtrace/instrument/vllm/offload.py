"""Native offloading in a worker: which copy of which request, asked for when, copied from when to when?

    step n     prepare_store_kv(metadata)       stores are named and wait in vLLM for the next step
    step n+1   start_kv_transfers(metadata)     loads are named
                 submit_store | submit_load ──► submit: a row opens; a copy that never ends stays open
                     ...the copy...             end: the worker makes its TransferResult
               get_finished()                   the row closes

A job is of one request, whose id comes with it. Whatever class works for vLLM, also from outside, is wrapped
when vLLM gets it. When its copy ended is what its result says: device events where there are some
(offload_device.py), else the moment in which the result was made, in whatever thread; it began
`transfer_time` before. A job that a worker refuses, or reports as not successful, has failed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, offload_rows, retained
from kvtrace.instrument.vllm.carrier import carried_by
from kvtrace.instrument.vllm.groups import groups_of
from kvtrace.instrument.vllm.offload_rows import LOAD, MADE, STORE, Job
from kvtrace.instrument.wrapping import after, around, lose

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from kvtrace.instrument.vllm.groups import Group

_MOST = 100_000
"""Names of jobs that nobody submits: more are not kept."""


class Jobs:
    """Of one worker of vLLM: the jobs that it named, and those under way."""

    __slots__ = ("block_tokens", "groups", "named", "running")

    def __init__(self, block_tokens: tuple[int, ...], groups: tuple[Group | None, ...]) -> None:
        self.block_tokens = block_tokens  # of each group of layers that is offloaded
        self.groups = groups
        self.named: dict[int, tuple[str, int | None, int | None]] = {}  # job -> request, attempt, tokens
        self.running: dict[int, Job] = {}


def install_results(module: ModuleType) -> None:
    """Wrap where a result of any worker is made."""
    after(module.TransferResult, "__init__", _made)


def install(module: ModuleType) -> None:
    """Wrap vLLM's side of the worker: what it names, and the worker itself once it is there."""
    owner = module.OffloadingConnectorWorker
    after(owner, "_init_worker", _there)
    around(owner, "handle_preemptions", _flushes, _nothing)
    around(owner, "start_kv_transfers", _loads, _nothing)
    around(owner, "prepare_store_kv", _stores, _nothing)


def flushed_by(connector: Any, metadata: Any) -> set[str] | None:
    """Whose stores `handle_preemptions` submits or waits for: put off by a step, or to end before it.

    None for a connector of which that is not known.
    """
    own: Any = getattr(connector, "connector_worker", None)
    known: Jobs | None = getattr(own, "_kvtrace_jobs", None)
    if known is None:
        return None
    put_off = [job[0] for job in own._unsubmitted_store_jobs]  # noqa: SLF001 - no public way
    found: set[str] = {known.named[number][0] for number in put_off if number in known.named}
    for number in metadata.jobs_to_flush or ():
        running, new = known.running.get(number), metadata.store_jobs.get(number)
        request_id = running.request_id if running is not None else getattr(new, "req_id", None)
        if request_id is not None:
            found.add(request_id)
    return found


def _made(_result: Any, result: Any, *_: Any, **__: Any) -> None:
    vars(result)[MADE] = recorder.now()


def _there(_result: Any, own: Any, *_: Any, **__: Any) -> None:
    """VLLM has got its worker: its class is wrapped, unless it was."""
    worker = own.worker
    if worker is None:
        return
    numbers = _offloaded(own)
    groups = groups_of(own.kv_cache_config, numbers) if numbers else ()
    jobs = Jobs(_block_tokens(own, numbers), groups)
    own._kvtrace_jobs = worker._kvtrace_jobs = jobs  # noqa: SLF001 - ours, on objects of the engine
    around(type(worker), "submit_load", _asked, _load_submitted, _load_refused)
    around(type(worker), "submit_store", _asked, _store_submitted, _store_refused)
    after(type(worker), "get_finished", _finished)
    configuration.report()


def _offloaded(own: Any) -> tuple[int, ...]:
    """Numbers of the groups of layers that are offloaded, in the order in which jobs give their sizes."""
    try:
        return tuple(sys.modules[type(own).__module__].get_offloading_group_ids(own.kv_cache_config))
    except Exception as error:  # noqa: BLE001 - tokens stay unknown, copies are recorded
        lose("groups that are offloaded", error)
        return ()


def _block_tokens(own: Any, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens of a block of each group."""
    try:
        every = own.kv_cache_config.kv_cache_groups
        return tuple([int(every[number].kv_cache_spec.block_size) for number in numbers])
    except Exception as error:  # noqa: BLE001 - tokens stay unknown, copies are recorded
        lose("tokens of a block", error)
        return ()


def _flushes(own: Any, metadata: Any, *_: Any, **__: Any) -> None:
    """Stores that must end before this step are submitted at once."""
    at_once = getattr(metadata, "jobs_to_flush", None)
    if at_once:
        _name(own, {job: entry for job, entry in metadata.store_jobs.items() if job in at_once}, metadata)


def _loads(own: Any, metadata: Any, *_: Any, **__: Any) -> None:
    if metadata.load_jobs:
        _name(own, metadata.load_jobs, metadata)


def _stores(own: Any, metadata: Any, *_: Any, **__: Any) -> None:
    if metadata.store_jobs:
        _name(own, metadata.store_jobs, metadata)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _name(own: Any, entries: dict[int, Any], metadata: Any) -> None:
    """Note whose jobs these are; a rank that stores nothing submits none of them."""
    jobs: Jobs | None = getattr(own, "_kvtrace_jobs", None)
    if jobs is None or len(jobs.named) > _MOST:
        return
    carried = carried_by(metadata)
    loads: dict[str, tuple[int | None, int | None]] = {}
    if carried is not None:
        told = zip(carried["attempts"], carried["tokens"], strict=True)
        loads = dict(zip(carried["loads"], told, strict=True))
    writes = getattr(own, "_is_store_writer", True)
    for number, entry in entries.items():
        is_load = entries is metadata.load_jobs
        if is_load or writes:
            attempt, tokens = loads.get(entry.req_id, (None, None)) if is_load else (None, None)
            jobs.named[number] = (entry.req_id, attempt, tokens)


def _asked(*_: Any, **__: Any) -> int:
    return recorder.now()


def _load_submitted(submit_ns: int, accepted: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    number, medium, gpu = _arguments(*args, **kwargs)
    _submitted(LOAD, submit_ns, worker, number, gpu, medium, accepted=bool(accepted))


def _load_refused(submit_ns: int, _error: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    _load_submitted(submit_ns, False, worker, *args, **kwargs)  # noqa: FBT003 - as vLLM's worker says it


def _store_submitted(submit_ns: int, accepted: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    number, gpu, medium = _arguments(*args, **kwargs)
    _submitted(STORE, submit_ns, worker, number, gpu, medium, accepted=bool(accepted))


def _store_refused(submit_ns: int, _error: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    _store_submitted(submit_ns, False, worker, *args, **kwargs)  # noqa: FBT003 - as vLLM's worker says it


def _arguments(job_id: int, src_spec: Any, dst_spec: Any) -> tuple[int, Any, Any]:
    return job_id, src_spec, dst_spec


def _submitted(
    shape: recorder.Shape, submit_ns: int, worker: Any, number: int, gpu: Any, medium: Any, *, accepted: bool
) -> None:
    """A job was taken, or refused."""
    jobs: Jobs | None = getattr(worker, "_kvtrace_jobs", None)
    if jobs is None:
        return
    request_id, attempt, tokens = jobs.named.pop(number, (None, None, None))
    job = Job(request_id, submit_ns)
    transfer_id = None
    if request_id is not None and shape == STORE:
        transfer_id = f"{request_id}/store/{number}"
    elif request_id is not None and attempt is not None:
        transfer_id = f"{request_id}/load/{attempt}"
    if tokens is None:
        tokens = _tokens(jobs, gpu)
    if shape == LOAD:
        job.restores = (retained.filled(jobs.groups, gpu), transfer_id, attempt)
    offload_rows.opened(shape, job, number, transfer_id, attempt, tokens, gpu, medium)
    if accepted:
        jobs.running[number] = job
    else:
        offload_rows.refused(job)


def _tokens(jobs: Jobs, gpu: Any) -> int | None:
    """Tokens of the blocks of the group that has most of them."""
    sizes = getattr(gpu, "group_sizes", None)
    if not sizes or len(sizes) != len(jobs.block_tokens):
        return None
    return max(int(size) * tokens for size, tokens in zip(sizes, jobs.block_tokens, strict=True))


def _finished(results: Any, worker: Any, *_: Any, **__: Any) -> None:
    """The worker reports what has ended since it was asked last."""
    jobs: Jobs | None = getattr(worker, "_kvtrace_jobs", None)
    if jobs is None or not results:
        return
    now = recorder.now()
    for result in results:
        job = jobs.running.pop(result.job_id, None)
        if job is None:
            recorder.lost("undecodable", detail="offloading: a result of a job that was not submitted")
        else:
            offload_rows.closed(job, result, now)
