"""Copies between host and device, timed on the device without ever waiting for it.

    copies.py     around one copy, in the engine's thread      tensors.py   Tensor.copy_, .to, .cuda, .cpu
    pairs.py      two events a copy, from a bounded pool       blocks.py    vLLM's blocks, cudart's memcpy
    reaper.py     one thread reads what is over                ranges.py    NVTX, torch.profiler, on request
    station.py    one device: queues, rows, losses             rows.py      what a copy's row says
    anchors.py    the device's clock beside the host's         cuda.py      the real device
    mapping.py    device time -> host time                     stand_in.py  one without a GPU, for tests

Idle unless this process records (KVTRACE_OUT, or see autoinstrument/) and its torch can use a GPU
(KVTRACE_DEVICE=stand-in: the stand-in device instead). Torch is never imported from here, and CUDA is never
initialised. Also read: KVTRACE_COPIES (scoped, all, off), KVTRACE_NVTX, KVTRACE_PROFILER.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing costs an engine's start more than this package
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from kvtrace.instrument.torch_cuda.copies import Copies

PART = "copies between host and device"
STAND_IN = "stand-in"
_here: dict[int, Copies] = {}
"""Of this process alone: a forked child has no thread of ours, and no CUDA either."""


def install() -> None:
    """Wrap this process's torch now, or when it is imported; never raises, once a process."""
    asked = os.environ.get("KVTRACE_OUT") or "kvtrace.recorder" in sys.modules  # that knows other ways out
    if not asked or os.environ.get("KVTRACE_COPIES") == "off":
        return
    try:
        from kvtrace import recorder
        from kvtrace.instrument.importing import when_imported

        if recorder.enabled():
            when_imported("torch", PART, _install)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the engine starts
        from kvtrace.instrument.wrapping import lose

        lose(PART, error)


def finish() -> None:
    """Before the recording is closed: write the copies that are over, count those that are not."""
    copies = _here.get(os.getpid())
    if copies is not None:
        copies.finish()


def _install(torch: ModuleType) -> str | None:
    device = _device(torch)
    if device is None:
        return "idle: this torch has no CUDA"
    from kvtrace.instrument.torch_cuda import blocks, copies, ranges, tensors

    made = copies.Copies(device, ranges=ranges.asked(torch))
    _here.clear()
    _here[os.getpid()] = made
    tensors.install(torch, made)
    blocks.install(torch, made)
    _watch_captures(torch, device)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    return None


def _forked() -> None:
    for made in list(_here.values()):
        made.begin_again()
        _here.clear()
        _here[os.getpid()] = made


def _device(torch: Any) -> Any:
    """`torch.cuda.is_available` would touch the driver, after which the engine could not fork."""
    if os.environ.get("KVTRACE_DEVICE") == STAND_IN:
        from kvtrace.instrument.torch_cuda.stand_in import StandIn

        return StandIn()
    if torch.version.cuda is None and torch.version.hip is None:
        return None
    from kvtrace.instrument.torch_cuda.cuda import Cuda

    return Cuda(torch)


def _watch_captures(torch: Any, device: Any) -> None:
    from kvtrace.instrument.wrapping import around

    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is not None and os.environ.get("KVTRACE_DEVICE") != STAND_IN:

        def captured(*_: Any, **__: Any) -> None:
            device.capture_ends()

        def captures(*_: Any, **__: Any) -> None:
            device.capture_begins()

        around(graph, "capture_begin", captures, _nothing, captured)
        around(graph, "capture_end", _nothing, captured, captured)


def _nothing(*_: Any, **__: Any) -> None:
    pass
