"""Copies of whole blocks that engines call: vLLM's swap_blocks, its batched copies, the CUDA runtime's own.

    module                                    function             direction from      bytes from
    vllm._custom_ops                          swap_blocks          the two tensors     blocks x size
    vllm._custom_ops                          swap_blocks_batch    the first pointers  the sizes
    vllm.v1.kv_offload.cpu.swap_blocks_triton swap_blocks_batch    the first pointers  the sizes
    vllm.v1.simple_kv_offload's two backends  copy_blocks          the first bases     blocks x layers' sizes
    torch.cuda's cudart, where it has them    cudaMemcpy[Async]    its kind            its count
    vllm's CudaRTLibrary, over ctypes         cudaMemcpy           its two pointers    its count

A batch is one row. Where nobody can say which way a batch goes it is counted, not guessed. What
SingleDirectionOffloadingHandler.transfer_async copies is recorded by vLLM's workers (instrument/vllm), with
the events that it takes itself: it is covered here, or it would count twice. The runtime's own copies move
weights as well (vLLM's sleep mode): like those of tensors they count inside a scope only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.importing import when_imported
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from kvtrace.instrument.torch_cuda.copies import Copies
    from kvtrace.instrument.torch_cuda.pairs import Pair

BATCHED = ("vllm._custom_ops", "vllm.v1.kv_offload.cpu.swap_blocks_triton")
HANDLER = ("vllm.v1.kv_offload.cpu.gpu_worker", "SingleDirectionOffloadingHandler")
SIMPLE = ("vllm.v1.simple_kv_offload.copy_backend", "vllm.v1.simple_kv_offload.disk_backend")
"""Where SimpleCPUOffload calls `copy_blocks`: the name it has there is the one that counts."""
LIBRARY = "vllm.distributed.device_communicators.cuda_wrapper"
KINDS = {1: "load", 2: "store"}
"""cudaMemcpyKind: host to device, device to host."""


def install(torch: Any, copies: Copies) -> None:
    """Wrap what is there, and what will be imported."""
    for module in BATCHED:
        when_imported(module, f"block copies of {module}", _installer(copies))
    for module in SIMPLE:
        when_imported(module, f"block copies of {module}", _simple(copies))
    when_imported(HANDLER[0], "copies that vLLM times itself", _cover)
    when_imported(LIBRARY, "cudaMemcpy of vLLM's CudaRTLibrary", _library(copies))
    runtime = vars(torch.cuda).get("_cudart")
    for name in ("cudaMemcpy", "cudaMemcpyAsync"):
        if runtime is not None and hasattr(runtime, name):
            around(runtime, name, *_memcpy(copies, name))


def _installer(copies: Copies) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        for name, hooks in (("swap_blocks", _swap(copies)), ("swap_blocks_batch", _batch(copies))):
            if name in vars(module):
                around(module, name, *hooks)

    return act


def _simple(copies: Copies) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        around(module, "copy_blocks", *_copy_blocks(copies))

    return act


def _library(copies: Copies) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        around(module.CudaRTLibrary, "cudaMemcpy", *_pointers(copies))

    return act


def _cover(module: ModuleType) -> None:
    around(getattr(module, HANDLER[1]), "transfer_async", _covered, _uncovered, _uncovered)


def _covered(*_: Any, **__: Any) -> Any:
    return scope.enter(scope.COVERED)


def _uncovered(token: Any, *_: Any, **__: Any) -> None:
    scope.leave(token)


def _swap(copies: Copies) -> tuple[Callable[..., Any], ...]:
    side = copies.device.side

    def swap_before(src: Any, dst: Any, block_size_in_bytes: int, block_mapping: Any) -> Any:
        origin, goal = side(src), side(dst)
        if (origin < 0) is (goal < 0):
            return SKIP
        op, blocks = "load" if origin < 0 else "store", int(block_mapping.shape[0])
        moved = blocks * block_size_in_bytes
        return copies.begin("swap_blocks", op, max(origin, goal), blocks=blocks, moved_bytes=moved)

    return swap_before, _ended(copies), _failed(copies)


def _batch(copies: Copies) -> tuple[Callable[..., Any], ...]:
    device = copies.device

    def batch_before(src_ptrs: Any, dst_ptrs: Any, sizes: Any, *_: Any, **__: Any) -> Any:
        mine = scope.current()
        if not sizes.numel() or (mine is not None and mine.covered):
            return SKIP
        way = _way(device, src_ptrs[0], dst_ptrs[0])
        if way is None:
            return SKIP
        return copies.begin("swap_blocks_batch", *way, moved_bytes=int(sizes.sum()))

    return batch_before, _ended(copies), _failed(copies)


def _way(device: Any, src: Any, dst: Any) -> tuple[str, int] | None:
    """What a copy between two pointers is, and on which device; None when it is none, or nobody can say."""
    origin, goal = device.pointer_side(int(src)), device.pointer_side(int(dst))
    if origin is None or goal is None:
        recorder.lost("dropped", detail="copy: a batch of pointers whose side nobody can say")
        return None
    if (origin < 0) is (goal < 0):
        return None
    return "load" if origin < 0 else "store", max(origin, goal)


def _copy_blocks(copies: Copies) -> tuple[Callable[..., Any], ...]:
    """copy_blocks(src_block_ids, dst_block_ids, params); its thread copies on the stream of `params`."""

    def blocks_before(src_block_ids: Any, _dst_block_ids: Any, params: Any) -> Any:
        blocks = len(src_block_ids)
        way = _way(copies.device, params.src_bases[0], params.dst_bases[0]) if blocks else None
        if way is None:
            return SKIP
        moved = blocks * int(params.bpb.sum())
        stream = int(params.stream_handle)
        return copies.begin("copy_blocks", *way, blocks=blocks, moved_bytes=moved, stream=stream)

    return blocks_before, _ended(copies), _failed(copies)


def _pointers(copies: Copies) -> tuple[Callable[..., Any], ...]:
    """CudaRTLibrary.cudaMemcpy(dst, src, count), whose kind is always "find out"; it raises by itself."""

    def pointers_before(_library: Any, dst: Any, src: Any, count: int) -> Any:
        if not copies.every_tensor and scope.current() is None:
            return SKIP
        way = _way(copies.device, _address(src), _address(dst))
        return SKIP if way is None else copies.begin("cudaMemcpy", *way, moved_bytes=int(count))

    return pointers_before, _ended(copies), _failed(copies)


def _address(pointer: Any) -> int:
    """Of a number, or of a pointer of ctypes; a null pointer's value is None."""
    return int(getattr(pointer, "value", pointer) or 0)


def _memcpy(copies: Copies, name: str) -> tuple[Callable[..., Any], ...]:
    """cudaMemcpy(dst, src, count, kind[, stream]); the stream is the current one, or the one given."""

    def memcpy_before(_dst: Any, _src: Any, _count: int, kind: Any, stream: Any = None) -> Any:
        op = KINDS.get(int(kind))
        if op is None or (not copies.every_tensor and scope.current() is None):
            return SKIP
        return copies.begin(name, op, copies.device.current(), stream=None if stream is None else int(stream))

    def memcpy_after(pair: Pair, result: Any, _dst: Any, _src: Any, count: int, *_: Any, **__: Any) -> None:
        if result is not None and int(result) != 0:
            copies.drop(pair)
        else:
            copies.end(pair, int(count))

    return memcpy_before, memcpy_after, _failed(copies)


def _ended(copies: Copies) -> Callable[..., None]:
    def copy_ended(pair: Pair, *_: Any, **__: Any) -> None:
        copies.end(pair, pair.bytes)

    return copy_ended


def _failed(copies: Copies) -> Callable[..., None]:
    def copy_failed(pair: Pair, _error: BaseException, *_: Any, **__: Any) -> None:
        copies.drop(pair)

    return copy_failed
