"""Samples of Dynamo: recorded, cleaned, and each file read by exactly one decoder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources.stream import open_input
from tests.engines.dynamo_clean import MAX_BYTES, response, scrubbed
from tests.engines.privacy import require_private
from tests.samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted(SAMPLES.glob("dynamo-*/raw/*"))
FORMATS = {
    "event-plane-zmq.jsonl": "dynamo-event-plane",
    "frontend-metrics.txt": "prometheus",
    "kv-events-zmq-worker.jsonl": "vllm-kv-events",
    "otlp-traces.jsonl": "otlp-json",
    "recording.json": "recording",
    "replay-report.json": "dynamo-replay-report",
    "request-trace.jsonl": "dynamo-request-trace",
    "responses.jsonl": "openai-responses",
    "router-log.jsonl": "dynamo-router-log",
}
OURS = {
    "dynamo-event-plane",
    "dynamo-replay-report",
    "dynamo-request-trace",
    "dynamo-router-log",
    "openai-responses",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}/{file.name}")
def test_a_file_is_known_by_looking_at_it(file: Path) -> None:
    assert format_of(file) == FORMATS[file.name]


def test_no_other_recorded_file_looks_like_one_of_ours() -> None:
    found = {}
    for file in sorted(SAMPLES.glob("*/raw/*")):
        if file.is_file():
            with open_input(file) as stream:
                head = stream.peek(1 << 16)
            found[file.name] = {name for name in OURS if decoders()[name].looks_like(head)}
    assert {name: seen for name, seen in found.items() if seen} == {
        name: {format_name} for name, format_name in FORMATS.items() if format_name in OURS
    }


@pytest.mark.parametrize("sample", sorted({file.parent for file in FILES}), ids=lambda path: path.parent.name)
def test_a_sample_holds_nothing_that_was_written_and_nothing_of_a_machine(sample: Path) -> None:
    require_private(sample)
    for file in sample.glob("*.jsonl"):
        assert file.stat().st_size <= MAX_BYTES
        for line in file.read_text().splitlines():
            assert scrubbed(json.loads(line)) == json.loads(line)
            assert "keep calm" not in line


def test_cleaning_leaves_counts_where_content_was() -> None:
    asked = {"messages": [{"role": "user", "content": "four"}], "token_ids": [1, 2, 3], "prompt": "six more"}
    assert scrubbed(asked) == {"messages": [{"role": "user", "content": 4}], "token_count": 3, "prompt": 8}
    assert scrubbed({"target": "x", "file": "/somewhere", "line": 3}) == {"target": "x"}
    chunk = 'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\ndata: [DONE]\n'
    assert response(chunk) == 'data: {"choices": [{"delta": {"content": 3}}]}\n\ndata: [DONE]\n'
    assert response('{"text": "a"}') == '{"text": 1}'
