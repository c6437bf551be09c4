"""A line of glog -> a record; a line that is none belongs to the record before it, or to nobody."""

from __future__ import annotations

import re
from typing import NamedTuple

_RECORD = re.compile(
    rb"[IWEF](?P<year>\d{4})?(?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<part>\d{6})"
    rb" +\d{1,10} (?P<file>[\w.]{1,80}):(?P<line>\d{1,6})\] "
)
_OTHERS = re.compile(
    rb"(?:\([^()]{1,64} pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \["  # vLLM
    rb"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"  # LMCache, SGLang
)
_FILES = frozenset({
    "master_service.cpp", "master_admin_service.cpp", "rpc_service.cpp", "client_service.cpp",
    "client_metric.cpp", "real_client.cpp", "transfer_engine_impl.cpp", "transfer_metadata.cpp",
    "transfer_engine.cpp", "transfer_engine_py.cpp", "transfer_metadata_plugin.cpp", "transfer_task.cpp",
    "tcp_transport.cpp", "rdma_transport.cpp",
    "pybind_client.cpp", "dummy_client.cpp",
})  # fmt: skip
"""Files of its code that prove Mooncake; master.cpp, client.cpp and segment.cpp others have too (Mesos)."""
_SURE = (
    b"Mooncake",
    b"Master Metrics: ",
    b"Master Admin Metrics: ",
    b"Client Metrics Report:",
    b"Client metrics ",
)


class Record(NamedTuple):
    """One record.

    when: `11-30 08:11:24` or `2026-11-30 08:11:24,000`, as engine_logs/clock.py takes it
    part_ns: what of a second there is beyond it
    place: file and line of the code
    """

    when: str
    part_ns: int
    place: str
    message: bytes
    is_mooncake: bool


def record(line: bytes) -> Record | None:
    """The record that a line begins."""
    found = _RECORD.match(line)
    if found is None:
        return None
    day = f"{found['month'].decode()}-{found['day'].decode()} {found['time'].decode()}"
    when = day if found["year"] is None else f"{found['year'].decode()}-{day},000"
    file, message = found["file"].decode(), line[found.end() :].strip()
    sure = file in _FILES or any(word in message for word in _SURE)
    place = f"{file}:{found['line'].decode()}"
    return Record(when, int(found["part"]) * 1_000, place, message, sure)


def is_others(line: bytes) -> bool:
    """Whether a line is a record of an engine, whose log this then is."""
    return _OTHERS.match(line) is not None
