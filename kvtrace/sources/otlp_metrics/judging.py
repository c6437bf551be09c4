"""An export of metrics as it arrives, looked at before it is taken: how many points has it, and may they be?

What is set aside is what rows.py sets aside for its time, and what text.py cannot read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kvtrace.sources.dialects import LATEST_NS
from kvtrace.sources.otlp.batch import Gate
from kvtrace.sources.otlp.judging import Judged, guarded
from kvtrace.sources.otlp_metrics import text as as_text

if TYPE_CHECKING:
    from collections.abc import Iterator


def judged(body: bytes, *, text: bool) -> Judged:
    """Look at one body: JSON text, or protobuf."""
    return guarded(body, _judged, text=text)


def _judged(body: bytes, text: bool) -> Judged:  # noqa: FBT001 - called by guarded alone
    times = list(_text_times(body) if text else _times(body))
    return Judged(len(times), sum(not 0 < time_ns <= LATEST_NS for time_ns in times))


def _times(body: bytes) -> Iterator[int]:
    for group in MetricsData.FromString(body).resource_metrics:
        for scope in group.scope_metrics:
            for metric in scope.metrics:
                field = metric.WhichOneof("data")
                for point in getattr(metric, field).data_points if field else ():
                    yield point.time_unix_nano


def _text_times(body: bytes) -> Iterator[int]:
    for _resource, _metric, point in as_text.decode(body, Gate(keep=False, dropped=Counter())):
        yield 0 if point is None else point.time_ns
