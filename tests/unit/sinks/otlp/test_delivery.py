from __future__ import annotations

import io
import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sinks.otlp import delivery
from kvtrace.sinks.otlp.delivery import Delivery
from opentelemetry.sdk.trace.export import SpanExportResult
from tests.unit.sinks.otlp.drawn import CALLERS_TRACE, SCHEDULER, SPANS, T0, A, drained, table
from tests.unit.sinks.otlp.receivers import http

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from opentelemetry.sdk.trace import ReadableSpan

GONE = "http://127.0.0.1:9/v1/traces"


def many(rows: int, first: int = 0) -> dict[str, pa.Table]:
    return {
        "span": table(
            "span",
            [
                SCHEDULER
                | {
                    "op": "queue",
                    "request_id": f"r-{n}",
                    "span_id": n + 1,
                    "start_ns": T0 + n,
                    "end_ns": T0 + n + 1,
                }
                for n in range(first, first + rows)
            ],
        )
    }


class Hanging:
    """An exporter of a collector that takes the connection and never answers."""

    def __init__(self, _url: str) -> None:
        self.released = threading.Event()

    def export(self, _spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.released.wait(30)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Does not help either."""


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    made = Hanging("")
    monkeypatch.setattr(delivery, "exporter", lambda _url: made)
    yield made
    made.released.set()


def test_rows_are_sent_while_the_run_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "GRACE_SECONDS", 0.01)
    with http() as received:
        sending = Delivery(received.url)
        sending.offer(drained())
        deadline = time.monotonic() + 10
        while not received.bodies and time.monotonic() < deadline:
            time.sleep(0.01)
        assert received.bodies
        assert sending.close().sent == len(SPANS)


def test_a_row_waits_for_the_name_of_its_callers_trace(tmp_path: Path) -> None:
    queue = [row for row in SPANS if row["op"] == "queue"]
    alias = {"alias": CALLERS_TRACE, "kind": "trace", "request_id": A}
    with http() as received:
        sending = Delivery(received.url)
        sending.offer({"span": table("span", queue)})
        time.sleep(0.6)  # another process's spool is read a pass later
        assert not received.bodies
        sending.offer({"alias": table("alias", [alias])})
        sending.close()
    import_files([received.write(tmp_path / "otlp.binpb")], tmp_path / "run")
    assert open_run(tmp_path / "run").sql("SELECT trace_id FROM span").item() == CALLERS_TRACE


def test_a_collector_that_is_gone_is_counted_with_its_reason_and_its_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    sending = Delivery(GONE)
    sending.offer(many(10))
    done = sending.close()
    assert (done.sent, done.failed) == (0, 10)
    assert done.reason


def test_a_collector_that_refuses_is_counted() -> None:
    with http(status=400) as received:
        sending = Delivery(received.url)
        sending.offer(many(10))
        done = sending.close()
    assert (done.sent, done.failed) == (0, 10)


def test_a_collector_that_hangs_delays_neither_offers_nor_the_end(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(delivery, "LIMIT_ROWS", 100)
    sending = Delivery(GONE)
    began = time.monotonic()
    for number in range(30):
        sending.offer(many(10, first=10 * number))
    assert time.monotonic() - began < 5.0
    assert sending._waiting == 100  # no more is ever held, however long the collector hangs
    done = sending.close(timeout_seconds=0.2)
    assert time.monotonic() - began < 10.0
    assert (done.sent, done.failed) == (0, 300)
    assert not hanging.released.is_set()


def test_nothing_is_said_on_the_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    shown = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(shown)
    try:
        sending = Delivery(GONE)
        sending.offer(many(10))
        sending.close()
    finally:
        logging.getLogger().removeHandler(shown)
    said = capfd.readouterr()
    assert said.out + said.err + shown.stream.getvalue() == ""


def test_sampling_takes_whole_traces_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    rows = [
        SCHEDULER | {
            "op": op, "request_id": f"r-{n}", "span_id": 2 * n + i + 1,
            "start_ns": T0 + n, "end_ns": T0 + n + 1,
        }
        for n in range(100)
        for i, op in enumerate(("queue", "lookup"))
    ]  # fmt: skip
    with http() as received:
        sending = Delivery(received.url)
        sending.offer({"span": table("span", rows)})
        done = sending.close()
    assert done.sent + done.left_out == 200
    import_files([received.write(tmp_path / "otlp.binpb")], tmp_path / "run")
    counts = (
        open_run(tmp_path / "run").sql("SELECT count(*) AS n FROM span GROUP BY request_id")["n"].to_list()
    )
    assert set(counts) == {2}
    assert 20 < len(counts) < 80


def test_a_parent_based_sampler_keeps_what_a_caller_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with http() as received:
        sending = Delivery(received.url)
        sending.offer(drained())
        done = sending.close()
    assert done.sent == sum(row.get("request_id") == A for row in SPANS)
    assert done.left_out == len(SPANS) - done.sent


def test_a_disabled_sdk_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with http() as received:
        sending = Delivery(received.url)
        sending.offer(drained())
        assert sending.close().sent == 0
    assert not received.bodies
