"""On a real CUDA device with a real torch: `pytest -m gpu`, where there is one.

Each in a process of its own, since wrapping a process's torch cannot be taken back. What a script leaves in
`told` is printed as JSON and checked here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
MIB = 1 << 20
HEAD = """
import json, os, resource, time
import torch
import kvtrace
from kvtrace import recorder
from kvtrace.recorder import place
from kvtrace.recorder.shapes import DEFINITIONS
rows, losses, told = [], [], {}
def record(row):
    rows.append(dict(zip(DEFINITIONS[row[0]].columns, row[1:]), **DEFINITIONS[row[0]].constants))
recorder.record = record
recorder.lost = lambda cause, count=1, **how: losses.append([cause, how.get("op"), how.get("detail")])
from kvtrace.instrument import torch_cuda
torch_cuda.install()
host = torch.ones(64 << 20, dtype=torch.uint8, pin_memory=True)
gpu = torch.empty_like(host, device="cuda")
torch.cuda.synchronize()
def settle(copies, seconds=20):
    until = time.monotonic() + seconds
    while len(rows) + len(losses) < copies and time.monotonic() < until:
        time.sleep(0.01)
"""
TAIL = """
torch_cuda.finish()
told.update(rows=rows[:200], losses=losses[:200], count=len(rows))
print("TOLD" + json.dumps(told))
"""


def run(tmp_path: Path, code: str, **environment: str) -> dict[str, Any]:
    full = {**os.environ, "KVTRACE_OUT": str(tmp_path), "PYTHONPATH": str(Path.cwd()), **environment}
    command = [sys.executable, "-c", HEAD + code + TAIL]
    done = subprocess.run(command, capture_output=True, text=True, env=full, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-4_000:]
    return dict(json.loads(done.stdout.rpartition("TOLD")[2]))


def test_copies_both_ways_have_the_times_that_the_profiler_sees(tmp_path: Path) -> None:
    """Starts and durations within 20 us; the profiler's are unix ns, ours monotonic."""
    told = run(
        tmp_path,
        """
from torch.profiler import ProfilerActivity, profile
with kvtrace.request("warm"):
    gpu.copy_(host, non_blocking=True)
settle(1); rows.clear()
with profile(activities=[ProfilerActivity.CUDA]) as seen:
    with kvtrace.request("r1"):
        for _ in range(10):
            gpu.copy_(host, non_blocking=True)
            host.copy_(gpu, non_blocking=True)
            time.sleep(0.01)
    torch.cuda.synchronize()
settle(20)
monotonic, unix = place.clock_pair()
told["offset"] = unix - monotonic
events = [e for e in seen.profiler.kineto_results.events() if e.name().startswith("Memcpy")]
told["profiler"] = sorted([e.start_ns(), e.duration_ns()] for e in events)
""",
    )
    assert told["losses"] == []
    assert [row["op"] for row in told["rows"]] == ["load", "store"] * 10
    assert len(told["profiler"]) == 20
    for row, (start_ns, duration_ns) in zip(told["rows"], told["profiler"], strict=True):
        assert row["bytes"] == 64 * MIB
        assert row["submit_ns"] <= row["start_ns"] <= row["end_ns"]
        assert abs(row["end_ns"] - row["start_ns"] - duration_ns) < 20_000
        assert abs(row["start_ns"] + told["offset"] - start_ns) < 20_000


def test_nothing_synchronises_and_the_caller_does_not_wait(tmp_path: Path) -> None:
    """A kernel of a second is before the copy on its stream; the call returns at once, the start is late."""
    told = run(
        tmp_path,
        """
with kvtrace.request("warm"):
    gpu.copy_(host, non_blocking=True)
settle(1); rows.clear()
torch.cuda.set_sync_debug_mode("error")
torch.cuda._sleep(2_000_000_000)
begun = time.monotonic_ns()
with kvtrace.request("r1"):
    gpu.copy_(host, non_blocking=True)
told["call_ns"] = time.monotonic_ns() - begun
settle(1)
""",
    )
    (row,) = told["rows"]
    assert told["losses"] == []
    assert told["call_ns"] < 5_000_000
    assert row["start_ns"] - row["submit_ns"] > 200_000_000


def test_a_graph_is_captured_while_the_reaper_reads(tmp_path: Path) -> None:
    """In the driver's strictest mode a query of another thread would break the capture."""
    told = run(
        tmp_path,
        """
small = torch.zeros(1024, device="cuda")
with kvtrace.request("r1"):
    for _ in range(50):
        torch.cuda._sleep(20_000_000)
        gpu.copy_(host, non_blocking=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        for _ in range(2_000):
            small.add_(1)
            time.sleep(0.0001)
    graph.replay()
torch.cuda.synchronize()
told["sum"] = float(small[0])
settle(50)
told["relaxed"] = torch_cuda._here[os.getpid()].reaper._relaxed
""",
    )
    assert told["sum"] == 2_000
    assert told["relaxed"] is True
    assert told["count"] == 50
    assert told["losses"] == []


def test_two_streams_are_two_lanes_and_a_stream_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
with kvtrace.request("r1"):
    for _ in range(2):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            gpu[: 1 << 20].copy_(host[: 1 << 20], non_blocking=True)
        del stream
    host.to("cuda"); gpu.cpu(); host.cuda()
settle(5)
""",
    )
    assert told["losses"] == []
    assert len({row["stream"] for row in told["rows"]}) == 3
    assert sorted(row["op"] for row in told["rows"]) == ["load"] * 4 + ["store"]
    assert {row["device"] for row in told["rows"]} == {"cuda:0"}


def test_pointers_say_their_side(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
device = torch_cuda._here[os.getpid()].device
told["sides"] = [device.pointer_side(t.data_ptr()) for t in (gpu, host, torch.ones(9))]
""",
    )
    assert told["sides"] == [0, -1, -1]


def test_a_million_copies_leak_nothing(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
recorder.record = lambda row: rows.append(1) if len(rows) < 100 else None
a, b = gpu[:64], host[:64]
def many(times):
    with kvtrace.request("r1"):
        for at in range(times):
            a.copy_(b, non_blocking=True)
            if at % 1000 == 0:
                torch.cuda.synchronize(); time.sleep(0.004)
many(100_000); time.sleep(0.5)
told["before"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.mem_get_info()[0]]
begun = time.monotonic()
many(900_000); time.sleep(0.5)
told["seconds"] = time.monotonic() - begun
told["after"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.cuda.mem_get_info()[0]]
told["pairs"] = torch_cuda._here[os.getpid()].reaper.stations[0].pool.made
rows.clear()
""",
    )
    assert told["after"][0] - told["before"][0] < 16_384  # KiB
    assert told["before"][1] - told["after"][1] < 16 * MIB
    assert told["pairs"] <= 4_096
