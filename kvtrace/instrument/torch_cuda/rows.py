"""Which rows does a copy between host and device give?

Load is host to device, store device to host. Raw monotonic nanoseconds: `submit_ns` is the host's call,
`start_ns` and `end_ns` are the device's events on the host's clock (mapping.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import ranks

if TYPE_CHECKING:
    from kvtrace.instrument.scope import Scope
    from kvtrace.instrument.torch_cuda.pairs import Pair

TIERS = {"load": ("host", "gpu"), "store": ("gpu", "host")}
_COLUMNS = (
    "name", "transfer_id", "submit_ns", "start_ns", "end_ns", "bytes", "blocks", "device", "stream",
    "rank",
)  # fmt: skip


def _shape(op: str, who: tuple[str, ...], attribution: str) -> recorder.Shape:
    origin, goal = TIERS[op]
    return recorder.shape(
        "span", (*_COLUMNS, *who), op=op, outcome="ok", tier_from=origin, tier_to=goal, clock="gpu",
        observer="worker", evidence="shim", attribution=attribution,
    )  # fmt: skip


OF_REQUEST = {op: _shape(op, ("request_id",), "request") for op in TIERS}
OF_MEMBERS = {op: _shape(op, ("members",), "operation") for op in TIERS}
OF_NOBODY = {op: _shape(op, (), "aggregate") for op in TIERS}


def write(pair: Pair, start_ns: int, end_ns: int, device: str, stream: str) -> None:
    """Record one copy that has ended."""
    scope, op = pair.scope, pair.op
    transfer_id = None if scope is None else scope.transfer_id
    told = (
        pair.name, transfer_id, pair.submit_ns, start_ns, end_ns, pair.bytes, pair.blocks, device, stream,
        ranks.mine(),
    )  # fmt: skip
    if scope is None or (scope.request_id is None and not scope.members):
        recorder.record((OF_NOBODY[op], *told))
    elif scope.members:
        recorder.record((OF_MEMBERS[op], *told, _members(scope)))
    else:
        recorder.record((OF_REQUEST[op], *told, scope.request_id))


def _members(scope: Scope) -> tuple[tuple[object, ...], ...]:
    nothing = (None,) * len(scope.members)
    return (scope.members, nothing, nothing, nothing, nothing)
