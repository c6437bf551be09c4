"""Native offloading of vLLM 0.32 in miniature: its side of a worker, and a worker from outside."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace as Some
from typing import Any

from kvtrace.instrument.vllm import offload

BLOCK = 16


class GPULoadStoreSpec:
    def __init__(self, blocks: int) -> None:
        self.block_ids = list(range(blocks))
        self.group_sizes = [blocks]


class CPULoadStoreSpec:
    def __init__(self) -> None:
        self.block_ids = [0]


class DiskSpec:
    block_ids = (0,)


class Result:
    """TransferResult, before anybody wrapped it."""

    def __init__(
        self, job_id: int, success: Any, transfer_size: int | None = None, transfer_time: float | None = None
    ) -> None:  # fmt: skip
        self.job_id = job_id
        self.success = success
        self.transfer_size = transfer_size
        self.transfer_time = transfer_time


@dataclass
class Metadata:
    load_jobs: dict[int, Any] = field(default_factory=dict)
    store_jobs: dict[int, Any] = field(default_factory=dict)
    jobs_to_flush: set[int] | None = None


class Outside:
    """A worker that knows nothing of kvtrace; `answer` is what it says to a submission."""

    answer: Any = True

    def __init__(self) -> None:
        self.results: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._submit(job_id, src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._submit(job_id, src_spec, dst_spec)

    def _submit(self, *_: Any) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)

    def get_finished(self) -> list[Any]:
        found, self.results = self.results, []
        return found


class Inside:
    """OffloadingConnectorWorker."""

    _is_store_writer = True

    def __init__(self) -> None:
        self.worker: Any = None
        self._unsubmitted_store_jobs: list[tuple[int, Any, Any]] = []
        group = Some(kv_cache_spec=Some(block_size=BLOCK))
        self.kv_cache_config = Some(kv_cache_groups=[group])

    def _init_worker(self, worker: Any) -> None:
        self.worker = worker

    def handle_preemptions(self, kv_connector_metadata: Metadata) -> None:
        for number in kv_connector_metadata.jobs_to_flush or ():
            entry = kv_connector_metadata.store_jobs.pop(number, None)
            if entry is not None:
                self._unsubmitted_store_jobs.append((number, entry.src_spec, entry.dst_spec))
        self._submit()

    def start_kv_transfers(self, metadata: Metadata) -> None:
        self._submit()
        for number, entry in metadata.load_jobs.items():
            assert self.worker.submit_load(number, entry.src_spec, entry.dst_spec)

    def prepare_store_kv(self, metadata: Metadata) -> None:
        for number, entry in metadata.store_jobs.items():
            if self._is_store_writer:
                self._unsubmitted_store_jobs.append((number, entry.src_spec, entry.dst_spec))

    def _submit(self) -> None:
        for number, source, target in self._unsubmitted_store_jobs:
            assert self.worker.submit_store(number, source, target)
        self._unsubmitted_store_jobs.clear()


def get_offloading_group_ids(config: Any) -> range:
    return range(len(config.kv_cache_groups))


def made() -> tuple[Any, Any, Any]:
    """VLLM's side with a worker, that worker, and the class of its results; all of classes of their own."""
    inside = type("OffloadingConnectorWorker", (Inside,), dict(vars(Inside)))
    outside = type("Outside", (Outside,), dict(vars(Outside)))
    result = type("TransferResult", (Result,), dict(vars(Result)))
    inside.__module__ = __name__
    assert __name__ in sys.modules
    offload.install_results(Some(TransferResult=result))  # type: ignore[arg-type]
    offload.install(Some(OffloadingConnectorWorker=inside))  # type: ignore[arg-type]
    own = inside()
    own._init_worker(outside())  # type: ignore[attr-defined]
    return own, own.worker, result  # type: ignore[attr-defined]


def load(request_id: str, blocks: int = 3, source: Any = None) -> Any:
    return Some(req_id=request_id, src_spec=source or CPULoadStoreSpec(), dst_spec=GPULoadStoreSpec(blocks))


def store(request_id: str, blocks: int = 3) -> Any:
    return Some(req_id=request_id, src_spec=GPULoadStoreSpec(blocks), dst_spec=CPULoadStoreSpec())


def carried(metadata: Metadata, **loads: int) -> Metadata:
    """Metadata with what the scheduler's side put on it: request -> tokens of its second attempt."""
    metadata._kvtrace = {  # type: ignore[attr-defined]
        "step": 1, "requests": (), "loads": tuple(loads), "attempts": (2,) * len(loads),
        "tokens": tuple(loads.values()),
    }  # fmt: skip
    return metadata
