"""A master's line -> samples: parts between ` | `, each with its own way to write numbers.

Mem Storage: 26.00 MB / 32.00 MB (81.2%)                         used, capacity
Keys: 13 (soft-pinned: 0)
Requests (Success/Total per sec): PutStart=3.59/5.85, ...        rates; older: totals
Batch Requests (...): PutStart:(Req=0/0/0, Item=0/0), ...        success / partial success / total
Eviction: Success/Attempts=2/2, AllocFail=12, size=12.00 MB      name by name
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.mooncake_summary.samples import number, snake

if TYPE_CHECKING:
    from kvtrace.sources.mooncake_summary.samples import Samples

PREFIX = "mooncake_master_summary"
_BARE = re.compile(rb"\s*Mem Storage: [\d.]{1,20} [KMGTPE]?B / ")
_WRAPPED = re.compile(rb"\s*role=\w{1,40}, state=\w{1,40}, service_ready=(?:true|false), master=\{")
_STATE = re.compile(r"role=(\w+), state=(\w+), service_ready=(true|false), master=\{(.*)\}", re.ASCII)
_HA = "HA Metrics Summary: "
_USE = re.compile(r"([\d.]+ [KMGTPE]?B) / ([\d.]+ [KMGTPE]?B)(?: \([\d.]+%\))?", re.ASCII)
_KEYS = re.compile(r"(\d+) \(soft-pinned: (\d+)\)", re.ASCII)
_REQUEST = re.compile(r"(\w{1,60})=([\d.]{1,24})/([\d.]{1,24})", re.ASCII)
_BATCH = re.compile(r"(\w{1,60}) ?[:=] ?\(([^()]{0,200})\)", re.ASCII)
_COUNTS = re.compile(r"(Req|Item)=([\d./]{1,80})", re.ASCII)
_PAIR = re.compile(r"([A-Za-z][\w/]{0,80}(?:\([\w/]{1,80}\))?)=([\d./]{1,80}(?: [KMGTPE]?B)?)", re.ASCII)
_THREE = ("success", "partial_success", "total")
_GAUGES = frozenset({
    "eviction.alloc_fail", "eviction.partial_alloc", "discard.staging_size_bytes", "promotion.in_flight",
    "ha.lag", "ha.pending", "ha.mutation_queue", "ha.state",
})  # fmt: skip
_COUNTED = ("eviction.", "mem_eviction.", "nof_eviction.", "discard.", "promotion.", "snapshots.", "ha.")
"""Parts whose numbers only grow, but for _GAUGES."""


def is_master(line: bytes) -> bool:
    """Whether a line is a summary of a master."""
    return bool(_BARE.match(line) or _WRAPPED.match(line)) and b" | Keys: " in line


def take_master(line: str, samples: Samples) -> None:
    """The samples of a line; parts that this version does not know are counted by name."""
    body, _, ha = line.strip().partition(f", ha={{{_HA}")
    wrapped = _STATE.fullmatch(body)
    if wrapped:
        ready = 1.0 if wrapped[3] == "true" else 0.0
        samples.add(f"{PREFIX}.service_ready", "gauge", ready, role=wrapped[1], state=wrapped[2])
        body = wrapped[4]
    for part in body.split(" | "):
        name, _, said = part.partition(": ")
        if not _part(name.strip(), said, samples):
            samples.rows.ignore("a master's summary", [name.strip()])
    if ha:
        _pairs("ha", ha, samples)


def _part(name: str, said: str, samples: Samples) -> bool:
    """One part; False when it has no number that is known."""
    if found := _USE.match(said):
        what = f"{PREFIX}.{snake(name)}"
        return all([
            samples.add_size(f"{what}.used_bytes", "gauge", found[1]),
            samples.add_size(f"{what}.capacity_bytes", "gauge", found[2]),
        ])  # fmt: skip
    if name == "Keys" and (found := _KEYS.match(said)):
        samples.add(f"{PREFIX}.keys", "gauge", float(found[1]))
        samples.add(f"{PREFIX}.soft_pinned_keys", "gauge", float(found[2]))
        return True
    if name == "Clients" and (count := number(said.strip())) is not None:
        samples.add(f"{PREFIX}.clients", "gauge", count)
        return True
    if name.startswith("Requests ("):
        return _requests("per sec" in name, said, samples)
    if name.startswith("Batch Requests ("):
        return _batches("per sec" in name, said, samples)
    return _pairs(snake(name), said, samples)


def _requests(is_rate: bool, said: str, samples: Samples) -> bool:  # noqa: FBT001 - one of two forms
    found = _REQUEST.findall(said)
    for op, *counts in found:
        _count("requests", ("success", "total"), counts, samples, is_rate=is_rate, op=op)
    return bool(found)


def _batches(is_rate: bool, said: str, samples: Samples) -> bool:  # noqa: FBT001 - one of two forms
    found = _BATCH.findall(said)
    for op, inner in found:
        for what, numbers in _COUNTS.findall(inner):
            part = "batch_requests" if what == "Req" else "batch_items"
            counts = numbers.split("/")
            names = _THREE if len(counts) == len(_THREE) else (_THREE[0], _THREE[2])
            _count(part, names, counts, samples, is_rate=is_rate, op=op)
    return bool(found)


def _count(
    part: str, names: tuple[str, ...], counts: list[str], samples: Samples, *, is_rate: bool, op: str
) -> None:
    """Rates have a name of their own: they are no totals."""
    for name, text in zip(names, counts, strict=False):
        value = number(text)
        if value is None:
            continue
        what = f"{PREFIX}.{part}.{name}"
        if is_rate:
            samples.add(f"{what}_per_s", "gauge", value, op=op)
        else:
            samples.add(what, "counter", value, op=op)


def _pairs(part: str, said: str, samples: Samples) -> bool:
    """`Success/Attempts=2/2, size=12.00 MB, rejected(freq/wm/cap)=0/0/0`."""
    found = _PAIR.findall(said)
    for name, text in found:
        whole, _, reasons = name.rstrip(")").partition("(")
        if text.endswith("B"):
            what = f"{part}.{snake(whole)}"
            what = what if what.endswith("bytes") else f"{what}_bytes"
            samples.add_size(f"{PREFIX}.{what}", _kind(what), text)
            continue
        names = [snake(each) for each in whole.split("/")]
        counts = text.split("/")
        for number_of, value in enumerate(map(number, counts)):
            if value is None:
                continue
            if reasons:
                why = [*reasons.split("/"), *["other"] * len(counts)][number_of]
                samples.add(f"{PREFIX}.{part}.{names[0]}", _kind(f"{part}.{names[0]}"), value, why=why)
            elif number_of < len(names):
                what = f"{part}.{names[number_of]}"
                samples.add(f"{PREFIX}.{what}", _kind(what), value)
    return bool(found)


def _kind(name: str) -> str | None:
    if name in _GAUGES:
        return "gauge"
    if name in ("ha.last_seq", "ha.applied_seq"):
        return None
    return "counter" if name.startswith(_COUNTED) else None
