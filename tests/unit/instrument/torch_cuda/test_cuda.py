"""What is asked of torch and of the CUDA runtime, with stand-ins for both: no GPU is here."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument import torch_cuda, wrapping
from kvtrace.instrument.torch_cuda import cuda
from kvtrace.instrument.torch_cuda.cuda import HOST, RELAXED, Cuda
from tests.unit.instrument.torch_cuda.device import fake_torch

if TYPE_CHECKING:
    from tests.unit.instrument.torch_cuda.conftest import Told


class Runtime:
    """Libcudart: one table of pointers, `fails` as its error code."""

    def __init__(self, **pointers: tuple[int, int]) -> None:
        self.pointers = {int(name[1:], 16): what for name, what in pointers.items()}
        self.modes: list[int] = []
        self.fails = 0

    def cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        self.modes.append(mode._obj.value)
        return self.fails

    def cudaPointerGetAttributes(self, found: Any, pointer: Any) -> int:  # noqa: N802
        found._obj[0], found._obj[1] = self.pointers[pointer.value]
        return self.fails


def with_runtime(runtime: Any) -> Cuda:
    made = Cuda(fake_torch())
    made._searched, made._runtime = True, runtime
    return made


def test_a_pointer_is_where_the_runtime_says() -> None:
    runtime = Runtime(x10=(0, 0), x11=(1, 0), x12=(2, 3), x13=(3, 1))
    device = with_runtime(runtime)
    assert [device.pointer_side(pointer) for pointer in (0x10, 0x11, 0x12, 0x13)] == [HOST, HOST, 3, None]
    runtime.fails = 1
    assert device.pointer_side(0x12) is None
    assert with_runtime(None).pointer_side(0x12) is None


def test_the_room_for_attributes_is_larger_than_any_version_writes() -> None:
    """CUDA 13: int, int, two pointers, eight reserved longs: 88 bytes."""
    sizes: list[int] = []
    runtime = SimpleNamespace(
        cudaPointerGetAttributes=lambda found, _pointer: sizes.append(ctypes.sizeof(found._obj)) or 0
    )
    with_runtime(runtime).pointer_side(1)
    assert sizes[0] >= 2 * 88


def test_a_thread_is_relaxed_when_the_runtime_agrees() -> None:
    runtime = Runtime()
    assert with_runtime(runtime).relax_thread() is True
    assert runtime.modes == [RELAXED]
    runtime.fails = 1
    assert with_runtime(runtime).relax_thread() is False
    assert with_runtime(None).relax_thread() is False


def test_where_no_runtime_is_loaded_none_is_loaded_for_us() -> None:
    before = Path("/proc/self/maps").read_text().count("cudart")
    assert cuda._loaded() is None
    assert Path("/proc/self/maps").read_text().count("cudart") == before


def test_torch_is_asked_for_timing_events_and_the_threads_own_stream() -> None:
    torch = fake_torch()
    asked: list[Any] = []
    stream = SimpleNamespace(cuda_stream=0x7F)
    torch.cuda = SimpleNamespace(
        Event=lambda **options: asked.append(options) or "event",
        current_stream=lambda index: asked.append(index) or stream,
        is_current_stream_capturing=lambda: False,
        current_device=lambda: 2,
    )
    device = Cuda(torch)
    assert device.event(1) == "event"
    assert device.stream(1) == (0x7F, stream)
    assert asked == [{"enable_timing": True}, 1]
    assert device.capturing() is False
    assert device.current() == 2
    assert device.name(1) == "cuda:1"


def test_only_tensors_with_memory_are_real() -> None:
    device = Cuda(fake_torch())
    assert device.real(object())
    assert not device.real(type("FakeTensor", (), {})())
    assert device.side(SimpleNamespace(is_cuda=False)) == HOST
    assert device.side(SimpleNamespace(is_cuda=True, get_device=lambda: 1)) == 1


class Graph:
    """torch.cuda.CUDAGraph."""

    fails = False

    def capture_begin(self) -> None:
        if self.fails:
            raise RuntimeError("capture failed")

    def capture_end(self) -> None:
        pass


def test_a_capture_is_seen_from_its_begin_to_its_end_also_when_it_fails(told: Told) -> None:  # noqa: ARG001
    torch = fake_torch()
    graph = type("CUDAGraph", (Graph,), {})
    torch.cuda.CUDAGraph = graph
    device = Cuda(torch)
    torch_cuda._watch_captures(torch, device)
    mine = graph()
    mine.capture_begin()
    assert device.captures()
    mine.capture_end()
    assert not device.captures()
    mine.fails = True
    with pytest.raises(RuntimeError):
        mine.capture_begin()
    assert not device.captures()


def test_a_torch_with_cuda_is_wrapped_without_touching_the_driver(
    told: Told,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake's torch.cuda has no function at all: whoever called one would fail."""
    monkeypatch.setattr(torch_cuda, "_here", {})
    monkeypatch.setattr(torch_cuda.os, "register_at_fork", lambda **_: None)
    torch = fake_torch()
    torch.version.cuda = "13.0"
    assert torch_cuda._install(torch) is None
    assert wrapping.status()["Tensor.copy_"] == "active"
    assert [type(made.device) for made in torch_cuda._here.values()] == [Cuda]
