"""OTLP metrics in JSON -> points: the shape of it, numbers as strings or as numbers, names in both spellings.

A body that is no JSON, or of another shape, is lost; a point that says what cannot be costs itself. Nothing
of its text gets into the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.sources.dialects import resources
from kvtrace.sources.otlp import json_bodies, values
from kvtrace.sources.otlp.json_attributes import MISTAKES
from kvtrace.sources.otlp_metrics import points
from kvtrace.sources.otlp_metrics.points import Metric, Point, Who

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.otlp.batch import Gate

_Attributes = list[json_bodies.KeyValue] | None
_Number = int | float | str | None
_WIDEST = 2**64


class Exemplar(msgspec.Struct, gc=False, rename="camel"):
    """An example of what was counted: only whether it names a trace is looked at."""

    trace_id: str | None = None


class Quantile(msgspec.Struct, gc=False):
    """One quantile of a summary."""

    quantile: _Number = None
    value: _Number = None


class DataPoint(msgspec.Struct, gc=False, rename="camel"):
    """A point of any kind: each kind has some of these."""

    attributes: _Attributes = None
    start_time_unix_nano: int | None = None
    time_unix_nano: int | None = None
    flags: int | None = None
    as_int: int | None = None
    as_double: _Number = None
    count: int | None = None
    sum: _Number = None
    min: _Number = None
    max: _Number = None
    bucket_counts: list[int] | None = None
    explicit_bounds: list[_Number] | None = None
    quantile_values: list[Quantile] | None = None
    exemplars: list[Exemplar] | None = None


class Data(msgspec.Struct, gc=False, rename="camel"):
    """The points of a metric, and how they count."""

    data_points: list[DataPoint] | None = None
    aggregation_temporality: int | str | None = None
    is_monotonic: bool | None = None


class Named(msgspec.Struct, gc=False, rename="camel"):
    """A metric: one of its members holds the points."""

    name: str | None = None
    unit: str | None = None
    gauge: Data | None = None
    sum: Data | None = None
    histogram: Data | None = None
    exponential_histogram: Data | None = None
    summary: Data | None = None


class ScopeMetrics(msgspec.Struct, gc=False, rename="camel"):
    """Metrics of one instrumentation scope."""

    scope: json_bodies.Scope | None = None
    metrics: list[Named] | None = None


class ResourceMetrics(msgspec.Struct, gc=False, rename="camel"):
    """Metrics of one resource."""

    resource: json_bodies.Resource | None = None
    scope_metrics: list[ScopeMetrics] | None = None


class Body(msgspec.Struct, gc=False, rename="camel"):
    """ExportMetricsServiceRequest, or MetricsData: the same."""

    resource_metrics: list[ResourceMetrics] | None = None


_BODIES = msgspec.json.Decoder(list[Body], strict=False)
_BODY = msgspec.json.Decoder(Body, strict=False)
_ANYTHING = msgspec.json.Decoder()
_SNAKE = re.compile(r"_([a-z])")
_MEMBERS = (
    ("gauge", points.GAUGE), ("sum", points.SUM), ("histogram", points.HISTOGRAM),
    ("exponential_histogram", points.EXPONENTIAL), ("summary", points.SUMMARY),
)  # fmt: skip
_TEMPORALITIES = {"AGGREGATION_TEMPORALITY_DELTA": 1, "AGGREGATION_TEMPORALITY_CUMULATIVE": 2, "1": 1, "2": 2}


def decode(payload: bytes, gate: Gate) -> Iterator[tuple[dict[str, str], Metric, Point | None]]:
    """Every point of a body, or of an array of bodies, with its resource; None for one that cannot be.

    Raises:
        one of json_attributes.MISTAKES: it is no JSON, or of another shape.
    """
    for body in bodies(payload.strip()):
        for group in body.resource_metrics or ():
            own = group.resource.attributes if group.resource else None
            resource = values.resource(json_bodies.pairs(own, gate), gate)
            process = resources.process_of(resource)
            for scope in group.scope_metrics or ():
                who = Who(process, (scope.scope.name if scope.scope else None) or "")
                for found in scope.metrics or ():
                    yield from ((resource, *one) for one in _metric(found, who, gate))


def bodies(text: bytes) -> list[Body]:
    """Every body of a text: one object, or an array of them.

    Raises:
        one of json_attributes.MISTAKES: it is no JSON, or of another shape.
    """
    if b'"resource_metrics"' in text:
        text = msgspec.json.encode(_camel(_ANYTHING.decode(text)))
    found = _BODIES.decode(text) if text[:1] == b"[" else [_BODY.decode(text)]
    if any(body.resource_metrics is None for body in found) and text != b"{}":
        raise json_bodies.NotOtlpError("valid JSON, but no resourceMetrics in it")
    return found


def _camel(value: Any) -> Any:
    """Every name in the usual spelling: OTLP has no object whose keys a user chooses."""
    if isinstance(value, dict):
        return {_SNAKE.sub(lambda match: match[1].upper(), key): _camel(item) for key, item in value.items()}
    return [_camel(item) for item in value] if isinstance(value, list) else value


def _metric(found: Named, who: Who, gate: Gate) -> Iterator[tuple[Metric, Point | None]]:
    for member, kind in _MEMBERS:
        data: Data | None = getattr(found, member)
        if data is not None:
            said = data.aggregation_temporality
            temporality = _TEMPORALITIES.get(said, 0) if isinstance(said, str) else said or 0
            metric = Metric(
                who, found.name or "", found.unit or "", kind, temporality, bool(data.is_monotonic)
            )
            for point in data.data_points or ():
                try:
                    made = _point(point, kind, gate)
                except MISTAKES:
                    made = None
                yield metric, made
            return


def _point(point: DataPoint, kind: str, gate: Gate) -> Point:
    start, end = point.start_time_unix_nano or 0, point.time_unix_nano or 0
    if not 0 <= min(start, end) <= max(start, end) < _WIDEST:
        raise OverflowError
    named = points.texts(json_bodies.pairs(point.attributes, gate), gate)
    exemplars = point.exemplars or ()
    traced = sum(bool((item.trace_id or "").strip("0")) for item in exemplars)
    bare = Point(named, start, end, point.flags or 0, examples=(len(exemplars), traced))
    if kind in (points.GAUGE, points.SUM):
        return bare._replace(value=_number(point.as_double if point.as_int is None else point.as_int))
    bare = bare._replace(observed=float(point.count or 0), total=_number(point.sum))
    if kind == points.SUMMARY:
        found = point.quantile_values or ()
        quantiles = tuple((_number(item.quantile) or 0.0, _number(item.value) or 0.0) for item in found)
        return bare._replace(total=bare.total or 0.0, quantiles=quantiles)
    bare = bare._replace(low=_number(point.min), high=_number(point.max))
    if kind == points.EXPONENTIAL:
        return bare
    bounds = tuple(_number(bound) or 0.0 for bound in point.explicit_bounds or ())
    return bare._replace(bounds=bounds, counts=tuple(map(float, point.bucket_counts or ())))


def _number(value: _Number) -> float | None:
    """A double as JSON writes it: a number, its text, or NaN, Infinity and -Infinity as text."""
    return None if value is None else float(value)
