"""A line of a log -> a record.

Before a record there may be what wrote it down: a container runtime's time (`kubectl logs --timestamps`, CRI,
docker's JSON file), a service's name (compose, journal), a pod's. Colours are dropped. vLLM's JSON form is
read too. A line that is no record (a traceback, an access log, a banner) is None.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kvtrace.sources.records import parse, parsed, text, whole

VLLM, LMCACHE = "vllm", "lmcache"
LONGEST = 1 << 16
"""Bytes of a line that are looked at; a record that goes on is cut there."""


class Record(NamedTuple):
    """One record, times as they are written.

    stamp: a runtime's own time, ISO 8601 with an offset; None when there is none
    when: `2026-11-30 04:06:01,595` (LMCache, JSON) or `11-30 04:06:01` (vLLM)
    place: file and line of the code, `core.py:402`
    name, pid: the process, as vLLM calls it
    cut: the message goes on
    """

    product: str
    stamp: str | None
    when: str
    place: str
    name: str | None
    pid: int | None
    message: str
    cut: bool


_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}m")
_LEVELS = rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_RECORD = re.compile(
    rb"(?:\[pod/[^\]\s]{1,200}\] |[\w.-]{1,100} +\| "
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,100} [^\s:]{1,100}: )?"
    rb"(?:(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) "
    rb"(?:std(?:out|err) [FP] )?)?"
    rb"(?:\((?P<name>[^()]{1,64}) pid=(?P<pid>\d{1,10})\) )?"
    rb"(?:" + _LEVELS + rb" (?P<day>\d\d-\d\d \d\d:\d\d:\d\d) \[?(?P<place>[^\[\]\s]{1,200}:\d{1,7})\] "
    rb"|\[(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] LMCache " + _LEVELS + rb": )"
)  # fmt: skip
_OWN_PLACE = re.compile(rb" \((?P<place>[^():\s]{1,200}:\d{1,7}):[^():\s]{1,200}\)\s*$")


def record(line: bytes) -> Record | None:
    """The record of a line."""
    if line.startswith(b"{"):
        return _from_json(line)
    cut = len(line) > LONGEST
    if cut:
        line = line[:LONGEST]
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    found = _RECORD.match(line)
    if found is None:
        return None
    stamp, name, pid, day, place, date = found.groups()
    message = line[found.end() :]
    if day is None and (own := _OWN_PLACE.search(message, max(0, len(message) - 512))):
        place, message = own["place"], message[: own.start()]
    return Record(
        VLLM if day else LMCACHE,
        stamp.decode() if stamp else None,
        (day or date).decode(),
        "unknown" if place is None else place.decode("utf-8", "replace"),
        name.decode("utf-8", "replace") if name else None,
        int(pid) if pid else None,
        message.strip().decode("utf-8", "replace"),
        cut,
    )


def _from_json(line: bytes) -> Record | None:
    """A record in vLLM's JSON, or a line that docker wrapped."""
    value = parse(line) if len(line) <= LONGEST else None
    if not parsed(value) or not isinstance(value, dict):
        return None
    if isinstance(value.get("log"), str) and isinstance(value.get("time"), str):
        inner = value["log"].encode("utf-8", "replace")
        found = None if inner.startswith(b"{") else record(inner)
        return found and found._replace(stamp=found.stamp or text(value["time"]))
    wanted = [value.get(name) for name in ("asctime", "levelname", "name", "message")]
    if not all(isinstance(item, str) for item in wanted) or not str(value["name"]).startswith("vllm"):
        return None
    return _json_record(value)


def _json_record(value: dict[str, Any]) -> Record:
    place = str(value["name"]).rpartition(".")[2]
    return Record(
        VLLM, None, value["asctime"][:40], place[:64] or "unknown", text(value.get("processName")),
        whole(value.get("process")), value["message"].strip(), cut=False,
    )  # fmt: skip
