"""A process of its own, with a torch that is a file beside it: from the environment to rows in the spool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kvtrace.sources.spool.decode import SpoolReader, together

TORCH = """
import types
class Tensor:
    is_cuda = False
    def numel(self): return 1024
    def element_size(self): return 4
    def copy_(self, src, non_blocking=False): return self
    def to(self, *args, **kwargs): return self
    def cuda(self, device=None): return self
    def cpu(self): return self
cuda = types.SimpleNamespace()
version = types.SimpleNamespace(cuda=None, hip=None)
"""
HEAD = "import os, sys, time, kvtrace\nfrom kvtrace import recorder\n"
COPIES = """
from kvtrace.instrument import torch_cuda
def place():
    from kvtrace.instrument.torch_cuda.stand_in import place
    import torch
    return place(torch.Tensor())
with kvtrace.request("r1"):
    import torch
    for _ in range(3):
        place().copy_(torch.Tensor())
"""


def run(tmp_path: Path, code: str, **environment: str) -> tuple[str, list[dict[str, Any]], dict[str, int]]:
    """What a process printed, its rows, and its losses."""
    (tmp_path / "torch.py").write_text(TORCH)
    out = tmp_path / "run"
    out.mkdir(exist_ok=True)
    full = {**os.environ, "KVTRACE_OUT": str(out), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}", **environment}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], capture_output=True, text=True, env=full, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows: list[dict[str, Any]] = []
    losses: dict[str, int] = {}
    for file in out.glob("spool/*.kvspool"):
        for batch in together(list(SpoolReader(file).frames())):
            if batch.table == "span":
                rows += batch.columns.to_pylist()
            if batch.table == "loss":
                for loss in batch.columns.to_pylist():
                    losses[str(loss["cause"])] = losses.get(str(loss["cause"]), 0) + loss["count"]
    return done.stdout, rows, losses


def test_copies_reach_the_spool_by_the_reapers_thread(tmp_path: Path) -> None:
    code = COPIES + "time.sleep(0.2)\nrecorder.flush()\nprint(len(torch_cuda._here))"
    said, rows, losses = run(tmp_path, code, KVTRACE_DEVICE="stand-in")
    assert said.split() == ["1"]
    assert [(row["op"], row["request_id"], row["bytes"], row["clock"]) for row in rows] == [
        ("load", "r1", 4096, "gpu"),
    ] * 3  # fmt: skip
    for row in rows:
        assert row["submit_ns"] <= row["start_ns"] <= row["end_ns"]
    assert losses == {}


def test_a_process_that_ends_at_once_still_writes_what_is_over(tmp_path: Path) -> None:
    _, rows, losses = run(tmp_path, COPIES, KVTRACE_DEVICE="stand-in")
    assert len(rows) == 3
    assert losses == {}


def test_threads_that_copy_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        COPIES
        + """
import threading
def work(name):
    target, source = place(), torch.Tensor()
    with kvtrace.request(name):
        for _ in range(500):
            target.copy_(source)
threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    )
    _, rows, losses = run(tmp_path, code, KVTRACE_DEVICE="stand-in")
    assert losses == {}
    assert Counter(row["request_id"] for row in rows) == {"r1": 3, "t0": 500, "t1": 500, "t2": 500, "t3": 500}
    for row in rows:
        assert row["submit_ns"] <= row["start_ns"] <= row["end_ns"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_that_ends_at_once_writes_too(tmp_path: Path, method: str) -> None:
    """Its last copies end 30 ms later: the recording waits for them, a little."""
    busy = "    copies = torch_cuda._here[os.getpid()].device\n    copies.work(copies.default, 30_000_000)\n"
    again = "    with kvtrace.request('r2'): place().copy_(torch.Tensor())\n"
    body = COPIES.replace("\n", "\n    ").rstrip() + "\n" + busy + again
    (tmp_path / "work.py").write_text("import os, kvtrace\ndef work():" + body)
    code = f"""
import multiprocessing, work
context = multiprocessing.get_context({method!r})
child = context.Process(target=work.work)
child.start()
child.join()
"""
    _, rows, losses = run(tmp_path, code, KVTRACE_DEVICE="stand-in")
    assert [row["request_id"] for row in rows] == ["r1"] * 3 + ["r2"]
    assert losses == {}


def test_copies_of_a_forked_child_are_its_own(tmp_path: Path) -> None:
    code = (
        COPIES
        + """
child = os.fork()
with kvtrace.request("child" if child == 0 else "parent"):
    place().copy_(torch.Tensor())
if child == 0:
    torch_cuda.finish()
    recorder.close()
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    _, rows, losses = run(tmp_path, code, KVTRACE_DEVICE="stand-in")
    assert sorted(row["request_id"] for row in rows) == ["child", "parent", "r1", "r1", "r1"]
    assert losses == {}


@pytest.mark.parametrize(
    "environment",
    [{"KVTRACE_OUT": ""}, {"KVTRACE_DEVICE": ""}, {"KVTRACE_DEVICE": "stand-in", "KVTRACE_COPIES": "off"}],
    ids=["no run", "no gpu", "not asked for"],
)
def test_without_a_reason_nothing_of_torch_is_wrapped(tmp_path: Path, environment: dict[str, str]) -> None:
    code = COPIES + "print(torch.Tensor.copy_.__module__, hasattr(torch.Tensor.copy_, '__wrapped__'))"
    said, rows, losses = run(tmp_path, code, **environment)
    assert said.split() == ["torch", "False"]
    assert (rows, losses) == ([], {})


def test_a_torch_without_cuda_says_that_its_copies_are_idle(tmp_path: Path) -> None:
    code = COPIES + ("from kvtrace.instrument import importing\nprint(importing.status()[torch_cuda.PART])")
    said, _, losses = run(tmp_path, code)
    assert said.strip() == "idle: this torch has no CUDA"
    assert losses == {}


def test_torch_is_never_imported_for_us(tmp_path: Path) -> None:
    code = "kvtrace.request('r1')\nprint('torch' in sys.modules)"
    said, _, _ = run(tmp_path, code, KVTRACE_DEVICE="stand-in")
    assert said.split() == ["False"]
