"""OTLP logs: what people and programs wrote. They are counted and dropped; nothing of them is looked at."""

from __future__ import annotations

import msgspec
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData

from kvtrace.sources.otlp.judging import Judged, guarded

NAME = "otlp.logs"
"""What dropped log records are counted under."""
DROPPED = "{} log records came: what they say is content, counted and not kept"
"""What a reader is told of them."""


class Scope(msgspec.Struct, gc=False, rename="camel"):
    """Records of one scope, each as it is."""

    log_records: list[msgspec.Raw] | None = None


class Resource(msgspec.Struct, gc=False, rename="camel"):
    """Records of one resource."""

    scope_logs: list[Scope] | None = None


class Body(msgspec.Struct, gc=False, rename="camel"):
    """ExportLogsServiceRequest."""

    resource_logs: list[Resource] | None = None


_BODY = msgspec.json.Decoder(Body, strict=False)


def judged(body: bytes, *, text: bool) -> Judged:
    """How many records an export has; none of them is impossible, because none becomes a row."""
    return guarded(body, lambda body, text: Judged(_count_text(body) if text else _count(body)), text=text)


def _count(body: bytes) -> int:
    groups = LogsData.FromString(body).resource_logs
    return sum(len(scope.log_records) for group in groups for scope in group.scope_logs)


def _count_text(body: bytes) -> int:
    groups = _BODY.decode(body).resource_logs or ()
    return sum(len(scope.log_records or ()) for group in groups for scope in group.scope_logs or ())
