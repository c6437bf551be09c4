"""An export of metrics as it arrives, looked at before it is taken: how many points has it, and may they be?

What is set aside is what rows.py sets aside for its time, and what text.py cannot read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kvtrace.sources.dialects import LATEST_NS
from kvtrace.sources.otlp.batch import Gate
from kvtrace.sources.otlp.json_attributes import MISTAKES
from kvtrace.sources.otlp.json_lines import reason
from kvtrace.sources.otlp.judging import HURTS, Judged, hurts
from kvtrace.sources.otlp.protobuf_loop import CORRUPT
from kvtrace.sources.otlp_metrics import text as as_text

if TYPE_CHECKING:
    from collections.abc import Iterator


def judged(body: bytes, *, text: bool) -> Judged:
    """Look at one body: JSON text, or protobuf."""
    if hurts(body, text=text):
        return Judged(mistake=HURTS)
    if text and not body.strip():
        return Judged(mistake="an empty body")
    try:
        times = list(_text_times(body) if text else _times(body))
    except DecodeError:
        return Judged(mistake=CORRUPT)
    except MISTAKES as error:
        return Judged(mistake=reason(error))
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
