"""OTLP metrics in protobuf -> points, through the official classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kvtrace.sources.dialects import resources
from kvtrace.sources.otlp import protobuf_loop, values
from kvtrace.sources.otlp_metrics import points
from kvtrace.sources.otlp_metrics.points import Metric, Point, Who

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from kvtrace.sources.otlp.batch import Gate

_KINDS = {
    "gauge": points.GAUGE, "sum": points.SUM, "histogram": points.HISTOGRAM,
    "exponential_histogram": points.EXPONENTIAL, "summary": points.SUMMARY,
}  # fmt: skip


def decode(payload: bytes, gate: Gate) -> Iterator[tuple[dict[str, str], Metric, Point]]:
    """Every point of an ExportMetricsServiceRequest (MetricsData is the same), with its resource.

    Raises:
        DecodeError: the payload is corrupt or cut; before the first point.
    """
    return _points(MetricsData.FromString(payload), gate)


def _points(message: MetricsData, gate: Gate) -> Iterator[tuple[dict[str, str], Metric, Point]]:
    for group in message.resource_metrics:
        resource = values.resource(protobuf_loop.pairs(group.resource.attributes, gate), gate)
        process = resources.process_of(resource)
        for scope in group.scope_metrics:
            who = Who(process, scope.scope.name)
            for found in scope.metrics:
                field = found.WhichOneof("data")
                if field is None:
                    continue
                data = getattr(found, field)
                metric = Metric(
                    who, found.name, found.unit, _KINDS[field],
                    getattr(data, "aggregation_temporality", 0), getattr(data, "is_monotonic", False),
                )  # fmt: skip
                for point in data.data_points:
                    yield resource, metric, _point(point, metric.kind, gate)


def _attributes(pairs: Iterable[KeyValue], gate: Gate) -> points.Pairs:
    return points.texts(protobuf_loop.pairs(pairs, gate), gate)


def _point(point: Any, kind: str, gate: Gate) -> Point:
    attributes = _attributes(point.attributes, gate)
    bare = Point(attributes, point.start_time_unix_nano, point.time_unix_nano, point.flags)
    if kind in (points.GAUGE, points.SUM):
        field = point.WhichOneof("value")
        value = None if field is None else float(getattr(point, field))
        return bare._replace(value=value, examples=_examples(point.exemplars))
    bare = bare._replace(observed=float(point.count))
    if kind == points.SUMMARY:
        quantiles = tuple((float(item.quantile), float(item.value)) for item in point.quantile_values)
        return bare._replace(total=point.sum, quantiles=quantiles)
    total, low, high = (
        getattr(point, name) if point.HasField(name) else None for name in ("sum", "min", "max")
    )
    bare = bare._replace(total=total, low=low, high=high, examples=_examples(point.exemplars))
    if kind == points.EXPONENTIAL:
        return bare
    return bare._replace(bounds=tuple(point.explicit_bounds), counts=tuple(map(float, point.bucket_counts)))


def _examples(exemplars: Any) -> tuple[int, int]:
    return len(exemplars), sum(any(item.trace_id) for item in exemplars)
