"""Run by the engines' python: rewrites recorded spans without attributes that hold a local path.

vLLM's startup spans carry `code.filepath`, the absolute path of its installation. `otlp_scrub.py
FILE` prints what it removed as JSON: {"span name: attribute": how often}.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

LENGTH_BYTES = 4


def main() -> None:
    """Every request body stays one body; only the attributes go."""
    path = Path(sys.argv[1])
    removed: Counter[str] = Counter()
    output = b""
    for body in _bodies(path.read_bytes()):
        request = ExportTraceServiceRequest.FromString(body)
        for span in _spans(request):
            removed.update(_without_paths(span))
        kept = request.SerializeToString()
        output += len(kept).to_bytes(LENGTH_BYTES, "big") + kept
    path.write_bytes(output)
    print(json.dumps(removed))


def _bodies(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(content[at:start], "big")
        yield content[start:at]


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def _without_paths(span: Span) -> list[str]:
    paths = [each for each in span.attributes if each.value.string_value.startswith("/")]
    for attribute in paths:
        span.attributes.remove(attribute)
    return [f"{span.name}: {attribute.key}" for attribute in paths]


if __name__ == "__main__":
    main()
