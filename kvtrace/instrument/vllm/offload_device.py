"""When did the device begin and end a copy of native offloading, on the host's clock?

    transfer_async    vLLM records two events of its own around the copy       here: an anchor, if one is due
    get_finished      vLLM sees the second one over and keeps both for reuse   here: both are read before that

The events are vLLM's: nothing is recorded on its streams, nothing waits. An anchor is an event on a stream
of ours (torch_cuda/anchors.py); one that the device does not get to at once is looked at again with a later
copy. Without an anchor a copy keeps the duration that vLLM reports, and ends when that is reported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.torch_cuda.anchors import Anchors
from kvtrace.instrument.torch_cuda.cuda import Cuda
from kvtrace.instrument.vllm.offload_rows import DEVICE
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

PATIENCE_NS = 30_000
"""So long an engine's thread looks whether a fresh anchor is over."""


class Device(Cuda):
    """The device with events of the class that vLLM uses: times are only taken between two of one class."""

    def event(self, _index: int) -> Any:
        """A new event that takes times."""
        return self._torch.Event(enable_timing=True)


class Handlers:
    """What the handlers of this process need: a device, and its anchors."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._anchors: dict[int, Anchors] = {}

    def submitted(self, _accepted: Any, handler: Any, *_: Any, **__: Any) -> None:
        """A copy was put on its stream."""
        index = self._index(handler)
        if index is not None:
            if index not in self._anchors:
                self._anchors[index] = Anchors(self.device, index, patience_ns=PATIENCE_NS)
            self._anchors[index].renew()

    def asked(self, handler: Any, *_: Any, **__: Any) -> dict[int, Any]:
        """Before vLLM looks what is over: job -> its two events and its stream."""
        return {each.job_id: each for each in handler._transfers}  # noqa: SLF001 - no public way

    def found(self, under_way: dict[int, Any], results: Any, handler: Any, *_: Any, **__: Any) -> None:
        """The events of what is over are read while nobody has used them again."""
        if not results:
            return
        index = self._index(handler)
        anchors = None if index is None else self._anchors.get(index)
        if index is None or anchors is None:
            return
        for result in results:
            transfer = under_way.get(result.job_id)
            if transfer is None:
                continue
            seen = anchors.times(recorder.now(), transfer.start_event, transfer.end_event)
            if seen is not None:
                stream = f"{transfer.stream.cuda_stream:#x}"
                vars(result)[DEVICE] = (*seen, self.device.name(index), stream)

    def _index(self, handler: Any) -> int | None:
        """The device of a handler's blocks; None for one whose events are not CUDA's."""
        if self.device is None:
            self.device = Device(sys.modules["torch"])
        tensors = handler.src_tensors if handler.gpu_to_cpu else handler.dst_tensors
        index = self.device.side(tensors[0]) if tensors else -1
        return None if index < 0 else int(index)


def install(module: ModuleType, device: Any = None) -> None:
    """Wrap the one handler that copies with device events."""
    handlers = Handlers(device)
    owner = module.SingleDirectionOffloadingHandler
    after(owner, "transfer_async", handlers.submitted)
    around(owner, "get_finished", handlers.asked, handlers.found)
