"""What did a worker report of its asynchronous transfers, and when did it first know?

    metadata bound       start_load_kv                    get_transfer_results names the request
    carrier brings ids ─► the worker begins ───────────────► end of the row
                          start                              finished_recving | finished_sending | failed

A row is no copy: its op is null, and it is in no sum. Between its end and the `end_ns` of the scheduler's
load lies what the report took on its way; between that load's submit and its start what the order took. Of a
send no worker is told when it was asked for: its row is a point. Of a connector of several the parent's word
counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration, products
from kvtrace.instrument.vllm.carrier import step_of
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from typing import Any

NAME = "kv_transfer_report"
_REPORT = recorder.shape(
    "span",
    ("request_id", "transfer_id", "start_ns", "end_ns", "component", "rank", "outcome",
     "attributes.direction"),
    name=NAME, observer="worker", evidence="shim", attribution="request",
)  # fmt: skip
_MOST = 100_000
"""Loads begun and not reported: more are those of requests that nobody will report."""
_inside: list[Any] = []
_begun: dict[str, tuple[int, str]] = {}


def instrument(connector: type) -> None:
    """Wrap where a worker begins its loads, and where it reports what has ended."""
    around(connector, "start_load_kv", _entered, _left, _left)
    around(connector, "get_transfer_results", _entered, _reported, _left)


def _entered(connector: Any, *_: Any, **__: Any) -> int:
    """When the call began; the loads that came with this step have begun then."""
    now = recorder.now()
    carried = None if _inside else step_of(connector)
    if carried is not None:
        for request_id, attempt in zip(carried["loads"], carried["attempts"], strict=True):
            if attempt is not None and len(_begun) < _MOST:
                _begun.setdefault(request_id, (now, f"{request_id}/load/{attempt}"))
    _inside.append(connector)
    return now


def _left(_token: int, _result: Any, *_: Any, **__: Any) -> None:
    _inside.pop()


def _reported(token: int, results: Any, connector: Any, *_: Any, **__: Any) -> None:
    """A row for each request that the worker names for the first time."""
    _inside.pop()
    if _inside:
        return
    failed = getattr(results, "failed_recving", None) or ()
    received = getattr(results, "finished_recving", None) or ()
    sent = getattr(results, "finished_sending", None) or ()
    if not (received or sent):
        return
    now = recorder.now()
    name, rank = products.component(connector), configuration.here().rank
    for request_id in received:
        start_ns, transfer_id = _begun.pop(request_id, (token, None))
        outcome = "failed" if request_id in failed else "ok"
        recorder.record((_REPORT, request_id, transfer_id, start_ns, now, name, rank, outcome, "receive"))
    for request_id in sent:
        recorder.record((_REPORT, request_id, None, token, now, name, rank, "ok", "send"))
