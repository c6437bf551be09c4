"""Log of LMCache's server: transfers, finds, evictions and what went wrong.

Lines and meanings: engine_logs/. A lookup that found nothing writes no line, and a transfer's line names no
request: such a log says how much moved and when, not whose it was. Recorded here: LMCache 0.5.5 on a CPU;
other forms are read from its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.reading import LMCACHE, kinds, read_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "lmcache-log"


def looks_like(head: bytes) -> bool:
    """Whether LMCache has records among the first lines, and vLLM none."""
    return kinds(head) == {LMCACHE}


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file."""
    del options
    return read_log(stream, source, LMCACHE)
