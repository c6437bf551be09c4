"""OTLP metrics, as files or as a collector receives them, in protobuf and JSON: rows of `metric`.

    bytes ──► payloads ──► points (protobuf.py, text.py) ──► changes added up (deltas.py) ──► rows.py

Known from: what LMCache 0.5.5 and OpenTelemetry's Python SDK 1.45 exported here (recorded by a receiver that
keeps request bodies; sample_traces/*/raw/otlp-metrics.binpb), the rest (changes, exponential histograms,
summaries, JSON) from OTLP's own definitions, which opentelemetry-proto carries.

* name: the producer's own. A histogram is `name_bucket` with the label le, counting upwards as a page of
  Prometheus does, `name_count`, `name_sum`, and the gauges `name_min` and `name_max` where it has them; a
  summary `name` with the label quantile, `name_count`, `name_sum`. Of exponential histograms the buckets are
  left out, and noted.
* kind: a sum that only grows is a counter, another one a gauge.
* `name_created`: since when a cumulative value counts, unix seconds, where it says so: a move is a restart.
* changes (delta temporality) are added up from 0 at the start of the first: the table holds totals. A change
  that comes twice counts once. Changes of what may also fall are set aside: their level is not known.
* time: the point's own; one without a time, or outside of 64-bit nanoseconds, is set aside as a loss.
* value: NaN and "no recorded value" are null, and noted. Infinities are kept. Counts from 2^53 on may be off.
* process: the resource's, as of spans. kvtrace.source, the file, is a label only where a resource names none.
* labels: attributes as text, otel.scope.name, otel.unit. What people wrote is counted and dropped by its
  name; exemplars are counted and not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.otlp.framing import batches
from kvtrace.sources.otlp.sniffing import FRAMES, HEAD_BYTES, JSON, sniff_metrics
from kvtrace.sources.otlp_metrics.decoding import Reader
from kvtrace.sources.stream import Limits, Undecodable, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

__all__ = ["FORMAT", "Reader", "kind_of", "looks_like", "read"]

FORMAT = "otlp-metrics"
BATCH_BYTES = 1 << 20


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so holds OTLP metrics, in any of the encodings that traces have."""
    return sniff_metrics(head) is not None


def kind_of(path: Path) -> str:
    """In which of the encodings that traces have a file is written; frames when nothing says so."""
    with open_input(path) as stream:
        return sniff_metrics(stream.peek(HEAD_BYTES)) or FRAMES


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file, in bounded memory; the last has what was counted over the whole file."""
    kind = sniff_metrics(stream.peek(HEAD_BYTES)) or FRAMES
    reader = Reader(source, keep_content=options.keep_content)
    for item in batches(stream, kind, Limits(), target_bytes=BATCH_BYTES):
        if isinstance(item, Undecodable):
            reader.lose(item)
            continue
        for payload in item:
            # the Collector frames JSON too when it compresses
            yield from reader.take(payload, text=kind == JSON or payload[:1] in (b"{", b"["))
    yield reader.rest()
