"""How many spans a second does `kvtrace collect` take, what is lost, and does its memory stay flat?

`python tests/bench/collect.py [RATE] [SECONDS] [FOLDER]`: a sender offers RATE spans a second (20,000) in
exports of 512 over gRPC for SECONDS (60), as OpenTelemetry's batch processor sends them, each span with 12
attributes, 8 spans a request. An export that cannot be sent in time is sent late, never left out: whoever is
too slow shows as seconds.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
from kvtrace.run import open_run
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
BATCH = 512
MARK = b"\xc7\x3a\x91\x5e\xd2\x08\xb4\x6f"
REQUEST = "request-"


class Exports:
    """Bodies of BATCH spans: one is built, and numbers are written over it: building costs more."""

    def __init__(self, start_ns: int) -> None:
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        group.resource.attributes.add(key="service.instance.id").value.string_value = "bench-engine"
        spans = group.scope_spans.add().spans
        for number in range(BATCH):
            span = spans.add(
                name="kv.load", trace_id=MARK + number.to_bytes(8, "big"),
                span_id=MARK[:6] + number.to_bytes(2, "big"), start_time_unix_nano=start_ns + number,
                end_time_unix_nano=start_ns + number + 50_000,
            )  # fmt: skip
            texts = {"kvtrace.op": "load", "kvtrace.request.id": f"cmpl-{REQUEST}{number // 8:010d}-0"}
            texts |= dict.fromkeys(("kvtrace.tier.from", "kvtrace.tier.to"), "host")
            texts |= {"kvtrace.component": "bench", "kvtrace.outcome": "ok", "gen_ai.request.model": "tiny",
                      "session": f"session-{number % 97}"}  # fmt: skip
            numbers = {
                "kvtrace.tokens": 256,
                "kvtrace.bytes": number,
                "rank": number % 2,
                "kvtrace.blocks": 2,
            }
            for key, text in texts.items():
                span.attributes.add(key=key).value.string_value = text
            for key, value in numbers.items():
                span.attributes.add(key=key).value.int_value = value
        self._body = bytearray(request.SerializeToString())
        plain = bytes(self._body)
        self._spans = [plain.index(MARK[:6] + n.to_bytes(2, "big")) for n in range(BATCH)]
        self._traces = [plain.index(MARK + n.to_bytes(8, "big")) + 8 for n in range(BATCH)]
        at, self._requests = 0, []
        for _ in range(BATCH):
            at = plain.index(REQUEST.encode(), at) + len(REQUEST)
            self._requests.append(at)

    def of(self, first: int) -> bytes:
        """The spans from number `first` on."""
        body = self._body
        for number in range(BATCH):
            own = first + number
            body[self._spans[number] : self._spans[number] + 8] = (own + 1).to_bytes(8, "big")
            body[self._traces[number] : self._traces[number] + 8] = (own // 8).to_bytes(8, "big")
            body[self._requests[number] : self._requests[number] + 10] = b"%010d" % (own // 8)
        return bytes(body)


def memory_mib(pid: int, what: str) -> float:
    """VmRSS or VmHWM of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


def offer(where: str, rate: int, seconds: float) -> tuple[int, int, float]:
    """(spans offered, refusals, seconds that it took), in the pace of the rate."""
    refused = 0
    with grpc.insecure_channel(where) as channel:
        call = channel.unary_unary(EXPORT)
        exports = Exports(time.time_ns())
        began = time.monotonic()
        sent = 0
        while sent < rate * seconds:
            body = exports.of(sent)
            pause = began + sent / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            while True:
                try:
                    call(body, timeout=60)
                    break
                except grpc.RpcError:
                    refused += 1
                    time.sleep(0.2)
            sent += BATCH
        return sent, refused, time.monotonic() - began


def main() -> None:
    """Offer, stop, count."""
    rate = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp(prefix="collect-bench-"))
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "kvtrace", "collect", "--out", str(run), "--otlp-grpc", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    where = process.stdout.readline().split()[1]
    began = time.monotonic()
    seen: list[tuple[float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            seen.append((time.monotonic() - began, memory_mib(process.pid, "VmRSS")))

    watching = threading.Thread(target=watch)
    watching.start()
    sent, refused, took = offer(where, rate, seconds)
    over.set()
    watching.join()
    cpu = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13])) / 100
    peak = memory_mib(process.pid, "VmHWM")
    process.terminate()
    closing = time.monotonic()
    said = process.stdout.read()
    process.wait()
    ended = time.monotonic()
    found = open_run(run)
    rows = found.sql("SELECT count(*) FROM span").item()
    lost = found.sql("SELECT coalesce(sum(count), 0)::BIGINT FROM loss").item()
    print(f"offered {sent:,} spans in {took:.1f} s ({sent / took:,.0f}/s); refused and sent again {refused}")
    print(f"received {rows:,}; lost {lost:,}; neither {sent - rows - lost:,}")
    early = max((mib for at, mib in seen if at <= took / 3), default=0.0)
    late = max((mib for at, mib in seen if at > 2 * took / 3), default=0.0)
    print(f"memory: {early:.0f} MiB in the first third, {late:.0f} MiB in the last (peak {peak:.0f})")
    print(f"CPU of the collector: {cpu:.1f} s, {1e6 * cpu / sent:.1f} us a span")
    written = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"writing the run: {ended - closing:.1f} s, peak {written:.0f} MiB")
    print(said)


if __name__ == "__main__":
    main()
