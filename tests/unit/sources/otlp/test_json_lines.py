"""OTLP JSON, dialect by dialect, with literal lines."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from kvtrace.sources.otlp import json_lines
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from kvtrace.sources.otlp.batch import SpanBatch

HEX = '"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331"'


def line(span: str = "", *, ids: str = HEX) -> bytes:
    inner = ",".join(part for part in (ids, span) if part)
    return f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{{inner}}}]}}]}}]}}'.encode()


def valued(value: str) -> bytes:
    return line(f'"attributes":[{{"key":"k","value":{value}}}]')


def one(found: SpanBatch, column: str) -> object:
    assert found.undecodable == ()
    assert found.spans.num_rows == 1
    return found.spans[column].to_pylist()[0]


def texts(found: SpanBatch) -> dict[str, str]:
    assert found.undecodable == ()
    return dict(zip(found.attributes["key"].to_pylist(), found.attributes["value"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"stringValue":"x"}', "x"),
        ('{"stringValue":""}', ""),
        ('{"stringValue":5}', "5"),
        ('{"intValue":"-9223372036854775808"}', "-9223372036854775808"),
        ('{"intValue":7}', "7"),
        ('{"intValue":7.0}', "7"),
        ('{"doubleValue":5}', "5.0"),
        ('{"doubleValue":"0.1"}', "0.1"),
        ('{"doubleValue":1e22}', "1e+22"),
        ('{"doubleValue":"NaN"}', "nan"),
        ('{"doubleValue":"-Infinity"}', "-inf"),
        ('{"boolValue":false}', "false"),
        ('{"boolValue":"true"}', "true"),
        ('{"bytesValue":"-_8"}', "+/8="),
        ('{"arrayValue":{"values":[{"stringValue":"a"},{"stringValue":"b"}]}}', '["a","b"]'),
        ('{"arrayValue":{"values":[{"intValue":"1"},{"intValue":2},{}]}}', "[1,2,null]"),
        ('{"arrayValue":{}}', "[]"),
        ('{"kvlistValue":{"values":[{"key":"n","value":{"boolValue":true}}]}}', '{"n":true}'),
        ('{"arrayValue":{"values":[{"doubleValue":"NaN"}]}}', '["NaN"]'),
        ('{"stringValue":null,"intValue":"1"}', "1"),
    ],
)
def test_a_value_becomes_its_text(value: str, expected: str) -> None:
    assert texts(json_lines.decode([valued(value)])) == {"k": expected}


@pytest.mark.parametrize("value", ["null", "{}", '{"stringValue":null}', '{"arrayValue":null}'])
def test_a_missing_value_is_left_out(value: str) -> None:
    assert texts(json_lines.decode([valued(value)])) == {}


@pytest.mark.parametrize(
    "ids",
    [
        HEX,
        HEX.upper().replace("TRACEID", "traceId").replace("SPANID", "spanId"),
        '"traceId":"CvdlGRbNQ92ESOshHIAxnA==","spanId":"t61rcWkgMzE="',
        '"traceId":"CvdlGRbNQ92ESOshHIAxnA","spanId":"t61rcWkgMzE"',
    ],
)
def test_ids_are_read_as_hex_or_base64_by_their_length(ids: str) -> None:
    found = json_lines.decode([line(ids=ids)])
    assert one(found, "trace_id") == "0af7651916cd43dd8448eb211c80319c"
    assert one(found, "span_id") == 0xB7AD6B7169203331


def test_ids_of_zeros_or_no_length_are_absent() -> None:
    found = json_lines.decode([line(ids=f'"traceId":"{"0" * 32}","spanId":"","parentSpanId":"{"0" * 16}"')])
    assert one(found, "trace_id") == ""
    assert one(found, "span_id") is None
    assert one(found, "parent_span_id") is None


def test_an_id_of_impossible_length_is_absent_and_counted() -> None:
    found = json_lines.decode([line(ids='"traceId":"xyz","spanId":"b7ad6b7169203331"'), line()])
    assert found.spans["trace_id"].to_pylist() == ["", "0af7651916cd43dd8448eb211c80319c"]
    assert found.undecodable == (Undecodable("ids of impossible length, read as absent", 1),)


def test_a_trace_id_of_eight_bytes_is_padded_on_the_left() -> None:
    found = json_lines.decode([line(ids='"traceId":"8448eb211c80319c","spanId":"b7ad6b7169203331"')])
    assert one(found, "trace_id") == "00000000000000008448eb211c80319c"


@pytest.mark.parametrize("time", ["1795963408160979193", '"1795963408160979193"'])
def test_times_are_exact_as_numbers_and_as_strings(time: str) -> None:
    assert one(json_lines.decode([line(f'"startTimeUnixNano":{time}')]), "start_ns") == 1795963408160979193


@pytest.mark.parametrize("time", ["-1", str(2**64), "1.5", '"soon"'])
def test_a_time_that_fits_no_column_makes_the_line_undecodable(time: str) -> None:
    found = json_lines.decode([line(), line(f'"startTimeUnixNano":{time}'), line()])
    assert found.spans.num_rows == 2
    assert [lost.count for lost in found.undecodable] == [1]


@pytest.mark.parametrize(
    ("code", "expected"),
    [('"STATUS_CODE_ERROR"', 2), ("1", 1), ('"2"', 2), ("null", 0), ("9", 0), ('"?"', 0)],
)
def test_status_codes_are_numbers_or_names(code: str, expected: int) -> None:
    assert (
        one(json_lines.decode([line(f'"kind":"SPAN_KIND_SERVER","status":{{"code":{code}}}')]), "status_code")
        == expected
    )


def test_snake_case_is_detected() -> None:
    snake = (
        b'{"resource_spans":[{"resource":{"attributes":[{"key":"service.name","value":{"string_value":"s"}}]},'
        b'"scope_spans":[{"scope":{"name":"lib"},"spans":[{"trace_id":"0af7651916cd43dd8448eb211c80319c",'
        b'"span_id":"b7ad6b7169203331","start_time_unix_nano":"5","attributes":[{"key":"traceId","value":'
        b'{"array_value":{"values":[{"string_value":"trace_id"}]}}}]}]}]}]}'
    )
    found = json_lines.decode([snake])
    assert one(found, "start_ns") == 5
    assert one(found, "scope") == "lib"
    assert found.resources == ({"service.name": "s"},)
    assert texts(found) == {"traceId": '["trace_id"]'}


@pytest.mark.parametrize(
    "other", [("traceId", "trace_id"), ("scopeSpans", "scope_spans"), ("resourceSpans", "resource_spans")]
)
def test_one_snake_case_name_among_usual_ones_is_detected(other: tuple[str, str]) -> None:
    found = json_lines.decode([line().replace(other[0].encode(), other[1].encode())])
    assert one(found, "trace_id") == "0af7651916cd43dd8448eb211c80319c"


def test_instrumentation_library_spans_of_old_exporters_are_read() -> None:
    old = line().replace(
        b'"scopeSpans":[{', b'"instrumentationLibrarySpans":[{"instrumentationLibrary":{"name":"lib"},'
    )
    assert one(json_lines.decode([old]), "scope") == "lib"


def test_nulls_everywhere_are_absences() -> None:
    found = json_lines.decode(
        [
            b'{"resourceSpans":null}',
            b'{"resourceSpans":[{"resource":null,"scopeSpans":null,"schemaUrl":null}]}',
            line(
                '"name":null,"attributes":null,"events":null,"links":null,"status":null,"startTimeUnixNano":null'
            ),
        ]
    )
    assert one(found, "name") == ""
    assert one(found, "start_ns") == 0


@pytest.mark.parametrize(
    "empty", [b"", b"  ", b"{}", b'{"resourceSpans":[]}', b"\xef\xbb\xbf", b"[]", b"[{}]"]
)
def test_an_empty_line_or_body_loses_nothing(empty: bytes) -> None:
    found = json_lines.decode([empty])
    assert (found.spans.num_rows, found.undecodable) == (0, ())


def test_a_bom_and_a_json_array_of_bodies_are_read() -> None:
    found = json_lines.decode([b"\xef\xbb\xbf" + line(), b"[" + line() + b"," + line() + b"]"])
    assert (found.spans.num_rows, found.undecodable) == (3, ())
    assert found.spans["resource"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"resourceSpans":[', "no JSON: Input data was truncated"),
        (line() + line(), "no JSON: JSON is malformed: trailing characters"),
        (b"\xff{}", "no JSON: JSON is malformed: invalid character"),
        (b'{"hello":"world"}', "valid JSON, but no resourceSpans in it"),
        (b'"secret prompt"', "OTLP JSON of a wrong type: Expected `object`, got `str`"),
        (b'{"resourceMetrics":[]}', "OTLP, but no traces"),
        (b'{"x":' + b"[" * 100_000, "JSON nested too deep"),
        (valued('{"bytesValue":"***"}'), "bytesValue is no base64"),
        (valued('{"doubleValue":NaN}'), "no JSON: JSON is malformed: invalid character"),
        (valued('{"arrayValue":{"values":5}}'), "OTLP JSON with an impossible value"),
        (
            valued('{"arrayValue":{"values":[{"intValue":"secret"}]}}'),
            "OTLP JSON of a wrong type: Expected `int`, got `str`",
        ),
    ],
)
def test_a_broken_line_is_counted_with_its_reason_and_its_neighbours_stay(bad: bytes, reason: str) -> None:
    found = json_lines.decode([line('"name":"a"'), bad, line('"name":"b"')])
    assert found.spans["name"].to_pylist() == ["a", "b"]
    assert found.undecodable == (Undecodable(reason, 1),)
    assert found.spans["resource"].to_pylist() == [0, 1]
    assert len(found.resources) == 2


def test_a_line_broken_in_its_last_span_leaves_nothing_of_its_first() -> None:
    prompt = '{"key":"prompt","value":{"stringValue":"p"}}'
    spans = f'{{"traceId":"0af7651916cd43dd8448eb211c80319c","attributes":[{prompt}],'
    first = spans + '"events":[{"name":"gen_ai.choice"}]}'
    second = '{"traceId":"0af7651916cd43dd8448eb211c80319c","startTimeUnixNano":-1}'
    bad = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{first}]}},{{"spans":[{second}]}}]}}]}}'.encode()
    found = json_lines.decode([bad])
    assert (found.spans.num_rows, found.attributes.num_rows, found.resources) == (0, 0, ())
    assert found.content == {}


def test_content_is_dropped_where_it_arrives_and_counted() -> None:
    attributes = ",".join(
        f'{{"key":"{key}","value":{{"stringValue":"secret"}}}}'
        for key in ("gen_ai.prompt", "prompt", "ok", "prompt")
    )
    member = '{"key":"messages","value":{"stringValue":"secret"}}'
    nested = f'{{"key":"map","value":{{"kvlistValue":{{"values":[{member}]}}}}}}'
    events = (
        '[{"name":"gen_ai.choice","attributes":[{"key":"x","value":{"stringValue":"secret"}}]},'
        '{"name":"other","attributes":[{"key":"content","value":{"stringValue":"secret"}}]}]'
    )
    whole = line(f'"attributes":[{attributes},{nested}],"events":{events}')
    found = json_lines.decode([whole])
    assert texts(found) == {"ok": "secret", "map": "{}", "event.other.time_unix_nano": "0"}
    assert found.content == {"gen_ai.prompt": 1, "prompt": 2, "messages": 1, "gen_ai.choice": 1, "content": 1}
    kept = json_lines.decode([whole], keep_content=True)
    assert kept.content == {}
    assert texts(kept)["event.gen_ai.choice.x"] == "secret"
    assert texts(kept)["map"] == '{"messages":"secret"}'


def test_events_links_and_status_messages_become_attributes_after_the_own_ones() -> None:
    event = '{"name":"e","timeUnixNano":"5","attributes":[{"key":"k","value":{"intValue":"1"}}]}'
    whole = line(
        f'"attributes":[{{"key":"own","value":{{"boolValue":true}}}}],"events":[{event},{event}],'
        f'"links":[{{{HEX}}}],"status":{{"code":2,"message":"broke"}}'
    )
    found = json_lines.decode([whole, line('"attributes":[{"key":"next","value":{"intValue":1}}]')])
    assert found.attributes.to_pylist() == [
        {"row": 0, "key": "own", "value": "true"},
        {"row": 0, "key": "otel.status_message", "value": "broke"},
        {"row": 0, "key": "event.e.time_unix_nano", "value": "5"},
        {"row": 0, "key": "event.e.k", "value": "1"},
        {"row": 0, "key": "event.e#2.time_unix_nano", "value": "5"},
        {"row": 0, "key": "event.e#2.k", "value": "1"},
        {"row": 0, "key": "otel.links", "value": '["0af7651916cd43dd8448eb211c80319c:b7ad6b7169203331"]'},
        {"row": 1, "key": "next", "value": "1"},
    ]


def test_the_garbage_collector_is_as_it_was_after_decoding() -> None:
    json_lines.decode([line(), b"broken"])
    assert gc.isenabled()
    gc.disable()
    try:
        json_lines.decode([line()])
        assert not gc.isenabled()
    finally:
        gc.enable()


DYNAMO = rb"""
{"resourceSpans": [{"resource": {"attributes": [{"key": "service.name",
 "value": {"stringValue": "frontend"}}]}, "scopeSpans": [{
 "scope": {"name": "frontend"}, "spans": [{"traceId": "ImqnvdsCOiEA3AduJzOl+A==",
 "spanId": "fHC/ln7AhMw=", "name": "http-request", "kind": "SPAN_KIND_INTERNAL",
 "startTimeUnixNano": "1795963408160979193", "endTimeUnixNano": "1795963408161150486",
 "attributes": [{"key": "uri", "value": {"stringValue": "/v1/models"}},
 {"key": "busy_ns", "value": {"intValue": "119718"}}], "events": [{"timeUnixNano": "1795963408161024700",
 "name": "SPAN_FIRST_ENTRY", "attributes": [{"key": "level", "value": {"stringValue": "DEBUG"}}]}],
 "status": {}, "flags": 257}]}]}]}

{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "AAAAAAAAAAAAAAAACrwAAA==",
 "spanId": "esQ8adAdTVY=",
 "parentSpanId": "Un83n8CW+eo=", "name": "kv_router.compute_block_hashes", "kind": "SPAN_KIND_INTERNAL",
 "startTimeUnixNano": "1795963408222130963", "endTimeUnixNano": "1795963408222143682", "status": {}}]}]}]}
""".split(b"\n\n")


def test_what_dynamo_writes_is_read_completely() -> None:
    found = json_lines.decode(DYNAMO)
    assert found.undecodable == ()
    assert found.spans["trace_id"].to_pylist() == ["226aa7bddb023a2100dc076e2733a5f8", f"{0xABC0000:032x}"]
    assert found.spans["span_id"].to_pylist() == [0x7C70BF967EC084CC, 0x7AC43C69D01D4D56]
    assert found.spans["parent_span_id"].to_pylist() == [None, 0x527F379FC096F9EA]
    assert found.attributes["value"].to_pylist() == ["/v1/models", "119718", "1795963408161024700", "DEBUG"]
