"""What every decoder costs on the recorded file that is its own: `python -m tests.bench.decoders`.

Rows and megabytes a CPU second, beside what reading the same bytes into Python objects alone costs (msgspec
for JSON and msgpack, protobuf's own classes, splitting lines for text): a ratio in one run. The files are
small, so the fixed cost of a part shows; formats with a benchmark of their own are import_otlp, kv_events,
prometheus, kineto and nsight. Four formats of which no file is recorded here, or a tiny one, are drawn.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from kvtrace.importer.formats import HASH_LOG, decoders, format_of
from kvtrace.sources import lmcache_hash_log
from kvtrace.sources.decoded import Options
from kvtrace.sources.stream import open_input
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from tests.unit.sources import test_kvbm_recorder, test_sglang_log

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RECORDED = sorted((Path(__file__).parents[1] / "unit").rglob("recorded"))
SUFFIXES = {".txt", ".json", ".jsonl", ".lct", ".msgpack", ".log", ".ring", ".binpb"}
CPU_S = 1.0
DRAWN_REQUESTS = 2_000


def largest() -> dict[str, Path]:
    """Of each format the largest recorded file."""
    found: dict[str, Path] = {}
    files = [path for place in (SAMPLES, *RECORDED) for path in place.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_size):
        name = format_of(path) if path.suffix in SUFFIXES else None
        if name in decoders():
            found[str(name)] = path
    return found


def drawn(folder: Path) -> dict[str, Path]:
    """Files of formats that nothing recorded here is large enough of."""
    life = "".join(json.dumps(call) + "\n" for call in test_kvbm_recorder.LIFE)
    lines = [f"[2026-11-30 08:00:00] {test_sglang_log.SUCCESS}\n"] * DRAWN_REQUESTS
    lookup = {
        "timestamp": 1.8e9, "request_id": "r", "model_name": "m", "chunk_size": 256, "seq_len": 8192,
        "chunk_hashes": [f"0x{number:064x}" for number in range(32)],
    }  # fmt: skip
    status = {"enabled": True, "published_batches": 1, "published_events": 2, "dropped_events": 0}
    files = {
        "kvbm-recorder": "".join(life.replace('"r"', f'"r{number}"') for number in range(DRAWN_REQUESTS)),
        "sglang-log": f"[2026-11-30 08:00:00] {test_sglang_log.FILE}\n" + "".join(lines),
        "lmcache-hash-log": (json.dumps(lookup) + "\n") * DRAWN_REQUESTS,
        "mooncake-kv-events-status": json.dumps(status | {"skipped_unparsed_keys": 0}),
    }
    found = {}
    for name, text in files.items():
        found[name] = folder / f"{name}.drawn.{'log' if name == 'sglang-log' else 'jsonl'}"
        found[name].write_text(text)
    return found


def rows_of(name: str, path: Path) -> int:
    """How many rows the decoder makes of the file."""
    if name == HASH_LOG:
        return len(lmcache_hash_log.decode(path.read_bytes().splitlines(), path.name).keys)
    with open_input(path) as stream:
        parts = decoders()[name].read(stream, path.name, Options(digest_key=b"k" * 32))
        return sum(frame.height for part in parts for frame in part.tables.values())


def bare(path: Path) -> int:
    """The same bytes as Python objects, without a meaning."""
    content = path.read_bytes()
    if path.suffix == ".lct":
        at, count = 0, 0
        while at + 4 <= len(content):
            size = int.from_bytes(content[at : at + 4], "big")
            msgspec.msgpack.decode(content[at + 4 : at + 4 + size])
            at, count = at + 4 + size, count + 1
        return count
    if path.suffix == ".binpb":
        at, count = 0, 0
        while at + 4 <= len(content):
            size = int.from_bytes(content[at : at + 4], "big")
            MetricsData.FromString(content[at + 4 : at + 4 + size])
            at, count = at + 4 + size, count + 1
        return count
    if path.suffix == ".json":
        msgspec.json.decode(content)
        return 1
    lines = content.splitlines()
    return sum(bool(msgspec.json.decode(line)) for line in lines) if path.suffix == ".jsonl" else len(lines)


def cpu_s(call: Callable[..., Any], *arguments: Any) -> float:
    """CPU seconds of one call, the mean of as many as fill CPU_S."""
    call(*arguments)
    began, calls = time.process_time(), 0
    while (spent := time.process_time() - began) < CPU_S:
        call(*arguments)
        calls += 1
    return spent / calls


def main() -> None:
    """One line a format."""
    print(f"{'format':28}{'rows/CPU s':>12}{'MB/CPU s':>10}{'x bare parse':>14}  file")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in sorted((largest() | drawn(Path(folder))).items()):
            own, plain = cpu_s(rows_of, name, path), cpu_s(bare, path)
            rows, megabytes = rows_of(name, path) / own, path.stat().st_size / 1e6 / own
            print(f"{name:28}{rows:12,.0f}{megabytes:10.1f}{own / plain:14.1f}  {path.name}")


if __name__ == "__main__":
    main()
