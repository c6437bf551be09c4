"""What did a connector load inside a step, for whom, and since when could the step go on with it?

    start_load_kv        wait_for_layer_load ...    get_block_ids_with_load_errors    clear_connector_metadata
    submit = start, end  or the end of the last long one                              the rows are written

The connector loads for all of them in one call: when the copy of each began and ended nobody says, so every
row has the whole. It ends when `start_load_kv` returns, or when a step last waited for one of its layers:
what comes later than that, nobody was seen waiting for. Blocks that did not arrive have no names here: a load
alone in its step has failed, of several each may have. The scheduler knows better (invalid.py) and says so
under the same transfer_id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, products
from kvtrace.instrument.vllm.carrier import step_of

if TYPE_CHECKING:
    from typing import Any

_LOAD = recorder.shape(
    "span",
    ("request_id", "transfer_id", "submit_ns", "start_ns", "end_ns", "usable_ns", "tokens", "tier_from",
     "component", "rank", "outcome", "reason", "attributes.shared_by"),
    name="load_inside_step", op="load", tier_to="gpu", purpose="reuse", observer="worker", evidence="shim",
    attribution="request", clock="host",
)  # fmt: skip


class Loads:
    """The loads of one connector inside the current step."""

    __slots__ = ("connector", "end_ns", "named", "start_ns", "step", "waits")

    def __init__(
        self, connector: Any, start_ns: int, end_ns: int, carried: dict[str, Any], *, waits: bool
    ) -> None:
        self.connector = connector
        self.waits = waits
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.step = carried["step"]
        told = zip(carried["loads"], carried["attempts"], carried["tokens"], strict=True)
        self.named = {request_id: tokens for request_id, attempt, tokens in told if attempt is None}


_under_way: list[Loads] = []
_lost: list[int] = []


def began(connector: Any, start_ns: int, end_ns: int, *, waits: bool) -> None:
    """Its `start_load_kv` is over, and no connector inside it loaded the same.

    `waits`: it may wait for single layers later.
    """
    carried = step_of(connector)
    if carried is not None:
        _under_way.append(Loads(connector, start_ns, end_ns, carried, waits=waits))


def lost(blocks: int) -> None:
    """So many blocks did not arrive in this step."""
    _lost.append(blocks)


def step_over(last_layer_ns: int) -> None:
    """The step is done with its metadata; `last_layer_ns` is when it last waited for a layer, 0 if never."""
    alone = sum([len(loads.named) for loads in _under_way]) == 1
    outcome = "ok" if not _lost else "failed" if alone else "unknown"
    for loads in _under_way:
        end_ns = max(loads.end_ns, last_layer_ns if loads.waits else 0)
        usable_ns, reason = (None, "unknown") if _lost else (end_ns, None)
        for request_id, tokens in loads.named.items():
            recorder.record((
                _LOAD, request_id, f"{request_id}/load/step-{loads.step}", loads.start_ns, loads.start_ns,
                end_ns, usable_ns, tokens, products.tier(loads.connector),
                products.component(loads.connector), configuration.here().rank, outcome, reason,
                len(loads.named),
            ))  # fmt: skip
    _under_way.clear()
    _lost.clear()
