"""A law of JSON attributes: decoded once for all spans, or span by span, they are the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kvtrace.sources.otlp import json_attributes, json_lines
from kvtrace.sources.otlp.batch import Gate

if TYPE_CHECKING:
    from kvtrace.sources.otlp.batch import SpanBatch

SPAN = '{"traceId":"0af7651916cd43dd8448eb211c80319c","attributes":%s}'
INNER = st.sampled_from(
    [
        '{"key":"a","value":{"stringValue":"x"}}',
        '{"value":{"stringValue":"x"},"key":"a"}',
        '{"value":{"stringValue":"secret"},"key":"prompt"}',
        '{"key":"prompt","value":{"stringValue":"secret"}}',
    ]
)
SCALARS = r"""
{"stringValue":"x"} {"stringValue":"}][{\"key\":"} {"stringValue":5} {"stringValue":""} {"stringValue":"},"}
{"stringValue":"\ud83d\ude00"} {"intValue":"7"} {"intValue":7} {"intValue":"seven"} {"doubleValue":0.5}
{"boolValue":true} {} null [] {"other":1} {"arrayValue":true}
{"arrayValue":{"values":[{"stringValue":"a"},{"intValue":"1"}]}}
""".split()  # noqa: SIM905 - values
VALUE = st.sampled_from(SCALARS) | st.lists(INNER, max_size=3).map(
    lambda held: f'{{"kvlistValue":{{"values":[{",".join(held)}]}}}}'
)
KEY = st.sampled_from(["a", "b", "prompt", "", "\\u0061", '{\\"key\\":', "ключ"])
LAYOUT = st.sampled_from(
    ['{"key":"%k","value":%v}'] * 6
    + ['{"key": "%k", "value": %v}', '{"value":%v,"key":"%k"}', '{ "key":"%k","value":%v}', '{"key":null}']
    + ['{"key":"%k"}', '[{"key":"%k","value":%v}]', "null", "5", '{"key":"%k","value":%v,"more":[]}']
)
ATTRIBUTE = st.builds(
    lambda form, key, value: form.replace("%k", key).replace("%v", value), LAYOUT, KEY, VALUE
)
BETWEEN = st.sampled_from([","] * 4 + [", ", "  ,", ",\t"])
LISTS = st.one_of(
    st.builds(lambda held, between: f"[{between.join(held)}]", st.lists(ATTRIBUTE, max_size=4), BETWEEN),
    st.sampled_from(["[]", "null", "[ ]", "{}", '"x"', "[[]]"]),
)


ONE_FEWER_ONE_MORE = (
    '[{"key":"m","value":{"kvlistValue":{"values":[{"value":{},"key":"k"},{"key":"b"}]}}},'
    '{"key":"c"},0,{"value":{},"key":"d"}]'
)
"""A map that begins with a value, and an attribute that does: as many pieces as attributes."""
CONTENT_INSIDE = '[{"key":"m","value":{"kvlistValue":{"values":[{"value":{},"key":"prompt"}]}}}]'


def everything(found: SpanBatch) -> tuple[object, ...]:
    """All of a batch, comparable."""
    return (
        found.spans.to_pylist(),
        found.attributes.to_pylist(),
        found.resources,
        found.undecodable,
        dict(found.content),
    )


def lines(spans: list[list[str]]) -> list[bytes]:
    """A line for some spans, each with the text of its attributes."""
    return [
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}]}' % ",".join(SPAN % own for own in held).encode()
        for held in spans
    ]


@given(spans=st.lists(st.lists(LISTS, max_size=4), max_size=3), keep=st.booleans())
@example(spans=[[ONE_FEWER_ONE_MORE]], keep=False)
@example(spans=[['[{"key":"a"},[{"key":"b"}],{"key":"c"}]', '[{"key":"a"}]']], keep=False)
@example(spans=[[CONTENT_INSIDE] * 3], keep=False)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_attributes_at_once_are_those_one_by_one(spans: list[list[str]], keep: bool) -> None:  # noqa: FBT001
    found = json_lines.decode(lines(spans), keep_content=keep)
    assert everything(found) == everything(json_lines.decode_one_by_one(lines(spans), keep_content=keep))


def test_what_collectors_write_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compact = '[{"key":"a","value":{"stringValue":"x"}},{"key":"b","value":{"intValue":"1"}}]'
    spaced = compact.replace(":", ": ").replace(",", ", ")
    expected = [{"row": 0, "key": "a", "value": "x"}, {"row": 0, "key": "b", "value": "1"}]
    monkeypatch.setattr(json_attributes, "one_by_one", None)
    for spelled in (compact, spaced):
        found = json_lines.decode(lines([["[]", spelled, "null"]]))
        assert found.attributes.to_pylist() == [row | {"row": 1} for row in expected]


def test_an_array_that_begins_with_anything_else_is_odd() -> None:
    with pytest.raises(json_attributes.OddError):
        json_attributes.all_at_once([msgspec.Raw(b'[ {"key":"a"}]')], Gate(keep=False, dropped=Counter()))
