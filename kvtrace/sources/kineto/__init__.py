"""Chrome traces of PyTorch's profiler (Kineto), .json or .json.gz: a device's copies, and who asked for them.

    numbers.py    the text of a number -> whole ns       event.py       what of an event is looked at
    document.py   a file of any size -> pieces           gathering.py   events -> what is held
    ../profiled   what is held -> rows of `span`, and how a copy comes to its request

Time: `ts` counts microseconds from `baseTimeNanoseconds`, unix ns; without it `ts` is unix time itself if it
can be one (after 2001), else nothing is known of its clock and times are null. Kineto has brought the times
of the device to the host's clock: a copy's clock is `gpu`, its times are unix ns.

process: `host_name` (torch 2.13 writes it) and the caller's pid; without it null, the pid in the
attributes. rank: distributedInfo's. A copy between devices is named after the one that receives.

A trace without a device has no copies: its ranges are rows, and nothing else is. Kernels, operators, Python
frames, counters and flows are counted by kind and not kept.

The form is known from a trace recorded here (torch 2.13, CPU, with kvtrace's own annotations), from public
traces of GPUs (pytorch/kineto: an H100's, a V100's of 2021; copies in the tests of HolisticTraceAnalysis) and
from Kineto's source (output_json.cpp, CuptiActivity.cpp). Traces of ROCm and XPU: by the source alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.kineto.document import Document
from kvtrace.sources.kineto.gathering import Gathering
from kvtrace.sources.profiled.held import Held
from kvtrace.sources.profiled.rows import parts
from kvtrace.sources.records import LATEST_TIME_NS, Rows, at, text, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "kineto"
FIRST_UNIX_NS = 978_307_200_000_000_000
"""2001-01-01: an earlier time is none of a trace, but counts from something else."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEADER = re.compile(rb'"(?:schemaVersion|deviceProperties|computeProperties|baseTimeNanoseconds)"\s*:')
_LONG_HEADER = re.compile(rb'\{\s*"schemaVersion"\s*:\s*1\s*,\s*"(?:device|compute)Properties"\s*:')
_KINDS = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime|cuda_driver|gpu_memcpy|kernel|python_function'
    rb'|cpu_instant_event|ac2g)"'
)


def looks_like(head: bytes) -> bool:
    """Whether a file begins as a chrome trace that has Kineto's header, or its kinds of events."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start.startswith(b"{"):
        return False
    if _EVENTS.search(start):
        return bool(_HEADER.search(start) or _KINDS.search(start))
    return _LONG_HEADER.match(start) is not None


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The parts of a trace; its rows come when all of it has been read."""
    rows, held = Rows(source), Held(FORMAT)
    document, gathering = Document(stream, rows), Gathering(held, rows)
    for events in document.pieces():
        gathering.take(events)
    for loss in stream.losses:
        rows.refuse(loss.detail, count=loss.count)
    _place(held, document.about, rows)
    yield from parts(held, rows)
    if gathering.other:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in gathering.other.most_common(12))
        rows.remark(f"events of other kinds are not kept: {kinds}; in all", sum(gathering.other.values()))
    yield rows.end()


def _place(held: Held, about: dict[str, Any], rows: Rows) -> None:
    """When and where a trace was taken, as far as it says so."""
    held.host = text(about.get("host_name"))
    held.rank = whole(at(about.get("distributedInfo"), "rank"))
    base = about.get("baseTimeNanoseconds")
    known = whole(base)
    if base is not None and (known is None or known > LATEST_TIME_NS):
        rows.refuse("base times that are none", cause="impossible_time")
        known = None
    starts = [column.frame()["start_ns"].median() for column in (held.copies, held.ranges)]
    if any(isinstance(start, float) and start >= FIRST_UNIX_NS for start in starts):
        held.offset_ns = 0  # a median: one event with a wrong time does not unhinge the rest
    elif known is not None and known >= FIRST_UNIX_NS:
        held.offset_ns = known
