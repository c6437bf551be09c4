"""Requests, where vLLM logs them (`--enable-log-requests`, and `--enable-log-outputs` for their ends).

    Received request R: params: ...                            begins
    Generated response R: output: ..., finish_reason: stop     ends (streams: the line `streaming complete`)
    Request R aborted. / Request R failed (bad request): ...

A request has a row only when a line ends it: without `--enable-log-outputs` no line does, and one that
merely is not seen to end is not one that hangs. It has no observer: whoever saw more of it is preferred.
What was asked and answered is counted and dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.forms import VLLM
from kvtrace.sources.engine_logs.rules import rule
from kvtrace.sources.records import text

if TYPE_CHECKING:
    import re

    from kvtrace.sources.engine_logs.forms import Record
    from kvtrace.sources.engine_logs.log import Log

_STATUS = {"abort": "aborted", "error": "error"}


def _received(log: Log, _record: Record, time_ns: int, found: re.Match[str]) -> None:
    name = text(found[1])
    if name is None:
        log.rows.refuse("requests without a usable name", op="request")
    else:
        log.wait(log.requests, name, time_ns)


def _answered(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    log.rows.drop("output texts")
    if found["part"] != "delta":
        reason = record.message.rpartition("finish_reason: ")[2][:16]
        _ended(log, record, time_ns, found["request"], _STATUS.get(reason, "ok"))


def _aborted(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    _ended(log, record, time_ns, found[1], "aborted")


def _failed(log: Log, record: Record, time_ns: int, found: re.Match[str]) -> None:
    _ended(log, record, time_ns, found[1], "error")


def _ended(log: Log, record: Record, time_ns: int, name: str, status: str) -> None:
    start_ns = log.requests.pop(name, None)
    if start_ns is None:
        log.rows.remark("ends of requests whose beginning the file does not have: no rows")
        return
    log.span(
        record, start_ns, max(start_ns, time_ns), "logged request", op="request", request_id=name,
        id_kind="external", status=status, evidence="native",
        outcome={"aborted": "cancelled", "error": "failed"}.get(status, "ok"),
    )  # fmt: skip


def _prompt(log: Log, _record: Record, _time_ns: int, _found: re.Match[str]) -> None:
    log.rows.drop("prompt texts")


RULES = (
    rule(VLLM, r"Received request (.{1,512}?): params: ", _received, start="Received"),
    rule(VLLM,
         r"Generated response (?P<request>.{1,512}?)(?: \(streaming (?P<part>delta|complete)\))?: output: ",
         _answered, start="Generated"),
    rule(VLLM, r"Request (.{1,512}?) aborted\.$", _aborted, start="Request"),
    rule(VLLM, r"Request (.{1,512}?) failed (?:\(|due to )", _failed, start="Request"),
    rule(VLLM, r"Request (.{1,512}?) (?:details: prompt: |JSON body: )", _prompt, start="Request"),
)  # fmt: skip
