"""A collector in this process, on free ports of 127.0.0.1, and what exporters send to it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from kvtrace.collect import CollectReport, Settings, collect
from kvtrace.run import open_run
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

NEAR = 1_700_000_000_000_000_000
FREE = "127.0.0.1:0"
SECONDS = 60


@dataclass
class Collector:
    """Runs `collect` in a thread from entering to leaving; then the run is there."""

    settings: Settings
    said: list[str] = field(default_factory=list)
    report: CollectReport | None = None
    error: BaseException | None = None

    def __enter__(self) -> Self:
        self.stop = threading.Event()
        self._lines: list[str] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        expected = bool(self.settings.otlp_grpc) + bool(self.settings.otlp_http)
        while len(self._lines) < expected and self._thread.is_alive():
            self._ready.wait(0.05)
        return self

    def _work(self) -> None:
        try:
            self.report = collect(
                self.settings, self.stop, listening=self._lines.append, say=self.said.append
            )
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self.error = error

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def address(self, name: str) -> str:
        """Where a listener is."""
        (found,) = [line.split()[1] for line in self._lines if line.startswith(name)]
        return found

    def sql(self, query: str) -> pl.DataFrame:
        """What the finished run says."""
        return open_run(self.settings.out).sql(query)

    def lost(self) -> dict[str, int]:
        """Losses by cause."""
        return dict(self.sql("SELECT cause, sum(count)::BIGINT FROM loss GROUP BY 1").iter_rows())


def collector(folder: Path, **settings: Any) -> Collector:
    """A collector that writes folder/run; on free ports, unless said otherwise."""
    return Collector(Settings(folder / "run", **settings))


def export(*times: tuple[int, int], first: int = 1, content: str = "") -> bytes:
    """An export of loads with these (start, end), the first of request r1."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.instance.id").value.string_value = "engine-1"
    spans = group.scope_spans.add().spans
    for number, (start, end) in enumerate(times, first):
        span = spans.add(
            name="load", trace_id=bytes(15) + b"\1", span_id=number.to_bytes(8, "big"),
            start_time_unix_nano=start, end_time_unix_nano=end,
        )  # fmt: skip
        span.attributes.add(key="kvtrace.op").value.string_value = "load"
        span.attributes.add(key="kvtrace.request.id").value.string_value = f"r{number}"
        if content:
            span.attributes.add(key="gen_ai.prompt").value.string_value = content
    return request.SerializeToString()


def loads(count: int, first: int = 1) -> bytes:
    """An export of so many loads of a microsecond each."""
    return export(*((NEAR + n * 1000, NEAR + n * 1000 + 1000) for n in range(count)), first=first)
