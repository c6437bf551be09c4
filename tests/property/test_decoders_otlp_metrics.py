"""Laws of OTLP metrics: both encodings say the same, hostile bytes cost themselves, totals are sums."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.sources import otlp_metrics
from kvtrace.sources.otlp_metrics import judging
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA
from tests.unit.sources.given import Found, decoded

LAW = settings(deadline=None, max_examples=60)
NEAR = 1_700_000_000_000_000_000
TIMES = st.sampled_from([0, 1, NEAR, NEAR + 1, 2**63 - 1, 2**63, 2**64 - 1])
DOUBLES = st.floats(width=64)
COUNTS = st.integers(0, 2**64 - 1)
NAMES = st.sampled_from(["", "a", "hits_total", "vllm:x", "\n", "wait_count", "x" * 16])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def _attributes(draw: st.DrawFn, target: Any) -> None:
    for key in draw(st.lists(TEXTS | st.just("gen_ai.prompt"), max_size=3)):
        value = target.add(key=key).value
        match draw(st.sampled_from("sidbx")):
            case "s":
                value.string_value = draw(TEXTS)
            case "i":
                value.int_value = draw(st.integers(-(2**63), 2**63 - 1))
            case "d":
                value.double_value = draw(DOUBLES)
            case "b":
                value.bool_value = draw(st.booleans())


def _point(draw: st.DrawFn, point: Any, kind: str) -> None:
    point.start_time_unix_nano, point.time_unix_nano = draw(TIMES), draw(TIMES)
    point.flags = draw(st.integers(0, 3))
    _attributes(draw, point.attributes)
    if kind in ("gauge", "sum"):
        field = draw(st.sampled_from(["as_int", "as_double", ""]))
        if field:
            whole = st.integers(-(2**63), 2**63 - 1)
            setattr(point, field, draw(whole if field == "as_int" else DOUBLES))
        return
    point.count, point.sum = draw(COUNTS), draw(DOUBLES)
    if kind == "summary":
        for _ in range(draw(st.integers(0, 2))):
            point.quantile_values.add(quantile=draw(DOUBLES), value=draw(DOUBLES))
    elif kind == "histogram":
        point.explicit_bounds.extend(draw(st.lists(DOUBLES, max_size=3)))
        point.bucket_counts.extend(draw(st.lists(COUNTS, max_size=4)))
        if draw(st.booleans()):
            point.min, point.max = draw(DOUBLES), draw(DOUBLES)


@st.composite
def requests(draw: st.DrawFn) -> ExportMetricsServiceRequest:
    """Exports of every kind of metric, possible and impossible."""
    request = ExportMetricsServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        group = request.resource_metrics.add()
        _attributes(draw, group.resource.attributes)
        scope = group.scope_metrics.add()
        scope.scope.name = draw(TEXTS)
        for _ in range(draw(st.integers(0, 3))):
            metric = scope.metrics.add(name=draw(NAMES), unit=draw(TEXTS))
            kinds = ["gauge", "sum", "histogram", "exponential_histogram", "summary", ""]
            kind = draw(st.sampled_from(kinds))
            if not kind:
                continue
            data = getattr(metric, kind)
            if kind not in ("gauge", "summary"):
                data.aggregation_temporality = draw(st.integers(0, 2))
            if kind == "sum":
                data.is_monotonic = draw(st.booleans())
            for _ in range(draw(st.integers(0, 3))):
                _point(draw, data.data_points.add(), kind)
    return request


def rows(found: Found) -> str:
    return repr(found.rows)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def as_text(request: ExportMetricsServiceRequest) -> bytes:
    return MessageToJson(request, indent=None).encode()


@LAW
@given(requests())
def test_protobuf_and_json_say_the_same(request: ExportMetricsServiceRequest) -> None:
    binary = decoded(otlp_metrics, framed(request.SerializeToString()))
    text = decoded(otlp_metrics, framed(as_text(request)))
    assert rows(binary) == rows(text)
    assert (binary.lost(), binary.notes, binary.content) == (text.lost(), text.notes, text.content)


@LAW
@given(requests())
def test_as_many_points_are_said_to_be_impossible_as_are_set_aside_for_their_time(
    request: ExportMetricsServiceRequest,
) -> None:
    lost = decoded(otlp_metrics, framed(request.SerializeToString())).lost()
    for body, text in ((request.SerializeToString(), False), (as_text(request), True)):
        found = judging.judged(body, text=text)
        assert (found.mistake, found.impossible) == (None, lost.get("impossible_time", 0))


@LAW
@given(requests(), st.data())
def test_bytes_that_were_hit_cost_rows_and_never_raise(
    request: ExportMetricsServiceRequest, data: st.DataObject
) -> None:
    for content in (framed(request.SerializeToString()), as_text(request) + b"\n"):
        hurt = bytearray(content)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(hurt) - 1))
            hurt[at] = data.draw(st.integers(0, 255))
        decoded(otlp_metrics, bytes(hurt), piece=data.draw(st.sampled_from([7, 1 << 20])))
        judging.judged(bytes(hurt), text=content[:1] == b"{")


@LAW
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.data())
def test_a_total_is_the_sum_of_all_changes_whatever_came_twice(
    changes: list[int], data: st.DataObject
) -> None:
    payloads = []
    for number, change in enumerate(changes):
        request = ExportMetricsServiceRequest()
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="hits")
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
        metric.sum.is_monotonic = True
        metric.sum.data_points.add(
            start_time_unix_nano=NEAR + number, time_unix_nano=NEAR + number + 1, as_int=change
        )
        payloads += [framed(request.SerializeToString())] * data.draw(st.integers(1, 2))
    found = decoded(otlp_metrics, b"".join(payloads))
    totals = [float(total) for total in accumulate(changes, initial=0)]
    assert [row["value"] for row in found.rows["metric"]] == totals
    assert found.lost().get("duplicate", 0) == len(payloads) - len(changes)
