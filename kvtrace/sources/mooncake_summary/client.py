"""A client's summary, line by line -> samples: a title says what the lines below it are.

=== Interface Operation Metrics Summary ===
Read Interfaces:
get_buffer: count=1, bytes=2.00 MB, p95<50us, max<300us
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.mooncake_summary.samples import number, size, snake

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.sources.mooncake_summary.samples import Samples

PREFIX = "mooncake_client_summary"
_TITLE = re.compile(r"=== (.{1,60}) ===")
_FACT = re.compile(r"(count|bytes|ops|p95|max)[=<]([\d.]+)", re.ASCII)
_BYTES = re.compile(r"bytes=([\d.]+ [KMGTPE]?B)", re.ASCII)
_OVER = re.compile(r"([\d.]+ [KMGTPE]?B)/s \(([\d.]+ [KMGTPE]?B) over ([\d.]+)s\)", re.ASCII)
_EMPTY = ("No data", "No RPC calls recorded")
FIRST = ("Client Metrics Summary", "=== Transfer Metrics Summary ===")


class Report:
    """Takes the lines of summaries, one after the other."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._part: Callable[[str, str], bool] | None = None
        self._direction = "unknown"
        self._named = False
        self._parts: dict[str, Callable[[str, str], bool]] = {
            "Transfer Metrics Summary": self._transfer, "Latency Summary (microseconds)": self._latency,
            "RPC Metrics Summary": self._rpc, "Interface Operation Metrics Summary": self._interface,
            "SSD Metrics Summary": self._ssd, "SSD Latency Summary (microseconds)": self._ssd_latency,
            "Interval Throughput Summary": self._interval,
        }  # fmt: skip

    def take(self, line: str) -> bool:
        """One line without blanks around it; False when no summary has it."""
        if line in FIRST:
            self._samples.page += line == FIRST[0] or not self._named
            self._named = line == FIRST[0]
            self._part = self._transfer if line == FIRST[1] else None
            return True
        if title := _TITLE.fullmatch(line):
            self._part = self._parts.get(title[1], self._other)
            if self._part == self._other:
                self._samples.rows.ignore("a client's summary", [title[1]])
            return True
        if line in _EMPTY:
            return self._part is not None
        name, colon, said = line.partition(":")
        return bool(colon) and self._part is not None and self._part(name, said.strip())

    def end(self) -> None:
        """Something else follows."""
        self._part = None

    def _other(self, _name: str, _said: str) -> bool:
        return True

    def _transfer(self, name: str, said: str) -> bool:
        words = name.split()
        if words[:1] == ["Total"] and len(words) > 1:
            return self._samples.add_size(f"{PREFIX}.transfer.{snake(words[1])}_bytes", "counter", said)
        if words[:1] == ["Average"] and len(words) > 1:
            what = f"{PREFIX}.transfer.average_{snake(words[1])}_bytes_per_s"
            return self._samples.add_size(what, "gauge", said.removesuffix("/s"))
        return False

    def _latency(self, name: str, said: str) -> bool:
        return self._timed("latency", said, op=snake(name))

    def _rpc(self, name: str, said: str) -> bool:
        return self._timed("rpc", said, rpc=name[:60])

    def _interface(self, name: str, said: str) -> bool:
        if name.endswith(" Interfaces") and said in ("", *_EMPTY):
            self._direction = snake(name.removesuffix(" Interfaces"))
            return True
        if found := _BYTES.search(said):
            labels = {"op": name[:60], "direction": self._direction}
            self._samples.add_size(f"{PREFIX}.interface.bytes", "counter", found[1], **labels)
        return self._timed("interface", said, op=name[:60], direction=self._direction)

    def _ssd(self, name: str, said: str) -> bool:
        amount, comma, rest = said.partition(", ops=")
        op, ops = snake(name.removeprefix("SSD ")), number(rest)
        if not comma or ops is None or size(amount) is None:
            return False
        self._samples.add(f"{PREFIX}.ssd.ops", "counter", ops, op=op)
        return self._samples.add_size(f"{PREFIX}.ssd.bytes", "counter", amount, op=op)

    def _ssd_latency(self, name: str, said: str) -> bool:
        return self._timed("ssd_latency", said, op=snake(name))

    def _interval(self, name: str, said: str) -> bool:
        """What was moved since the report before: a rate, the bytes, and the seconds."""
        found = _OVER.fullmatch(said)
        seconds = number(found[3]) if found else None
        if found is None or seconds is None:
            return False
        what, direction = f"{PREFIX}.interval", snake(name.removesuffix(" Throughput"))
        self._samples.add(f"{what}.seconds", "gauge", seconds, direction=direction)
        return self._samples.add_size(f"{what}.bytes", "gauge", found[2], direction=direction)

    def _timed(self, part: str, said: str, **labels: str) -> bool:
        if said in _EMPTY:
            return True
        facts = dict(_FACT.findall(said))
        if number(facts.get("count")) is None:
            return False
        self._samples.add_latencies(f"{PREFIX}.{part}", facts, **labels)
        return True
