"""LMCache's call tracing, made cheaper: what it was asked is bound to names by a table, not by `inspect`.

Its decorator binds the arguments of each traced call with `Signature.bind_partial`, the dearest part of a
traced call by far, in the thread that serves a request. We are who switches tracing on, so that we pay: the
decorator's signature is replaced by one that answers alike. What it cannot answer the signature still does.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MARK = "__lmc_trace_qualname__"
"""What LMCache's decorator writes on each function that it wraps."""


class Bound:
    """What was passed, by name, defaults included: what the decorator uses of `inspect.BoundArguments`."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    def apply_defaults(self) -> None:
        """They are there already."""


class Table:
    """`bind_partial` of a signature of plain parameters.

    It applies defaults at once: LMCache's decorator always does so next.
    """

    __slots__ = ("_defaults", "_known", "_names", "_needed", "_signature")

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        defaults = {name: each.default for name, each in signature.parameters.items()}
        self._names = tuple(defaults)
        self._known = frozenset(defaults)
        self._needed = tuple(name for name in defaults if defaults[name] is Parameter.empty)
        self._defaults = defaults

    def bind_partial(self, /, *args: Any, **kwargs: Any) -> Any:
        """The same answer; what is unusual, and what is wrong, is the signature's own affair."""
        names, given = self._names, len(args)
        odd = given > len(names) or not kwargs.keys().isdisjoint(names[:given])
        if odd or not kwargs.keys() <= self._known or not kwargs.keys() >= {*self._needed[given:]}:
            return self._signature.bind_partial(*args, **kwargs)
        found = self._defaults.copy()
        found.update(zip(names, args, strict=False))
        found.update(kwargs)
        return Bound(found)


def hasten(owner: type) -> int:
    """Give every traced method of a class a table instead of its signature; of how many."""
    return sum(_replaced(function) for each in list(vars(owner).values()) for function in _wrappers(each))


def _wrappers(function: Any) -> Iterator[Any]:
    """LMCache's wrapper may itself be wrapped, by us or by others."""
    while function is not None:
        if hasattr(function, MARK) and "sig" in getattr(
            getattr(function, "__code__", None), "co_freevars", ()
        ):
            yield function
        function = getattr(function, "__wrapped__", None)


def _replaced(wrapper: Any) -> bool:
    cell = wrapper.__closure__[wrapper.__code__.co_freevars.index("sig")]
    signature = cell.cell_contents
    if type(signature) is not Signature:
        return False
    plain = (Parameter.POSITIONAL_OR_KEYWORD,)
    if any(each.kind not in plain for each in signature.parameters.values()):
        return False
    cell.cell_contents = Table(signature)
    return True
