"""A torch without a GPU and without torch: tensors that say where they are, a host clock that tests move."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from kvtrace.instrument.torch_cuda.stand_in import StandIn


class Place:
    """torch.device."""

    def __init__(self, kind: str, index: int | None = None) -> None:
        self.type, self.index = kind, index


class Dtype:
    """torch.dtype."""


class Base:
    """torch._C.TensorBase: where the real methods live."""

    def __init__(self, elements: int = 4, width: int = 4, side: int = -1) -> None:
        self.elements, self.width = elements, width
        self._kvtrace_device = side
        self.calls: list[str] = []

    is_cuda = property(lambda self: self._kvtrace_device >= 0)

    def type(self) -> str:
        return "torch.FloatTensor"

    def get_device(self) -> int:
        return self._kvtrace_device

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return self.width

    def copy_(self, src: Base, *_: Any, **__: Any) -> Base:
        if src.elements != self.elements:
            raise RuntimeError("The size of tensor a must match the size of tensor b")
        self.calls.append("copy_")
        DEVICE[0].ran(self.elements * self.width)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Base:
        where = kwargs.get("device", args[0] if args else None)
        if isinstance(where, Dtype) or where is None:
            return self
        side = where._kvtrace_device if isinstance(where, Base) else _side(where)
        return self._moved(side)

    def cuda(self, device: Any = None) -> Base:
        return self._moved(0 if device is None else _side(device))

    def cpu(self) -> Base:
        return self._moved(-1)

    def _moved(self, side: int) -> Base:
        if side == self._kvtrace_device:
            return self
        DEVICE[0].ran(self.elements * self.width)
        return self.__class__(self.elements, self.width, side)


DEVICE: list[Any] = [None]


def _side(where: Any) -> int:
    if isinstance(where, int):
        return where
    if isinstance(where, str):
        kind, _, number = where.partition(":")
        where = Place(kind, int(number) if number else None)
    return -1 if where.type == "cpu" else where.index or 0


class Clocked(StandIn):
    """The stand-in on a clock that tests move: a call lasts `call_ns`, a copy `copy_ns` on its stream."""

    def __init__(self, told: Any, **kwargs: Any) -> None:
        super().__init__(lambda: told.clock, **kwargs)
        self.told = told
        self.call_ns = 1_000
        self.copy_ns = 50_000
        DEVICE[0] = self

    def ran(self, _bytes: int) -> None:
        self.work(self.default, self.copy_ns)
        self.told.clock += self.call_ns


def fake_torch() -> Any:
    """A module with its own Tensor class, so that no test wraps another's."""
    module = ModuleType("torch")
    module.Tensor = type("Tensor", (Base,), {})  # type: ignore[attr-defined]
    module.cuda = SimpleNamespace(_cudart=None)  # type: ignore[attr-defined]
    module.version = SimpleNamespace(cuda=None, hip=None)  # type: ignore[attr-defined]
    return module
