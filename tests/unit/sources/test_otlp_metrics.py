"""OTLP metrics: what LMCache pushed here, what OpenTelemetry's SDK makes, and what cannot be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict, MessageToJson
from kvtrace.analyses.counters import counters
from kvtrace.importer import import_files
from kvtrace.importer.formats import decoders, format_of
from kvtrace.run import open_run
from kvtrace.sources import otlp_metrics
from kvtrace.sources.otlp_metrics import deltas, rows
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
)
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from tests.unit.sources.given import decoded, recorded

if TYPE_CHECKING:
    from kvtrace.sources.decoded import Format
    from tests.unit.sources.given import Found

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NEAR = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
DELTA = AggregationTemporality.DELTA


class Instruments:
    """A meter of OpenTelemetry's SDK, collected by hand."""

    def __init__(self, *, delta: bool = False) -> None:
        preferred: dict[type, AggregationTemporality] = {Counter: DELTA, Histogram: DELTA} if delta else {}
        self._reader = InMemoryMetricReader(preferred_temporality=preferred)
        resource = Resource({"service.name": "engine", "service.instance.id": "engine-1"})
        provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self.meter = provider.get_meter("scope")

    def collected(self) -> bytes:
        """What an exporter would send now."""
        found = self._reader.get_metrics_data()
        assert found is not None
        content: bytes = encode_metrics(found).SerializeToString()
        return content


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def named(found: Found, name: str) -> list[dict[str, Any]]:
    return [row for row in found.rows.get("metric", []) if row["name"] == name]


def values(found: Found, name: str) -> list[Any]:
    return [row.get("value") for row in named(found, name)]


def labels(row: dict[str, Any]) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in row["labels"]}


