"""Copies of tensors between host and device: Tensor.copy_, .to, .cuda, .cpu.

A copy that stays on its side costs one check and gives no row. Bytes are what crosses: elements of the result
in the width of the tensor on the device (torch converts there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument import scope
from kvtrace.instrument.torch_cuda.cuda import HOST
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kvtrace.instrument.torch_cuda.copies import Copies
    from kvtrace.instrument.torch_cuda.pairs import Pair

_NOWHERE = -2
"""The call moves nothing."""


def install(torch: Any, copies: Copies) -> None:
    """Wrap the four methods of this torch."""
    target, (before, after, failed) = torch.Tensor, _copy(copies)
    around(target, "copy_", before, after, failed)
    for name, where in (("to", _to), ("cuda", _cuda), ("cpu", _cpu)):
        around(target, name, *_moving(copies, name, where))


def _copy(copies: Copies) -> tuple[Callable[..., Any], ...]:
    device, every, current = copies.device, copies.every_tensor, scope.current
    side = device.side

    def copy_before(target: Any, src: Any, *_: Any, **__: Any) -> Any:
        if not every and current() is None:
            return SKIP
        to, origin = side(target), side(src)
        if (to < 0) is (origin < 0) or not device.real(target):
            return SKIP
        return copies.begin("copy_", "load" if origin < 0 else "store", max(to, origin))

    def copy_after(pair: Pair, target: Any, _self: Any, src: Any, *_: Any, **__: Any) -> None:
        copies.end(pair, _crossing(target, target if pair.op == "load" else src))

    return copy_before, copy_after, _failed(copies)


def _moving(copies: Copies, name: str, where: Callable[..., int]) -> tuple[Callable[..., Any], ...]:
    device, every, current = copies.device, copies.every_tensor, scope.current
    side = device.side

    def move_before(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not every and current() is None:
            return SKIP
        goal, origin = where(device, args, kwargs), side(tensor)
        if goal == _NOWHERE or (goal < 0) is (origin < 0) or not device.real(tensor):
            return SKIP
        return copies.begin(name, "load" if origin < 0 else "store", max(goal, origin))

    def move_after(pair: Pair, result: Any, tensor: Any, *_: Any, **__: Any) -> None:
        if result is tensor:
            copies.drop(pair)
        else:
            copies.end(pair, _crossing(result, result if pair.op == "load" else tensor))

    return move_before, move_after, _failed(copies)


def _failed(copies: Copies) -> Callable[..., None]:
    def copy_failed(pair: Pair, _error: BaseException, *_: Any, **__: Any) -> None:
        copies.drop(pair)

    return copy_failed


def _crossing(result: Any, on_device: Any) -> int:
    return int(result.numel() * on_device.element_size())


def _cpu(_device: Any, _args: Any, _kwargs: Any) -> int:
    return HOST


def _cuda(device: Any, args: Any, kwargs: Any) -> int:
    where = args[0] if args else kwargs.get("device")
    return int(device.current()) if where is None else _place(device, where)


def _to(device: Any, args: Any, kwargs: Any) -> int:
    """`to(device)`, `to(other)`, `to(dtype)`, and all of them by keyword."""
    where = kwargs.get("device")
    if where is None:
        where = args[0] if args else kwargs.get("other")
    return _NOWHERE if where is None else _place(device, where)


def _place(device: Any, where: Any) -> int:
    """What a device, its name, its number or another tensor means; _NOWHERE for a dtype."""
    if isinstance(where, str):
        name, _, number = where.partition(":")
        return _index(device, name, int(number) if number else None)
    kind = getattr(where, "type", None)  # of a device its name, of a tensor a method
    if isinstance(kind, str):
        return _index(device, kind, where.index)
    if isinstance(where, int):
        return where
    return _NOWHERE if kind is None else int(device.side(where))


def _index(device: Any, kind: str, index: int | None) -> int:
    if kind == "cpu":
        return HOST
    if kind != "cuda":
        return _NOWHERE
    return int(device.current()) if index is None else index
