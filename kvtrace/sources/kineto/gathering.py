"""Events -> what is held of them: copies, the calls that ask for copies, ranges. All else is counted by kind.

    gpu_memcpy (before 2022: Memcpy)            a copy; its process is the device's number
    cuda_runtime, cuda_driver, ... (Runtime)    a call, if by its name it copies or launches a graph
    user_annotation                             a range of a thread
    Operator                                    a range where it names a request: those years had no other

Threads and processes were texts in older traces and are numbers now: both are read.
"""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from kvtrace.sources.kineto.event import Event, arguments, text_of
from kvtrace.sources.kineto.numbers import nanoseconds, whole_text
from kvtrace.sources.profiled.names import named, range_name
from kvtrace.sources.records import LATEST_NS, MAX_TEXT, text, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.sources.profiled.held import Held
    from kvtrace.sources.records import Rows

COPIES = frozenset({"gpu_memcpy", "Memcpy"})
RANGES = frozenset({"user_annotation", "Operator"})
CALLS = frozenset(
    {"Runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver",
     "privateuse1_runtime", "privateuse1_driver", "mtia_runtime", "musa_runtime", "musa_driver"}
)  # fmt: skip
_ASKS = re.compile(rb"emcpy|MemoryCopy|GraphLaunch|CommandListAppend")
_WANTED = COPIES | RANGES | CALLS
_OWNER = 0
"""A trace is one process's: whoever numbers its calls is one."""
LONG = f"ranges without a name, or with one of more than {MAX_TEXT} characters, are left out"
_CATEGORY = attrgetter("cat")


class Gathering:
    """Takes events, holds what is wanted, counts what is not."""

    def __init__(self, held: Held, rows: Rows) -> None:
        self._held = held
        self._rows = rows
        self.other: Counter[str] = Counter()

    def take(self, events: Sequence[Event]) -> None:
        """A piece of a trace."""
        for kind, count in Counter(map(_CATEGORY, events)).items():
            if kind not in _WANTED and kind is not None:
                known = kind in self.other or len(self.other) < 64
                self.other[kind[:64] if known else "others"] += count
        for event in events:
            if event.cat in _WANTED and event.ph == "X":
                if event.cat in CALLS:
                    self._call(event)
                elif event.cat in COPIES:
                    self._copy(event)
                else:
                    self._range(event)

    def _times(self, event: Event, op: str | None) -> tuple[int, int] | None:
        start, length = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        if start is None or length is None or start < 0:
            self._rows.refuse("events without a time", op=op, cause="impossible_time")
        elif length < 0:
            self._rows.refuse("events that end before they begin", op=op, cause="negative_duration")
        else:
            return start, start + length
        return None

    def _call(self, event: Event) -> None:
        """Of the hundreds of thousands of calls only those that copy."""
        if not _ASKS.search(event.name):
            return
        start, name = nanoseconds(bytes(event.ts)), text(text_of(event.name))
        correlation = whole(arguments(event).correlation)
        if start is None or name is None or correlation is None:
            self._rows.refuse("calls without a time or a correlation id")
            return
        place = _thread(event.tid), whole_text(bytes(event.pid))
        self._held.calls.add((start, name, correlation, _OWNER, *place), self._rows)

    def _copy(self, event: Event) -> None:
        times = self._times(event, None)
        name = text_of(event.name)
        if times is None:
            return
        if text(name) is None:
            self._rows.refuse("copies without a name")
            return
        said = arguments(event)
        device = said.device if said.to_device is None else said.to_device
        origin = None if said.from_device == said.to_device else said.from_device
        row = (
            *times, whole(said.bytes), name, _device(device), _device(origin), _number(said.stream),
            whole(said.correlation), _OWNER, _number(said.graph_node) if said.graph_node else None, None,
        )  # fmt: skip
        self._held.copies.add(row, self._rows)

    def _range(self, event: Event) -> None:
        name = range_name(text_of(event.name))
        if event.cat == "Operator" and (name is None or named(name) is None):
            return
        times = self._times(event, None)
        if times is None:
            return
        if name is None:
            self._rows.remark(LONG)
            return
        place = _thread(event.tid), whole_text(bytes(event.pid))
        self._held.ranges.add((*times, name, *place, None), self._rows)


def _thread(raw: bytes) -> str | None:
    """A thread, named by its number."""
    number = whole_text(bytes(raw))
    return None if number is None else str(number)


def _number(value: object) -> str | None:
    """A number, or a name, as the trace gives it."""
    if type(value) is int and 0 <= value <= LATEST_NS:
        return str(value)
    return text(value)


def _device(value: object) -> str | None:
    """A device as torch names it."""
    return f"cuda:{value}" if type(value) is int and 0 <= value <= LATEST_NS else None
