"""Copies of whole blocks: vLLM's, and the CUDA runtime's own where torch shows them."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import importing
from kvtrace.instrument.scope import request
from kvtrace.instrument.torch_cuda import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.instrument.torch_cuda.conftest import World

HOST, GPU, UNKNOWN = 0x1000, 0x2000, 0x3000


class Numbers(list[int]):
    """A CPU tensor of one dimension."""

    def numel(self) -> int:
        return len(self)

    def sum(self) -> int:
        return sum(self)


@pytest.fixture
def ops(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> Any:
    """vllm._custom_ops, imported after the instruments are there."""
    here = world()
    here.device.pointers.update({HOST: -1, GPU: 0})
    module = ModuleType("vllm._custom_ops")

    def swap_blocks(src: Any, dst: Any, block_size_in_bytes: int, block_mapping: Any) -> None:  # noqa: ARG001
        here.device.ran(block_size_in_bytes)

    def swap_blocks_batch(src_ptrs: Any, dst_ptrs: Any, sizes: Any, flag: bool = False) -> None:  # noqa: ARG001, FBT001, FBT002
        here.device.ran(0)

    module.swap_blocks, module.swap_blocks_batch = swap_blocks, swap_blocks_batch  # type: ignore[attr-defined]
    for part, action in importing._waiting["vllm._custom_ops"]:
        importing._act(part, action, module)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", module)
    return SimpleNamespace(here=here, module=module)


def test_swapped_blocks_are_one_row_with_their_bytes(ops: Any) -> None:
    mapping = SimpleNamespace(shape=(3, 2))
    ops.module.swap_blocks(ops.here.gpu(), ops.here.host(), 4096, block_mapping=mapping)
    (row,) = ops.here.read()
    assert (row["op"], row["name"], row["bytes"], row["blocks"]) == ("store", "swap_blocks", 12288, 3)
    assert row["attribution"] == "aggregate"


def test_blocks_swapped_inside_the_device_are_no_transfer(ops: Any) -> None:
    ops.module.swap_blocks(ops.here.gpu(), ops.here.gpu(), 4096, SimpleNamespace(shape=(3, 2)))
    assert ops.here.read() == []


@pytest.mark.parametrize(("src", "dst", "op"), [(HOST, GPU, "load"), (GPU, HOST, "store")])
def test_a_batch_is_one_row_and_goes_where_its_pointers_point(ops: Any, src: int, dst: int, op: str) -> None:
    with request("r1"):
        ops.module.swap_blocks_batch(Numbers([src, src]), Numbers([dst, dst]), Numbers([100, 28]))
    (row,) = ops.here.read()
    assert (row["op"], row["name"], row["bytes"], row["request_id"]) == (op, "swap_blocks_batch", 128, "r1")


def test_a_batch_whose_side_nobody_knows_is_counted_and_not_guessed(ops: Any) -> None:
    ops.module.swap_blocks_batch(Numbers([UNKNOWN]), Numbers([GPU]), Numbers([8]))
    assert ops.here.read() == []
    assert ops.here.told.losses == [
        ("dropped", None, "copy: a batch of pointers whose side nobody can say"),
    ]


def test_an_empty_batch_and_one_inside_the_device_are_nothing(ops: Any) -> None:
    ops.module.swap_blocks_batch(Numbers(), Numbers(), Numbers())
    ops.module.swap_blocks_batch(Numbers([GPU]), Numbers([GPU]), Numbers([8]))
    assert ops.here.read() == []
    assert ops.here.told.losses == []


def test_what_vllms_handler_copies_is_left_to_vllms_workers(ops: Any) -> None:
    class SingleDirectionOffloadingHandler:
        def transfer_async(self, _job: int) -> bool:
            ops.module.swap_blocks_batch(Numbers([HOST]), Numbers([GPU]), Numbers([8]))
            ops.module.swap_blocks_batch(Numbers([UNKNOWN]), Numbers([GPU]), Numbers([8]))
            return True

    worker = ModuleType(blocks.HANDLER[0])
    worker.SingleDirectionOffloadingHandler = SingleDirectionOffloadingHandler  # type: ignore[attr-defined]
    ((_, action),) = importing._waiting[blocks.HANDLER[0]]
    action(worker)
    assert SingleDirectionOffloadingHandler().transfer_async(1)
    assert ops.here.read() == []
    ops.module.swap_blocks_batch(Numbers([HOST]), Numbers([GPU]), Numbers([8]))
    assert len(ops.here.read()) == 1
    assert ops.here.told.losses == []


@pytest.fixture(params=blocks.SIMPLE)
def simple(world: Callable[..., World], request: pytest.FixtureRequest) -> Any:
    """A backend of SimpleCPUOffload, which has imported `copy_blocks` by its name."""
    here = world()
    here.device.pointers.update({HOST: -1, GPU: 0})
    module = ModuleType(request.param)

    def copy_blocks(src_block_ids: Any, dst_block_ids: Any, params: Any) -> None:  # noqa: ARG001
        if params.error:
            raise RuntimeError("batch memcpy failed")
        here.device.ran(4096)

    module.copy_blocks = copy_blocks  # type: ignore[attr-defined]
    ((_, action),) = importing._waiting[request.param]
    action(module)
    return SimpleNamespace(here=here, module=module)


def bases(src: int, dst: int, *, error: bool = False) -> Any:
    """BatchMemcpyParams of two layers whose blocks have 100 and 28 bytes."""
    return SimpleNamespace(
        src_bases=[src, src], dst_bases=[dst, dst], bpb=Numbers([100, 28]), stream_handle=0xAB, error=error
    )


@pytest.mark.parametrize(("src", "dst", "op"), [(HOST, GPU, "load"), (GPU, HOST, "store")])
def test_blocks_of_simple_offloading_are_one_row_on_the_stream_of_their_direction(
    simple: Any, src: int, dst: int, op: str
) -> None:
    simple.module.copy_blocks([4, 5, 6], [1, 2, 3], bases(src, dst))
    (row,) = simple.here.read()
    assert (row["op"], row["name"], row["stream"]) == (op, "copy_blocks", "0xab")
    assert (row["blocks"], row["bytes"]) == (3, 3 * 128)


def test_simple_offloading_of_no_blocks_or_that_fails_is_no_row(simple: Any) -> None:
    simple.module.copy_blocks([], [], bases(HOST, GPU))
    with pytest.raises(RuntimeError, match="batch memcpy failed"):
        simple.module.copy_blocks([1], [1], bases(HOST, GPU, error=True))
    assert simple.here.read() == []
    assert simple.here.told.losses == []


def test_blocks_of_simple_offloading_whose_side_nobody_knows_are_counted(simple: Any) -> None:
    simple.module.copy_blocks([1], [1], bases(UNKNOWN, GPU))
    assert simple.here.read() == []
    assert [cause for cause, *_ in simple.here.told.losses] == ["dropped"]


def test_what_vllms_runtime_library_copies_inside_a_scope_goes_where_its_pointers_point(
    world: Callable[..., World],
) -> None:
    """It moves weights too, when an engine sleeps: outside of a scope they are no state."""
    here = world()
    here.device.pointers.update({HOST: -1, GPU: 0})

    class CudaRTLibrary:
        def cudaMemcpy(self, dst: Any, src: Any, count: int) -> None:  # noqa: ARG002, N802
            here.device.ran(0)

    module = ModuleType(blocks.LIBRARY)
    module.CudaRTLibrary = CudaRTLibrary  # type: ignore[attr-defined]
    ((_, action),) = importing._waiting[blocks.LIBRARY]
    action(module)
    library = CudaRTLibrary()
    library.cudaMemcpy(GPU, HOST, 64)
    with request("r1"):
        library.cudaMemcpy(GPU, ctypes.c_void_p(HOST), 64)
        library.cudaMemcpy(HOST, GPU, 32)
        library.cudaMemcpy(GPU, GPU, 16)
    found = [(row["name"], row["op"], row["bytes"], row["request_id"]) for row in here.read()]
    assert found == [("cudaMemcpy", "load", 64, "r1"), ("cudaMemcpy", "store", 32, "r1")]
    assert here.told.losses == []


@pytest.mark.parametrize(("kind", "op"), [(1, "load"), (2, "store")])
def test_the_runtimes_own_copies_are_rows_on_the_stream_they_name(
    world: Callable[..., World], kind: int, op: str
) -> None:
    here = world()
    runtime = SimpleNamespace(
        __name__="cudart", cudaMemcpyAsync=lambda *_: here.device.ran(0) or 0, cudaMemcpy=lambda *_: 700
    )
    here.torch.cuda._cudart = runtime
    blocks.install(here.torch, here.copies)
    with request("r1"):
        assert runtime.cudaMemcpyAsync(GPU, HOST, 64, kind, 0xAB) == 0
        runtime.cudaMemcpyAsync(GPU, HOST, 64, 3)
        assert runtime.cudaMemcpy(GPU, HOST, 64, kind) == 700
    runtime.cudaMemcpyAsync(GPU, HOST, 64, kind)
    (row,) = here.read()
    assert (row["name"], row["op"], row["bytes"], row["stream"]) == ("cudaMemcpyAsync", op, 64, "0xab")
    assert here.told.losses == []