def changes(*points: tuple[int, int, int], monotonic: bool = True, name: str = "hits") -> bytes:
    """A sum of delta temporality: (start, time, value)."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.add(key="service.instance.id").value.string_value = "engine-1"
    metric = group.scope_metrics.add().metrics.add(name=name)
    metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    metric.sum.is_monotonic = monotonic
    for start, end, value in points:
        metric.sum.data_points.add(start_time_unix_nano=start, time_unix_nano=end, as_int=value)
    return request.SerializeToString()


# what ran here


def test_what_lmcache_pushed_counts_what_its_spans_show() -> None:
    found = recorded(otlp_metrics, SAMPLES / "l1-reuse" / "raw" / "otlp-metrics.binpb")
    assert (found.losses, found.notes, found.content) == ([], [], {})
    run = open_run(SAMPLES / "l1-reuse")
    moved = dict(
        run.sql("SELECT op, count(*) FROM transfer WHERE component = 'lmcache.l1' GROUP BY 1").rows()
    )
    assert values(found, "lmcache_mp.num_finished_stores")[-1] == moved["store"]
    assert values(found, "lmcache_mp.num_finished_retrieves")[-1] == moved["load"]
    asked = "SELECT count(*)::BIGINT, sum(found_tokens)::BIGINT FROM lookup WHERE found_tokens IS NOT NULL"
    lookups, tokens = run.sql(asked).rows()[0]
    assert values(found, "lmcache_mp.lookups")[-1] == lookups
    assert values(found, "lmcache_mp.lookup_hit")[-1] == tokens
    assert {row["process"] for row in found.rows["metric"]} == {"lmcache-1"}


def test_its_times_are_those_of_the_recording_and_never_go_back() -> None:
    found = recorded(otlp_metrics, SAMPLES / "l2-loads" / "raw" / "otlp-metrics.binpb")
    times = [row["time_ns"] for row in named(found, "lmcache_mp.l1_usage_ratio")]
    assert times == sorted(times)
    first, last = open_run(SAMPLES / "l2-loads").sql(
        "SELECT min(start_ns), max(end_ns) FROM span WHERE process = 'lmcache-1'"
    ).rows()[0]  # fmt: skip
    assert first - 60 * SECOND < times[0] < times[-1] < last + 60 * SECOND


# what the SDK makes


def test_every_instrument_becomes_rows_of_its_kind() -> None:
    made = Instruments()
    made.meter.create_counter("hits", unit="tokens").add(5, {"tier": "host"})
    made.meter.create_up_down_counter("jobs").add(-2)
    made.meter.create_gauge("usage").set(0.25)
    histogram = made.meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[1.0, 10.0])
    for value in (0.5, 2.0, 3.0, 100.0):
        histogram.record(value)
    found = decoded(otlp_metrics, made.collected())
    (hits,) = named(found, "hits")
    assert (hits["kind"], hits["value"], hits["process"]) == ("counter", 5.0, "engine-1")
    assert labels(hits) == {"tier": "host", "otel.scope.name": "scope", "otel.unit": "tokens"}
    assert [(row["kind"], row["value"]) for row in named(found, "jobs")] == [("gauge", -2.0)]
    assert [(row["kind"], row["value"]) for row in named(found, "usage")] == [("gauge", 0.25)]
    buckets = {labels(row)["le"]: row["value"] for row in named(found, "wait_bucket")}
    assert buckets == {"1.0": 1.0, "10.0": 3.0, "+Inf": 4.0}
    assert (values(found, "wait_count"), values(found, "wait_sum")) == ([4.0], [105.5])
    assert (values(found, "wait_min"), values(found, "wait_max")) == ([0.5], [100.0])
    assert {row["kind"] for row in found.rows["metric"] if row["name"].startswith("wait_") and
            row["name"].endswith(("bucket", "count", "sum"))} == {"histogram"}  # fmt: skip
    assert found.losses == []
    (process,) = {row["process"] for row in found.rows["metric"]}
    assert process == "engine-1"


def test_changes_are_added_up_from_zero() -> None:
    made = Instruments(delta=True)
    counter = made.meter.create_counter("hits")
    histogram = made.meter.create_histogram("wait", explicit_bucket_boundaries_advisory=[1.0])
    payloads = []
    for number in (3, 2, 4):
        counter.add(number)
        histogram.record(number / 2)
        payloads.append(made.collected())
    found = decoded(otlp_metrics, framed(*payloads))
    assert values(found, "hits") == [0.0, 3.0, 5.0, 9.0]
    assert values(found, "wait_count") == [0.0, 1.0, 2.0, 3.0]
    assert values(found, "wait_sum") == [0.0, 1.5, 2.5, 4.5]
    below = [row["value"] for row in named(found, "wait_bucket") if labels(row)["le"] == "1.0"]
    assert below == [0.0, 0.0, 1.0, 1.0]
    assert found.notes == ["6 points were changes: the table holds their totals"]
    assert values(found, "hits_created") == []


def test_a_restart_is_told_by_where_a_counter_starts(tmp_path: Path) -> None:
    """The second process has counted more than the first had: only its start says that it is another."""

    def said(start: int, time: int, value: int) -> bytes:
        request = ExportMetricsServiceRequest.FromString(changes((start, time, value)))
        (metric,) = request.resource_metrics[0].scope_metrics[0].metrics
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        return request.SerializeToString()

    late = NEAR + 50 * SECOND
    payloads = [said(NEAR, NEAR + SECOND, 2), said(NEAR, NEAR + 2 * SECOND, 5), said(late, late + SECOND, 7)]
    (tmp_path / "pushed").write_bytes(framed(*payloads))
    run = open_run(import_files([tmp_path / "pushed"], tmp_path / "run").run)
    (row,) = counters(run).to_dicts()
    assert (row["name"], row["process"], row["increase"], row["resets"]) == ("hits", "engine-1", 10.0, 1)


# what is sent twice, late, or cannot be


def test_a_change_that_comes_twice_counts_once() -> None:
    first, second = (NEAR, NEAR + SECOND, 3), (NEAR + SECOND, NEAR + 2 * SECOND, 2)
    found = decoded(otlp_metrics, framed(changes(first), changes(second), changes(second)))
    assert values(found, "hits") == [0.0, 3.0, 5.0]
    assert found.lost() == {"duplicate": 1}


def test_a_change_that_comes_after_a_later_one_is_set_aside() -> None:
    first, second = (NEAR, NEAR + SECOND, 3), (NEAR + SECOND, NEAR + 2 * SECOND, 2)
    found = decoded(otlp_metrics, framed(changes(second), changes(first)))
    assert values(found, "hits") == [0.0, 2.0]
    assert found.lost() == {"dropped": 1}


def test_changes_of_what_may_fall_have_no_level() -> None:
    found = decoded(otlp_metrics, changes((NEAR, NEAR + 1, 3), monotonic=False))
    assert found.rows == {}
    assert found.lost() == {"dropped": 1}


def test_series_of_changes_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "SERIES", 2)
    payloads = [changes((0, NEAR, 1), name=f"m{number}") for number in range(5)]
    found = decoded(otlp_metrics, framed(*payloads))
    assert len(found.rows["metric"]) == 2
    assert found.lost() == {"dropped": 3}


@pytest.mark.parametrize("time", [0, 2**63, 2**64 - 1])
def test_a_time_that_is_none_costs_its_point(time: int) -> None:
    found = decoded(otlp_metrics, changes((0, time, 1), (0, NEAR, 2)))
    assert [row["time_ns"] for row in found.rows["metric"]] == [NEAR]
    assert found.lost() == {"impossible_time": 1}


def test_what_is_not_recorded_is_null_and_never_zero() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="a").gauge.data_points.add(time_unix_nano=NEAR, flags=1)
    metrics.add(name="b").gauge.data_points.add(time_unix_nano=NEAR, as_double=float("nan"))
    metrics.add(name="c").gauge.data_points.add(time_unix_nano=NEAR)
    metrics.add(name="d").gauge.data_points.add(time_unix_nano=NEAR, as_double=float("inf"))
    found = decoded(otlp_metrics, request.SerializeToString())
    assert {row["name"]: row.get("value") for row in found.rows["metric"]} == {
        "a": None, "b": None, "c": None, "d": float("inf"),
    }  # fmt: skip
    assert found.notes == ["3 values are NaN, or not recorded: null in the table"]
    assert labels(found.rows["metric"][0]) == {"kvtrace.source": "given"}  # nobody says who measured


def test_summaries_and_exponential_histograms_keep_what_they_share_with_others() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    summary = metrics.add(name="s").summary.data_points.add(time_unix_nano=NEAR, count=3, sum=6.0)
    summary.quantile_values.add(quantile=0.5, value=2.0)
    wide = metrics.add(name="e").exponential_histogram
    wide.data_points.add(time_unix_nano=NEAR, count=4, sum=8.0, scale=2).positive.bucket_counts.append(4)
    found = decoded(otlp_metrics, request.SerializeToString())
    assert [(row["name"], row["kind"], row["value"]) for row in found.rows["metric"]] == [
        ("s", "summary", 2.0), ("s_count", "summary", 3.0), ("s_sum", "summary", 6.0),
        ("e_count", "histogram", 4.0), ("e_sum", "histogram", 8.0),
    ]  # fmt: skip
    assert labels(found.rows["metric"][0])["quantile"] == "0.5"
    said = "1 exponential histograms: their count and sum are kept, their buckets are not"
    assert found.notes == [said]


def test_content_and_exemplars_are_counted_and_not_kept() -> None:
    request = ExportMetricsServiceRequest()
    point = request.resource_metrics.add().scope_metrics.add().metrics.add(name="a").gauge.data_points.add()
    point.time_unix_nano, point.as_int = NEAR, 1
    point.attributes.add(key="gen_ai.prompt").value.string_value = "the secret"
    point.exemplars.add(time_unix_nano=NEAR, trace_id=b"\1" * 16).filtered_attributes.add(
        key="x"
    ).value.string_value = "the secret"
    found = decoded(otlp_metrics, request.SerializeToString())
    assert "secret" not in repr(found)
    assert found.content == {"gen_ai.prompt": 1}
    assert found.notes == ["1 exemplars are counted and not kept", "1 of them name a trace"]


def test_labels_and_buckets_have_bounds() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    many = metrics.add(name="many").gauge.data_points.add(time_unix_nano=NEAR, as_int=1)
    for number in range(rows.LABELS + 1):
        many.attributes.add(key=str(number)).value.int_value = 1
    long = metrics.add(name="long").gauge.data_points.add(time_unix_nano=NEAR, as_int=1)
    long.attributes.add(key="k").value.string_value = "x" * rows.LONGEST_TEXT
    wide = metrics.add(name="h").histogram.data_points.add(time_unix_nano=NEAR, count=1, sum=1.0)
    wide.bucket_counts.extend([1, 2, 3])
    wide.explicit_bounds.extend([1.0])
    metrics.add().gauge.data_points.add(time_unix_nano=NEAR, as_int=1)
    found = decoded(otlp_metrics, request.SerializeToString())
    assert [row["name"] for row in found.rows["metric"]] == ["h_count", "h_sum"]
    assert found.lost() == {"dropped": 2, "undecodable": 2}


def test_rows_of_one_export_that_repeat_long_labels_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row a bucket has the labels of its point: 30 KB of an export become 16 MB."""
    monkeypatch.setattr(rows, "WAITING_TEXT", 20 << 20)
    request = ExportMetricsServiceRequest()
    histogram = request.resource_metrics.add().scope_metrics.add().metrics.add(name="h").histogram
    for number in range(5):
        point = histogram.data_points.add(time_unix_nano=NEAR + number, count=1, sum=1.0)
        point.attributes.add(key="k").value.string_value = "x" * 16_000
        point.explicit_bounds.extend(map(float, range(999)))
        point.bucket_counts.extend([1] * 1000)
    found = decoded(otlp_metrics, request.SerializeToString())
    assert found.parts == 3
    assert len(found.rows["metric"]) == 5 * 1002
    assert found.losses == []


