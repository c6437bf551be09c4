"""The signals of OTLP that are taken: where they arrive, how they are looked at, and how they are answered.

traces    become spans
metrics   become rows of `metric`
logs      are what people and programs wrote: counted and dropped at the door, so that exporters of all
          three signals need no exception for us
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from kvtrace.sources.otlp import judging, logs
from kvtrace.sources.otlp_metrics import judging as metrics_judging

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.sources.otlp.judging import Judged

_PACKAGE = "/opentelemetry.proto.collector"


class Signal(NamedTuple):
    """One signal.

    records: what one of it is called
    path, call: where it arrives over HTTP and over gRPC
    judged: looks at a body before it is taken
    response, rejected, camel: the answer, and the field that says how many were set aside, in both spellings
    impossible: why they were
    """

    records: str
    path: str
    call: str
    judged: Callable[..., Judged]
    response: Any
    rejected: str
    camel: str
    impossible: str


TRACES = Signal(
    "spans", "/v1/traces", f"{_PACKAGE}.trace.v1.TraceService/Export", judging.judged,
    ExportTraceServiceResponse, "rejected_spans", "rejectedSpans",
    "spans that end before they start, or whose times are outside of 64-bit nanoseconds",
)  # fmt: skip
METRICS = Signal(
    "points", "/v1/metrics", f"{_PACKAGE}.metrics.v1.MetricsService/Export", metrics_judging.judged,
    ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints",
    "points that say what cannot be, or whose time is outside of 64-bit nanoseconds",
)  # fmt: skip
LOGS = Signal(
    "log records", "/v1/logs", f"{_PACKAGE}.logs.v1.LogsService/Export", logs.judged,
    ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords", "",
)  # fmt: skip
SIGNALS = (TRACES, METRICS, LOGS)
BY_PATH = {signal.path: signal for signal in SIGNALS}
BY_CALL = {signal.call: signal for signal in SIGNALS}
