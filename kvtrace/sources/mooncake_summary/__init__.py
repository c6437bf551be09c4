"""Mooncake's summaries for people: the pages `/metrics/summary` of its master and of a client.

    role=leader, state=serving, ..., master={Mem Storage: 26.00 MB / 32.00 MB (81.2%) | ... | Keys: 13 ...}
    Client Metrics Summary
    === Transfer Metrics Summary ===
    Total Read: 8.00 MB

    master.py, client.py    what each line says
    samples.py              names, sizes, rows; mooncake_log.py uses all three

Rows of `metric`, `mooncake_master_summary.<part>.<what>` and `mooncake_client_summary.<part>.<what>`; of
several summaries in one file the label kvtrace.page says which. A page has no time, so rows have none.
Where the pages `/metrics` of the same two are at hand, these are exact and read by the format `prometheus`:

* sizes are rounded to a hundredth of their unit (1024 each), which a note says;
* latencies are bounds of buckets in microseconds. The page takes the rank of p95 down to a whole one, so that
  of one call of 162 us it says p95<50us: below FEWEST_FOR_P95 calls it is left out and counted. The highest
  bucket is the highest one that has a bound: longer calls are not in it;
* requests are rates of the time since the report before (masters since 0.3.10) or totals (older ones): their
  names say which. AllocFail and PartialAlloc count since that report too: gauges. Evictions are totals.

The form: recorded here, mooncake-transfer-engine-non-cuda 0.3.13.post1; the older lines are from public logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.mooncake_summary.client import Report
from kvtrace.sources.mooncake_summary.master import is_master, take_master
from kvtrace.sources.mooncake_summary.samples import FEWEST_FOR_P95, Samples
from kvtrace.sources.records import lines_of
from kvtrace.sources.stream import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

__all__ = ["FEWEST_FOR_P95", "FORMAT", "LONGEST_LINE_BYTES", "looks_like", "read"]

FORMAT = "mooncake-summary"
LONGEST_LINE_BYTES = 1 << 16
"""A master's line has two thousand."""
_CLIENT = (b"Client Metrics Summary", b"=== Transfer Metrics Summary ===")


def looks_like(head: bytes) -> bool:
    """Whether a file begins as one of the two pages."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(_CLIENT) or is_master(text.split(b"\n", 1)[0])


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file of such pages."""
    del options
    samples = Samples(source)
    rows, report = samples.rows, Report(samples)
    for line in lines_of(stream, rows, Limits(max_message_bytes=LONGEST_LINE_BYTES)):
        if is_master(line):
            samples.page += 1
            take_master(line.decode("utf-8", "replace"), samples)
        elif not report.take(line.decode("utf-8", "replace").strip()):
            rows.refuse("lines that no summary of Mooncake has")
        if rows.full:
            yield rows.part()
    samples.finish()
    yield rows.end()
