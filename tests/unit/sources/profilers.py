"""Chrome traces and Nsight Systems exports as the profilers write them, with small numbers in them."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.sources.given import Found

BASE_NS = 1_775_078_550_000_000_000
PID = 514683
HEADER = {
    "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}], "host_name": "host-a",
    "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS,
}  # fmt: skip


def copies(found: Found) -> list[dict[str, Any]]:
    """Of what was read the copies: what is on the device's clock."""
    return found.table("span", clock="gpu")


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


EPOCH_NS = 1_796_026_546_000_000_000
MACHINE = 3 << 48
SCHEMA = """
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum TEXT,
    value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
    deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER,
    dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, graphNodeId INTEGER,
    virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
    returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'CUDA_MEMCPY_KIND_HTOD', 'Host-to-Device'),
    (2, 'CUDA_MEMCPY_KIND_DTOH', 'Device-to-Host'), (8, 'CUDA_MEMCPY_KIND_DTOD', 'Device-to-Device'),
    (10, 'CUDA_MEMCPY_KIND_PTOP', 'Peer-to-Peer'),
    (11, 'CUDA_MEMCPY_KIND_UVM_HTOD', 'Unified Host-to-Device');
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, 'PAGEABLE', 'Pageable'), (1, 'PINNED', 'Pinned'),
    (2, 'DEVICE', 'Device');
INSERT INTO StringIds VALUES (1, 'cudaMemcpyAsync_v3020'), (2, 'cudaGraphLaunch_v10000'),
    (3, 'cudaLaunchKernel_v7000'), (4, 'request:by-id');
"""


class Export:
    """An Nsight Systems export in the making; times in ns of its session, places as (pid, tid)."""

    def __init__(self, path: Path, schema: str = SCHEMA, *, epoch_ns: int | None = EPOCH_NS) -> None:
        self.path = path
        self.db = sqlite3.connect(path)
        self.db.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN; {schema}; COMMIT;"
        )
        if epoch_ns is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=epoch_ns)
            self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", nameEnum="Hostname", value="host-a")

    def add(self, table: str, **values: Any) -> Export:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))
        return self

    def copy(self, start: Any, end: Any, correlation: int | None, kind: int = 1, **more: Any) -> Export:
        row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 20, "bytes": 4096,
               "correlationId": correlation, "globalPid": MACHINE | PID << 24, "copyKind": kind, "srcKind": 1,
               "dstKind": 2}  # fmt: skip
        return self.add("CUPTI_ACTIVITY_KIND_MEMCPY", **row | more)

    def call(self, start: int, correlation: int, name: int = 1, *, pid: int = PID, tid: int = 7) -> Export:
        row = {"start": start, "end": start + 4, "eventClass": 0, "nameId": name, "returnValue": 0,
               "globalTid": MACHINE | pid << 24 | tid, "correlationId": correlation}  # fmt: skip
        return self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **row)

    def range(self, text: str | None, start: int, end: int | None, **more: Any) -> Export:
        row = {"start": start, "end": end, "eventType": 59, "text": text, "domainId": 0,
               "globalTid": MACHINE | PID << 24 | 7}  # fmt: skip
        return self.add("NVTX_EVENTS", **row | more)

    def done(self) -> Path:
        self.db.commit()
        self.db.close()
        return self.path