def test_totals_of_changes_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "HELD_BYTES", 1_100)
    payloads = [changes((0, NEAR, 1), name=f"m{number}") for number in (0, 1, 2, 0)]
    found = decoded(otlp_metrics, framed(*payloads[:3], changes((0, NEAR + 1, 1), name="m0")))
    assert [(row["name"], row["value"]) for row in found.rows["metric"]] == [
        ("m0", 1.0),
        ("m1", 1.0),
        ("m0", 2.0),
    ]
    assert found.lost() == {"dropped": 1}


def test_a_label_of_ours_is_ours_whatever_an_attribute_says(tmp_path: Path) -> None:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.scope.name = "scope"
    point = scope.metrics.add(name="h").histogram.data_points.add(time_unix_nano=NEAR, count=1, sum=1.0)
    point.bucket_counts.extend([1, 0])
    point.explicit_bounds.extend([2.0])
    for key in ("le", "otel.scope.name", "kvtrace.source", "le"):
        point.attributes.add(key=key).value.string_value = "made up"
    (tmp_path / "pushed").write_bytes(request.SerializeToString())
    run = open_run(import_files([tmp_path / "pushed"], tmp_path / "run").run)
    said = "SELECT labels['le'], labels['otel.scope.name'], labels['kvtrace.source'] FROM metric"
    assert sorted(run.sql(f"{said} WHERE name = 'h_bucket'").rows()) == [
        ("+Inf", "scope", "pushed"), ("2.0", "scope", "pushed"),
    ]  # fmt: skip


