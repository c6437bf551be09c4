"""The real device: what is asked of torch and of the CUDA runtime, all in one place.

Nothing here initialises CUDA: it is asked only about tensors that are on a device already. Nothing
synchronises. The runtime library is the one that this process has loaded, through ctypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

HOST = -1
RELAXED = 2
"""cudaStreamCaptureModeRelaxed: this thread's calls do not break captures of others."""
IN_HOST, ON_DEVICE = (0, 1), 2
"""cudaMemoryType: unregistered and host; device. Managed memory has no side."""
_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class Cuda:
    """Devices of torch.cuda."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._runtime: Any = None
        self._searched = False
        self._captures = 0

    def side(self, tensor: Any) -> int:
        """Index of the device a tensor is on, HOST for none."""
        return tensor.get_device() if tensor.is_cuda else HOST

    def real(self, tensor: Any) -> bool:
        """Whether it has memory: a compiler's stand-in for a tensor has none."""
        return type(tensor).__name__ != "FakeTensor"

    def current(self) -> int:
        """Index of the device that `cuda` alone means."""
        return int(self._cuda.current_device())

    def name(self, index: int) -> str:
        """The device as torch names it."""
        return f"cuda:{index}"

    def stream(self, index: int) -> tuple[int, Any]:
        """Handle and object of the stream that this thread's next copy uses."""
        stream = self._cuda.current_stream(index)
        return stream.cuda_stream, stream

    def own_stream(self, index: int) -> Any:
        """A stream on which nothing else runs."""
        return self._cuda.Stream(device=index)

    def external_stream(self, handle: int, index: int) -> Any:
        """The stream of a handle that another library made."""
        return self._cuda.ExternalStream(handle, device=index)

    def event(self, _index: int) -> Any:
        """A new event that takes times; torch makes it on the device of its first record."""
        return self._cuda.Event(enable_timing=True)

    def capturing(self) -> bool:
        """Whether this thread's stream only records a graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def on(self, index: int) -> Any:
        """A context with this device current: a runtime call must not make a context on device 0."""
        return self._cuda.device(index)

    def capture_begins(self) -> None:
        """Some thread begins to capture a graph."""
        self._captures += 1

    def capture_ends(self) -> None:
        """Some thread has captured its graph."""
        self._captures = max(0, self._captures - 1)

    def captures(self) -> bool:
        """Whether some thread captures a graph now."""
        return self._captures > 0

    def relax_thread(self) -> bool:
        """Let this thread query events while others capture; False when the runtime cannot be asked."""
        import ctypes

        runtime = self._library()
        if runtime is None:
            return False
        mode = ctypes.c_int(RELAXED)
        return runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0

    def pointer_side(self, pointer: int) -> int | None:
        """Index of the device whose memory a pointer is in, HOST for none; None when nobody can say."""
        import ctypes

        runtime = self._library()
        if runtime is None:
            return None
        found = (ctypes.c_int * 64)()  # type, device, two pointers, and room for what CUDA 13 and later add
        if runtime.cudaPointerGetAttributes(ctypes.byref(found), ctypes.c_void_p(pointer)) != 0:
            return None
        if found[0] == ON_DEVICE:
            return found[1]
        return HOST if found[0] in IN_HOST else None

    def _library(self) -> Any:
        """The CUDA runtime of this process, if it has one that is loaded."""
        if not self._searched:
            self._searched = True
            self._runtime = _loaded()
        return self._runtime


def _loaded() -> Any:
    import ctypes
    import os

    for name in (None, *_LIBRARIES):
        try:
            library = ctypes.CDLL(name, mode=os.RTLD_LAZY | (0 if name is None else os.RTLD_NOLOAD))
            if library.cudaThreadExchangeStreamCaptureMode and library.cudaPointerGetAttributes:
                return library
        except (OSError, AttributeError):
            continue
    return None
