"""A scope or a call that lasts is a span that lasts: whatever is instrumented inside becomes its child.

caller's span ─► kvtrace.request (a scope: no operation, kvtrace.request.id) ─► kv.load (a call)
                                                                                 └─► HTTP GET, a copy ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import context, trace

from kvtrace import recorder
from kvtrace.instrument.scope import Scope

if TYPE_CHECKING:
    from contextvars import Token
    from typing import Any

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from kvtrace.instrument.autoinstrument.spans import Spans

SCOPE_NAME = "kvtrace.request"
_REQUEST, _MEMBERS, _TRANSFER = "kvtrace.request.id", "kvtrace.step.request_ids", "kvtrace.transfer.id"


class Following:
    """Begins spans of what begins."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, wanted: Scope, op: str | None, start_ns: int) -> Live | None:
        """The span of a scope (`op` None) or a call, current from now on; None when it cannot be made."""
        try:
            said: dict[str, Any] = {
                _REQUEST: wanted.request_id, _MEMBERS: wanted.members or None, _TRANSFER: wanted.transfer_id,
            }  # fmt: skip
            span = self._spans.tracer.start_span(
                SCOPE_NAME if op is None else f"kv.{op}",
                context=self._spans.around(),
                start_time=self._spans.unix(start_ns),
                attributes={name: value for name, value in said.items() if value is not None},
            )
            mine = Scope(
                wanted.request_id,
                members=wanted.members,
                transfer_id=wanted.transfer_id,
                covered=wanted.covered,
                span=span.get_span_context(),
            )
            return Live(self._spans, span, mine, context.attach(trace.set_span_in_context(span)))
        except Exception as error:  # noqa: BLE001 - never into the program
            self._spans.lose(error)
            return None


class Live:
    """A span under way, and the scope that its thread or task is in."""

    __slots__ = ("_span", "_spans", "_token", "scope")

    def __init__(self, spans: Spans, span: Span, scope: Scope, token: Token[Context]) -> None:
        self.scope = scope
        self._spans = spans
        self._span = span
        self._token = token

    def end(self, row: tuple[object, ...] | None = None, error: object = None) -> None:
        """It is over: `row` is what a recording would hold, whose end is the span's; never raises.

        What an error says is not kept: it may quote a prompt.
        """
        try:
            context.detach(self._token)
            end_ns = None
            if row is not None:
                end_ns = self._spans.fill(self._span, row)
            elif isinstance(error, Exception):
                self._spans.mark_failed(self._span)
            self._span.end(self._spans.unix(recorder.now() if end_ns is None else end_ns))
        except Exception as failure:  # noqa: BLE001 - never into the program
            self._spans.lose(failure)
