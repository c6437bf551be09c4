"""Chrome traces and Nsight Systems exports as the profilers write them, with small numbers in them."""

from __future__ import annotations

import json
from typing import Any

BASE_NS = 1_775_078_550_000_000_000
PID = 514683
HEADER = {
    "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}], "host_name": "host-a",
    "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS,
}  # fmt: skip


def us(ns: int) -> str:
    """Nanoseconds as Kineto writes microseconds."""
    return f"{ns // 1000}.{ns % 1000:03}"


def event(cat: str, name: str, start: int, length: int, *, pid: Any = PID, tid: Any = 7, **args: Any) -> str:
    """One complete event, times in ns, in the layout of Kineto's writer."""
    said = f',\n    "args": {json.dumps(args)}' if args else ""
    return (
        f'{{\n    "ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, '
        f'"tid": {json.dumps(tid)},\n    "ts": {us(start)}, "dur": {us(length)}{said}\n  }}'
    )


def annotation(name: str, start: int, end: int, **place: Any) -> str:
    return event("user_annotation", name, start, end - start, **place)


def call(start: int, correlation: int, name: str = "cudaMemcpyAsync", **place: Any) -> str:
    return event("cuda_runtime", name, start, 4, **place, cbid=41, correlation=correlation)


def copy(start: int, end: int, correlation: int, way: str = "HtoD", **args: Any) -> str:
    sides = {"H": "Pinned", "D": "Device", "P": "Device", "A": "Array"}
    name = f"Memcpy {way} ({sides[way[0]]} -> {sides[way[-1]]})"
    known = {"device": 0, "context": 1, "stream": 20, "correlation": correlation, "bytes": 4096}
    return event("gpu_memcpy", name, start, end - start, pid=0, tid=20, **known | args)


def trace(*events: str, header: dict[str, Any] | None = None, footer: str = '"traceName": "t.json"') -> bytes:
    """A whole document."""
    about = json.dumps(HEADER if header is None else header, indent=2)[:-1].rstrip()
    comma = "," if header is None or header else ""
    return f'{about}{comma}\n  "traceEvents": [\n  {",".join(events)}\n  ],\n  {footer}\n}}'.encode()
