"""Files: sniffing, decompression, cutting into payloads, limits, and errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from kvtrace.errors import InputError, UnknownFormatError, UsageError
from kvtrace.sources import otlp
from kvtrace.sources.otlp.framing import batches, sniff
from kvtrace.sources.stream import Limits, open_input
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

ROOT = Path(__file__).parents[4]


def body(name: str = "s", size: int = 0) -> bytes:
    message = TracesData()
    span = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name=name)
    )
    if size:
        span.attributes.add(key="k").value.string_value = "x" * size
    return message.SerializeToString()


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def line(name: str = "s") -> bytes:
    span = {"traceId": "0af7651916cd43dd8448eb211c80319c", "name": name}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def names(path: Path, **options: object) -> tuple[list[str], list[tuple[str, int]]]:
    found = list(otlp.read(path, **options))  # type: ignore[arg-type]
    lost = [(item.detail, item.count) for one in found for item in one.undecodable]
    return [name for one in found for name in one.spans["name"].to_pylist()], lost


def written(folder: Path, content: bytes) -> Path:
    path = folder / "input"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (line(), "otlp-json"),
        (b"\xef\xbb\xbf\n " + line(), "otlp-json"),
        (json.dumps(json.loads(line()), indent=2).encode(), "otlp-json"),
        (b"[" + line() + b"]", "otlp-json"),
        (b'{"resource_spans":[]}', "otlp-json"),
        (body(), "otlp-proto-body"),
        (body(size=100_000)[:65536], "otlp-proto-body"),
        (frame(body()), "otlp-proto-frames"),
        (frame(b"") + frame(body(size=100_000))[:60_000], "otlp-proto-frames"),
        (frame(pa.compress(body(), "zstd", asbytes=True)), "otlp-proto-frames"),
        (b"", None),
        (b"\n\n\n", None),
        (b"hello world, this is text\n", None),
        (b"\nname,start\n1,2\n", None),
        (b'{"resourceMetrics":[]}', None),
        (b'{"traceEvents":[]}', None),
        (b"PAR1" + bytes(60), None),
        (bytes(4096), None),
        (bytes(range(256)) * 8, None),
    ],
)
def test_a_kind_is_told_by_looking(head: bytes, kind: str | None) -> None:
    assert sniff(head) == kind


def test_metrics_and_logs_are_not_taken_for_traces() -> None:
    logs, metrics = LogsData(), MetricsData()
    logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=5)
    metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="vllm:kv_cache_usage_perc")
    for message in (logs, metrics):
        assert sniff(message.SerializeToString()) is None
        assert sniff(frame(message.SerializeToString())) is None


@pytest.mark.parametrize(
    "content",
    [
        line("a") + b"\n" + line("b") + b"\n",
        line("a") + b"\r\n\r\n" + line("b"),
        json.dumps(json.loads(line("a")), indent=2).encode()
        + b"\n"
        + json.dumps(json.loads(line("b")), indent=1).encode(),
        json.dumps([json.loads(line("a")), json.loads(line("b"))], indent=0).encode(),
        b"[\n" + line("a") + b",\n" + line("b") + b"\n]\n",
        frame(body("a")) + frame(b"") + frame(body("b")),
        frame(line("a")) + frame(line("b")),
        b"".join(frame(pa.compress(body(name), "zstd", asbytes=True)) for name in "ab"),
        body("a") + body("b"),
    ],
)
@pytest.mark.parametrize("pack", ["plain", "gzip", "gzip members", "zstd", "zstd frames"])
def test_every_encoding_and_compression_is_read(tmp_path: Path, content: bytes, pack: str) -> None:
    half = len(content) // 2
    packed = {
        "plain": lambda: content,
        "gzip": lambda: gzip.compress(content),
        "gzip members": lambda: gzip.compress(content[:half]) + gzip.compress(content[half:]),
        "zstd": lambda: pa.compress(content, "zstd", asbytes=True),
        "zstd frames": lambda: (
            pa.compress(content[:half], "zstd", asbytes=True)
            + pa.compress(content[half:], "zstd", asbytes=True)
        ),
    }[pack]()
    assert names(written(tmp_path, packed)) == (["a", "b"], [])


def test_a_torn_last_frame_is_counted_and_what_came_before_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, frame(body("a")) + frame(body("b"))[:-3])
    assert names(path) == (["a"], [("torn last frame", 1)])
    path = written(tmp_path, frame(body("a")) + b"\0\0\1")
    assert names(path) == (["a"], [("torn last frame", 1)])


def test_a_frame_beyond_the_limit_is_skipped_by_its_length(tmp_path: Path) -> None:
    limits = Limits(max_message_bytes=1000)
    path = written(tmp_path, frame(body("a")) + frame(body("big", size=3_000_000)) + frame(body("b")))
    assert names(path, limits=limits) == (["a", "b"], [("frame longer than 1,000 bytes", 1)])


def test_bytes_without_frame_boundaries_end_the_reading(tmp_path: Path) -> None:
    path = written(tmp_path, frame(body("a")) + b"\xff" * 100)
    assert names(path) == (["a"], [("no frame where one should begin: the rest is not read", 1)])


def test_a_corrupt_compressed_frame_costs_only_itself(tmp_path: Path) -> None:
    bad = bytearray(pa.compress(body("x", size=500), "zstd", asbytes=True))
    path = written(tmp_path, frame(body("a")) + frame(bytes(bad[:-8])) + frame(body("b")))
    assert names(path) == (["a", "b"], [("compressed frame corrupt or too long", 1)])


def test_a_line_beyond_the_limit_is_skipped_to_where_it_ends(tmp_path: Path) -> None:
    path = written(tmp_path, line("a") + b"\n" + line("x" * 3_000_000) + b"\n" + line("b"))
    assert names(path, limits=Limits(max_message_bytes=1000)) == (
        ["a", "b"],
        [("line longer than 1,000 bytes", 1)],
    )


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    for torn in (line("x")[:-9], line("x")[:17], line("x")[:18]):
        found, lost = names(
            written(tmp_path, line("a") + b"\n" + torn + b"\n" + line("b") + b"\n" + line("c"))
        )
        assert found == ["a", "b", "c"]
        assert [count for _, count in lost] == [1]


def test_garbage_between_lines_is_counted_as_no_json(tmp_path: Path) -> None:
    found, lost = names(written(tmp_path, line("a") + b"\nINFO started\n" + line("b")))
    assert found == ["a", "b"]
    assert lost == [("no JSON: JSON is malformed: invalid character", 1)]


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_of_a_cut_compressed_file_what_came_before_is_kept(tmp_path: Path, pack: str) -> None:
    content = b"".join(line(f"{number}-{zlib.crc32(b'%d' % number)}") + b"\n" for number in range(20_000))
    packed = gzip.compress(content) if pack == "gzip" else pa.compress(content, "zstd", asbytes=True)
    found, lost = names(written(tmp_path, packed[: len(packed) * 9 // 10]))
    assert 15_000 < len(found) < 20_000
    assert ("compressed input is cut or corrupt: the rest is lost", 1) in lost


def test_a_gzip_file_cut_in_its_checksum_loses_no_span(tmp_path: Path) -> None:
    found, lost = names(written(tmp_path, gzip.compress(line("a") + b"\n")[:-4]))
    assert (found, lost) == (["a"], [("compressed input is cut or corrupt: the rest is lost", 1)])


def test_the_total_of_decompressed_bytes_is_limited(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress((line("a") + b"\n") * 50_000))
    found, lost = names(path, limits=Limits(max_expanded_bytes=1_000_000))
    assert 0 < len(found) < 50_000
    assert ("expands beyond 1,000,000 bytes: reading stopped", 1) in lost


BOMB = """
import resource, sys
from kvtrace.sources import otlp
list(otlp.read(sys.argv[1], kind="otlp-json", limits=otlp.Limits(max_message_bytes=1 << 20)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = list(otlp.read(sys.argv[2], kind=sys.argv[3]))
details = " ".join(item.detail for one in found for item in one.undecodable)
assert "expands" in details or "zeros" in details, details
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 GiB of zeros in 1 MiB of gzip."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.gz"
    packer = zlib.compressobj(wbits=31)
    zeros = bytes(16 << 20)
    with path.open("wb") as file:
        for _ in range(64):
            file.write(packer.compress(zeros))
        file.write(packer.flush())
    return path


@pytest.mark.parametrize("kind", ["otlp-json", "otlp-proto-frames", "otlp-proto-body"])
def test_a_gibibyte_of_zeros_in_gzip_stops_within_bounds(tmp_path: Path, bomb: Path, kind: str) -> None:
    small = written(tmp_path, line())
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(small), str(bomb), kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300  # MiB


def test_batches_are_cut_near_their_target(tmp_path: Path) -> None:
    path = written(tmp_path, frame(body(size=1000)) * 100)
    with open_input(path) as stream:
        found = list(batches(stream, "otlp-proto-frames", Limits(), target_bytes=10_000))
    sizes = [sum(map(len, item)) for item in found if isinstance(item, list)]
    assert sum(sizes) == 100 * len(body(size=1000))
    assert all(10_000 <= size < 10_000 + 2 * len(body(size=1000)) for size in sizes[:-1])


def test_a_missing_file_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"nowhere: cannot be read \(No such file or directory\)\. Give the path"
    ):
        list(otlp.read(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="Is a directory"):
        otlp.sniff_file(tmp_path)


def test_a_file_of_something_else_is_an_unknown_format_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="no OTLP trace data"):
        list(otlp.read(written(tmp_path, b"hello")))
    with pytest.raises(UsageError, match="no kind of OTLP"):
        list(otlp.read(written(tmp_path, b"hello"), kind="csv"))
    assert list(otlp.read(written(tmp_path, b""))) == []


def test_a_file_is_sniffed_through_its_compression(tmp_path: Path) -> None:
    assert otlp.sniff_file(written(tmp_path, gzip.compress(frame(body())))) == "otlp-proto-frames"
    assert otlp.sniff_file(written(tmp_path, b"hello")) is None