# files


METRICS = changes((NEAR, NEAR + SECOND, 3), (NEAR + SECOND, NEAR + 2 * SECOND, 2))
TEXT = MessageToJson(ExportMetricsServiceRequest.FromString(METRICS), indent=None).encode()
PRETTY = MessageToJson(ExportMetricsServiceRequest.FromString(METRICS), indent=2).encode()
SNAKE = json.dumps(
    MessageToDict(ExportMetricsServiceRequest.FromString(METRICS), preserving_proto_field_name=True)
).encode()
ENCODINGS = {
    "body": METRICS, "frames": framed(METRICS), "json": TEXT + b"\n", "pretty json": PRETTY,
    "snake json": SNAKE, "json in frames": framed(TEXT), "array": b"[" + TEXT + b"]",
    "compressed frames": framed(pa.compress(METRICS, "zstd", asbytes=True)),
    "gzip": gzip.compress(framed(METRICS)), "zstd": pa.compress(TEXT, "zstd", asbytes=True),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_told_by_looking_and_read(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(ENCODINGS[encoding])
    assert format_of(file) == otlp_metrics.FORMAT
    found = recorded(otlp_metrics, file)
    assert (values(found, "hits"), found.losses) == ([0.0, 3.0, 5.0], [])


def test_a_name_as_long_as_a_trace_id_is_no_trace() -> None:
    content = changes((NEAR, NEAR + 1, 3), name="http.server.time")
    assert len("http.server.time") == 16
    assert otlp_metrics.looks_like(content)
    assert otlp_metrics.looks_like(framed(content))


def test_it_looks_like_exactly_its_own_files() -> None:
    for path in sorted(SAMPLES.glob("*/raw/**/*")):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(1 << 16)
            assert otlp_metrics.looks_like(head) == (path.name == "otlp-metrics.binpb"), path
    head = (SAMPLES / "l1-reuse" / "raw" / "otlp-metrics.binpb").read_bytes()[: 1 << 16]
    formats: dict[str, Format] = decoders()
    assert [name for name, module in formats.items() if module.looks_like(head)] == [otlp_metrics.FORMAT]


def test_a_file_that_is_cut_keeps_what_came_before() -> None:
    found = decoded(otlp_metrics, framed(changes((0, NEAR, 3)), changes((0, NEAR + 1, 4)))[:-3])
    assert values(found, "hits") == [3.0]
    assert found.lost() == {"undecodable": 1}


def test_lines_that_are_no_metrics_cost_themselves() -> None:
    lines = [TEXT, b'{"resourceLogs": []}', b"{", b'{"resourceMetrics": [5]}', b"[" * 100_000]
    found = decoded(otlp_metrics, b"\n".join(lines))
    assert values(found, "hits") == [0.0, 3.0, 5.0]
    assert set(found.lost()) == {"undecodable"}


def test_a_number_that_cannot_be_costs_its_point() -> None:
    point = {"timeUnixNano": str(NEAR), "asInt": "7"}
    bad: list[dict[str, Any]] = [
        {**point, "timeUnixNano": "-5"}, {**point, "timeUnixNano": str(2**70)},
        {"timeUnixNano": str(NEAR), "asDouble": "seven"},
        {**point, "attributes": [{"key": "k", "value": {"bytesValue": "!"}}]},
    ]  # fmt: skip
    metric = {"name": "a", "gauge": {"dataPoints": [*bad, point]}}
    line = json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()
    found = decoded(otlp_metrics, line)
    assert values(found, "a") == [7.0]
    assert found.lost() == {"undecodable": 4}
