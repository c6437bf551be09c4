"""What recording costs inside an engine, beside the OpenTelemetry SDK doing the same.

    python -m tests.bench.recorder [--format json] [--records 20000] [--rounds 9]
    python -m tests.bench.recorder --sustained 60 [--rate 10000]

One core, rounds of both sides taking turns, the best round of each number (the machine is shared). A record
is a queue interval with ten fields. Nanoseconds a record:

    caller_ns       CPU of the engine's thread inside record(), the tuple's making included
    engine_cpu_ns   CPU of the engine's process until the record is in the spool: caller and writer thread
    cpu_ns          the same, and reading the spool and writing zstd Parquet, outside the engine
    otel_caller_ns  CPU of the thread in start_span with ten attributes and end
    otel_cpu_ns     CPU of the process until BatchSpanProcessor has encoded it as OTLP; nothing is sent

Numbers are printed, never asserted.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.sinks.parquet.writer import write_table
from kvtrace.sources.spool.decode import SpoolReader, together
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

QUEUE = recorder.shape(
    "span",
    (
        "span_id", "request_id", "start_ns", "end_ns", "reason",
        "blocks", "free_blocks", "attempt", "tokens", "outcome",
    ),
    op="queue", observer="scheduler", evidence="shim",
)  # fmt: skip
ROWS_A_REQUEST = 10


class EncodeOnly(SpanExporter):
    """Encodes every batch as a real exporter does, and throws the bytes away."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def _ids(records: int, turn: int) -> list[str]:
    return [f"cmpl-req-{turn}-{number:06d}-0-92cea7c0" for number in range(records // ROWS_A_REQUEST + 1)]


def record_all(records: int, ids: list[str]) -> int:
    """Record them; CPU ns of this thread."""
    record, next_id = recorder.record, recorder.next_id
    start = time.thread_time_ns()
    for number in range(records):
        request = ids[number // ROWS_A_REQUEST]
        record((QUEUE, next_id(), request, number, number + 500, "capacity", 17, 40, 1, number, "ok"))
    return time.thread_time_ns() - start


def empty_loop(records: int, ids: list[str]) -> int:
    """What the loop costs that surrounds both sides' calls."""
    start = time.thread_time_ns()
    for number in range(records):
        ids[number // ROWS_A_REQUEST]
    return time.thread_time_ns() - start


def kvtrace_round(reader: SpoolReader, folder: Path, records: int, turn: int) -> dict[str, float]:
    """One round of ours: record, flush, read, write."""
    ids = _ids(records, turn)
    loop = empty_loop(records, ids)
    start = time.process_time_ns()
    caller = record_all(records, ids) - loop
    recorder.flush(30)
    engine = time.process_time_ns() - start - loop
    start = time.process_time_ns()
    frames = list(reader.frames(reader.position))
    batches = [batch.columns for batch in together(frames) if batch.table == "span"]
    written = write_table(folder / "span" / f"{turn}.parquet", "span", batches)
    outside = time.process_time_ns() - start
    if written != records:
        raise SystemExit(f"{records} recorded, {written} written")
    return {"caller_ns": caller, "engine_cpu_ns": engine, "cpu_ns": engine + outside}


def otel_round(records: int, turn: int) -> dict[str, float]:
    """One round of OpenTelemetry's: spans with the same ten fields, encoded in batches."""
    ids = _ids(records, turn)
    exporter = EncodeOnly()
    provider = TracerProvider()
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=2 * records, max_export_batch_size=512)
    )
    tracer = provider.get_tracer("kvtrace.bench")
    loop = empty_loop(records, ids)
    start = time.process_time_ns()
    caller = time.thread_time_ns()
    for number in range(records):
        request = ids[number // ROWS_A_REQUEST]
        attributes = {
            "kvtrace.op": "queue", "gen_ai.request.id": request, "kvtrace.observer": "scheduler",
            "kvtrace.evidence": "shim", "kvtrace.reason": "capacity", "kvtrace.blocks": 17,
            "kvtrace.free_blocks": 40, "kvtrace.attempt": 1, "kvtrace.tokens": number,
            "kvtrace.outcome": "ok",
        }  # fmt: skip
        tracer.start_span("queue", attributes=attributes, start_time=number).end(number + 500)
    caller = time.thread_time_ns() - caller - loop
    provider.force_flush()
    engine = time.process_time_ns() - start - loop
    if exporter.spans != records:
        raise SystemExit(f"{records} spans, {exporter.spans} encoded")
    provider.shutdown()
    return {"otel_caller_ns": caller, "otel_cpu_ns": engine}


def compare(records: int, rounds: int) -> dict[str, float]:
    """The best of some rounds, ns a record."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        _begin(name)
        reader = SpoolReader(next(iter(Path(name).glob("spool/*.kvspool"))))
        for turn in range(rounds):
            gc.collect()
            found = kvtrace_round(reader, Path(name), records, turn)
            gc.collect()
            found |= otel_round(records, turn)
            best = {key: min(best.get(key, total), total) for key, total in found.items()}
        recorder.close()
    return {key: round(total / records, 1) for key, total in best.items()}


def _begin(folder: str) -> None:
    os.environ["KVTRACE_OUT"] = folder
    recorder.describe(role="bench")
    recorder.flush(10)


def sustained(seconds: float, rate: int, say: Callable[[dict[str, float]], None]) -> None:
    """A steady rate: drops, resident memory, how long a millisecond's records took at worst, each second."""
    with tempfile.TemporaryDirectory() as name:
        _begin(name)
        ids = _ids(int(seconds * rate) + rate, 0)
        start = due = time.monotonic()
        recorded, late_ns, second = 0, 0, 1
        while recorded < seconds * rate:
            due += 0.001
            time.sleep(max(0.0, due - time.monotonic()))
            before = time.perf_counter_ns()
            for _ in range(rate // 1000):
                recorder.record((
                    QUEUE, recorder.next_id(), ids[recorded // ROWS_A_REQUEST],
                    recorder.now(), recorder.now(),
                    "capacity", 17, 40, 1, recorded, "ok",
                ))  # fmt: skip
                recorded += 1
            late_ns = max(late_ns, time.perf_counter_ns() - before)
            if time.monotonic() - start >= second:
                say(
                    {
                        "second": second,
                        "recorded": recorded,
                        "rss_mb": _rss_mb(),
                        "worst_call_us": late_ns / 1000,
                    }
                )
                second, late_ns = second + 1, 0
        recorder.close()
        frames = list(SpoolReader(next(iter(Path(name).glob("spool/*.kvspool")))).frames())
        batches = together(frames)
        losses = sum(sum(batch.columns["count"].to_pylist()) for batch in batches if batch.table == "loss")
        rows = sum(batch.columns.num_rows for batch in batches if batch.table == "span")
        say({"recorded": recorded, "written": rows, "dropped": losses, "seconds": time.monotonic() - start})


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sustained", type=float, default=0.0)
    parser.add_argument("--rate", type=int, default=10_000)
    options = parser.parse_args()
    if options.sustained:
        sustained(options.sustained, options.rate, lambda line: print(json.dumps(line), flush=True))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = compare(options.records, options.rounds)
    if options.format == "json":
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:16} {value:10.1f}")
    print(f"caller: {found['otel_caller_ns'] / found['caller_ns']:.0f} x below OpenTelemetry's")
    print(f"all:    {found['otel_cpu_ns'] / found['cpu_ns']:.0f} x below OpenTelemetry's")


if __name__ == "__main__":
    main()
