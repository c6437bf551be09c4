"""An OffloadingSpec that runs without a GPU, loaded by vLLM: `"spec_name": "HostSpec"`.

vLLM's own CPU spec refuses platforms without device streams. Here a thread of the worker copies between
the two sets of tensors, one job after the other, each at least `delay` seconds long. Scheduler, manager,
metrics and KV events are vLLM's own. With `times` it writes what it saw of every job to that file: when it
was submitted, when its copy began and ended, when its result was handed out (wall clock, ns). Beside that
file lie `host-progress.jsonl`, a line as soon as a job was submitted, its copy began, its result was handed
out, and vLLM then asked again, and, if a test puts it there, `host-delay`: the delay of the copies that begin
from then on. Job number `fails` copies nothing and says so.

A file `host-forgets` in the working folder is a fault: the number of a group of layers whose blocks the
scheduler's side leaves out of every load from then on, without a word to anybody.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.kv_offload.base import BlockIDsLoadStoreSpec, CanonicalKVCaches, OffloadingManager


PROGRESS = "host-progress.jsonl"
DELAY = "host-delay"
FORGETS = Path("host-forgets")


class Job(NamedTuple):
    """One transfer: which blocks of the engine, which chunks of the host, and in which direction."""

    number: int
    engine: GPULoadStoreSpec
    host: BlockIDsLoadStoreSpec
    stores: bool


class HostWorker(OffloadingWorker):
    """Copies blocks of the engine's cache to tensors of its own and back."""

    def __init__(
        self,
        caches: CanonicalKVCaches,
        *,
        chunks: int,
        chunk_blocks: int,
        delay_s: float,
        times: str | None = None,
        fails: int | None = None,
    ) -> None:
        self._fails = fails
        self._times = None if times is None else Path(times)
        self._seen: dict[int, dict[str, int | bool]] = {}
        self._handed_out: list[int] = []
        self._chunk_blocks = chunk_blocks
        self._delay_s = delay_s
        self._groups = [[ref.tensor_idx for ref in refs] for refs in caches.group_data_refs]
        self._engine = [
            each.tensor.view(torch.int8).view(-1, each.page_size_bytes) for each in caches.tensors
        ]
        self._host = [
            torch.zeros(chunks * chunk_blocks, each.page_size_bytes, dtype=torch.int8)
            for each in caches.tensors
        ]
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[TransferResult] = queue.SimpleQueue()
        self._ended: dict[int, threading.Event] = {}
        threading.Thread(target=self._work, name="host-offload", daemon=True).start()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec) -> bool:
        """From the engine to the host."""
        return self._submit(Job(job_id, src_spec, dst_spec, stores=True))

    def submit_load(self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """From the host to the engine."""
        return self._submit(Job(job_id, dst_spec, src_spec, stores=False))

    def get_finished(self) -> list[TransferResult]:
        """What ended since the last call."""
        found = []
        for number in self._handed_out:
            self._tell(number, next_poll_ns=time.time_ns())
        self._handed_out.clear()
        while not self._finished.empty():
            result = self._finished.get()
            self._ended.pop(result.job_id, None)
            self._write(result.job_id)
            self._tell(result.job_id, reported=True)
            self._handed_out.append(result.job_id)
            found.append(result)
        return found

    def wait(self, job_ids: set[int]) -> None:
        """Block until these jobs have ended."""
        for number in job_ids:
            if ended := self._ended.get(number):
                ended.wait()

    def _submit(self, job: Job) -> bool:
        self._ended[job.number] = threading.Event()
        self._seen[job.number] = {"job": job.number, "stores": job.stores, "submit_ns": time.time_ns()}
        self._tell(job.number, stores=job.stores)
        self._jobs.put(job)
        return True

    def _write(self, number: int) -> None:
        seen = {**self._seen.pop(number), "reported_ns": time.time_ns()}
        if self._times is not None:
            with self._times.open("a") as lines:
                lines.write(json.dumps(seen) + "\n")

    def _tell(self, number: int, **what: int) -> None:
        if self._times is not None:
            with self._times.with_name(PROGRESS).open("a") as lines:
                lines.write(json.dumps({"job": number, **what}) + "\n")

    def _delay(self) -> float:
        told = None if self._times is None else self._times.with_name(DELAY)
        return self._delay_s if told is None or not told.exists() else float(told.read_text())

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            delay_s = self._delay()
            self._tell(job.number, copies=True)
            started, seen = time.perf_counter(), self._seen[job.number]
            seen["start_ns"] = time.time_ns()
            time.sleep(delay_s)
            failed = job.number == self._fails
            seen["bytes"] = moved = 0 if failed else self._copy(job)
            took = time.perf_counter() - started
            seen["end_ns"] = time.time_ns()
            self._finished.put(
                TransferResult(job_id=job.number, success=not failed, transfer_size=moved, transfer_time=took)
            )
            self._ended[job.number].set()

    def _copy(self, job: Job) -> int:
        moved = 0
        for tensors, block, place in self._pairs(job):
            for number in tensors:
                engine, host = self._engine[number][block], self._host[number][place]
                (host if job.stores else engine).copy_(engine if job.stores else host)
                moved += engine.numel()
        return moved

    def _pairs(self, job: Job) -> Iterator[tuple[list[int], int, int]]:
        """Tensors of the group, block of the engine, place on the host; a chunk holds several blocks."""
        blocks, chunks = iter(job.engine.block_ids.tolist()), iter(job.host.block_ids.tolist())
        sizes = zip(self._groups, job.engine.group_sizes, job.engine.block_indices, strict=True)
        for tensors, size, first in sizes:
            chunk = 0
            for index in range(first, first + size):
                if index == first or index % self._chunk_blocks == 0:
                    chunk = next(chunks)
                yield tensors, next(blocks), chunk * self._chunk_blocks + index % self._chunk_blocks


class HostSpec(CPUOffloadingSpec):
    """vLLM's CPU spec with a worker that needs no device streams."""

    def get_manager(self) -> OffloadingManager:
        """The usual one; the scheduler asks for it, and nobody else does."""
        allocate = OffloadingConnectorScheduler.update_state_after_alloc

        def forgetful(own: Any, request: Any, blocks: Any, tokens: int) -> None:
            allocate(own, request, blocks, tokens)
            if tokens and FORGETS.exists():
                _forget(own._current_batch_load_jobs, request.request_id, int(FORGETS.read_text()))

        OffloadingConnectorScheduler.update_state_after_alloc = forgetful
        return super().get_manager()

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The one worker of this process."""
        if self._worker is None:
            self._worker = HostWorker(
                kv_caches,
                chunks=self.num_chunks,
                chunk_blocks=self.blocks_per_chunk,
                delay_s=float(self.extra_config.get("delay", 0)),
                times=self.extra_config.get("times"),
                fails=self.extra_config.get("fails"),
            )
        return self._worker


def _forget(jobs: dict[int, Any], request_id: str, group: int) -> None:
    """Take a group out of the load of a request; a chunk is one block here."""
    for number, job in jobs.items():
        if job.req_id == request_id:
            sizes = list(job.dst_spec.group_sizes)
            start = sum(sizes[:group])
            left = [*range(start), *range(start + sizes[group], sum(sizes))]
            sizes[group] = 0
            source = type(job.src_spec)([job.src_spec.block_ids[place] for place in left])
            target = GPULoadStoreSpec(
                [job.dst_spec.block_ids[place] for place in left], sizes, job.dst_spec.block_indices
            )
            jobs[number] = type(job)(req_id=request_id, src_spec=source, dst_spec=target)
