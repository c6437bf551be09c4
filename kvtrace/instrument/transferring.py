"""One row a call of a function that moves state: a decorator for authors of connectors.

    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host", component="mystore.disk")
    def fetch(keys, *, request_id, tokens):
        ...
        return {"bytes": len(data)}

    a row of op load: from the call to its return, bytes of what it returned, tokens and request_id of its
    arguments; `outcome` ok, failed or cancelled when it raises (which goes on as it is)

`bytes`, `tokens`, `blocks` and `request_id` come from the value returned (a mapping's key or an attribute; a
plain int is bytes), else from an argument of that name, else from `with kvtrace.request(id):`; what is named
nowhere is null. Arguments called otherwise are named: `names={"bytes": "size"}`. Works on functions,
methods and `async def`. Copies to or from the GPU inside a call share its `transfer_id`: where they are the
same hop, the copy, which is nearer, counts and the call does not. Name the request in an argument or a scope,
then, not only in what is returned. Without a recording a call costs one check.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.wrapping import lose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

P = ParamSpec("P")
R = TypeVar("R")
COROUTINE = 0x80
"""Flag of the code of an `async def`; importing inspect for it costs a start more than this file."""
VALUES = ("request_id", "bytes", "tokens", "blocks")
_COLUMNS = (
    *VALUES, "transfer_id", "name", "start_ns", "end_ns", "outcome", "reason", "attribution", "device",
)  # fmt: skip


def transfer(
    *,
    op: str,
    tier_from: str,
    tier_to: str,
    component: str | None = None,
    observer: str = "client",
    device: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: each call of the function is one row of `op` (load or store) between two tiers.

    `names` says what an argument is called that holds one of request_id, bytes, tokens, blocks.
    """
    constants = {"op": op, "tier_from": tier_from, "tier_to": tier_to, "observer": observer}
    if component is not None:
        constants["component"] = component
    shape = recorder.shape("span", _COLUMNS, clock="host", evidence="shim", **constants)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        call = Call(function, shape, op, device, dict(names or {}))

        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            begun = call.begin(args, kwargs)
            if begun is None:
                return function(*args, **kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                call.end(begun, None, error)
                raise
            call.end(begun, result, None)
            return result

        @wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            begun = call.begin(args, kwargs)
            if begun is None:
                return await cast("Any", function)(*args, **kwargs)
            try:
                result = await cast("Any", function)(*args, **kwargs)
            except BaseException as error:
                call.end(begun, None, error)
                raise
            call.end(begun, result, None)
            return result

        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        return cast("Callable[P, R]", awaited) if flags & COROUTINE else wrapped

    return decorate


class Call:
    """What is known of one decorated function. Neither method raises."""

    def __init__(
        self,
        function: Callable[..., Any],
        shape: recorder.Shape,
        op: str,
        device: str | None,
        names: dict[str, str],
    ) -> None:
        code = getattr(function, "__code__", None)
        places = () if code is None else code.co_varnames[: code.co_argcount]
        asked = {value: names.get(value, value) for value in VALUES}
        self._arguments = {
            value: (name, places.index(name) if name in places else None) for value, name in asked.items()
        }
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        self._shape = shape
        self._op = op
        self._device = device

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Before the call; None when nothing records."""
        try:
            if not recorder.enabled():
                return None
            found = {value: self._argument(value, args, kwargs) for value in VALUES}
            outer = scope.current()
            if found["request_id"] is None and outer is not None:
                found["request_id"] = outer.request_id
            transfer_id = (outer and outer.transfer_id) or f"{self._name}/{recorder.next_id():x}"
            mine, start_ns = scope.Scope(found["request_id"], transfer_id=transfer_id), recorder.now()
            followed = None if scope.follow is None else scope.follow(mine, self._op, start_ns)
            token = scope.enter(mine if followed is None else followed.scope)
        except Exception as error:  # noqa: BLE001 - never into the engine
            lose(self._name, error)
            return None
        return found, transfer_id, token, start_ns, followed

    def end(self, begun: Any, result: Any, error: BaseException | None) -> None:
        """After the call: its row."""
        try:
            found, transfer_id, token, start_ns, followed = begun
            end_ns = recorder.now()
            scope.leave(token)
            if result is not None:
                found = {value: _returned(result, value, had) for value, had in found.items()}
            told = (found["request_id"], *(_number(found[value]) for value in VALUES[1:]))
            attribution = "operation" if found["request_id"] is None else "request"
            outcome, reason = ("ok", None) if error is None else _fate(error)
            row = (
                self._shape, *told, transfer_id, self._name, start_ns, end_ns, outcome, reason, attribution,
                self._device,
            )  # fmt: skip
            if followed is None:
                recorder.record(row)
            else:
                followed.end(row, error)
        except Exception as failure:  # noqa: BLE001 - never into the engine
            lose(self._name, failure)

    def _argument(self, value: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name, place = self._arguments[value]
        found = kwargs.get(name)
        if found is None and place is not None and place < len(args):
            found = args[place]
        return found


def _returned(result: Any, value: str, had: Any) -> Any:
    """What a result says of one value, else what was known before."""
    if isinstance(result, dict):
        said = result.get(value)
    elif isinstance(result, int):
        said = result if value == "bytes" and not isinstance(result, bool) else None
    elif isinstance(result, (str, bytes, bytearray, list, tuple)):
        said = None
    else:
        said = getattr(result, value, None)
        said = None if callable(said) else said
    return had if said is None else said


def _number(value: Any) -> int | None:
    """Bytes, tokens and blocks are counted: anything else that bears such a name is not meant."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _fate(error: BaseException) -> tuple[str, str | None]:
    if type(error).__name__ in ("CancelledError", "KeyboardInterrupt", "GeneratorExit"):
        return "cancelled", None
    if isinstance(error, TimeoutError):
        return "timeout", "timeout"
    return "failed", "io" if isinstance(error, OSError) else "unknown"
