"""SGLang's log: what its cache says of prefetches, write-backs and failures, where nothing else was recorded.

    [2026-11-30 08:00:00 DP0 TP1] HiCache prefetch success req=r0 completed=1024 matched=0 loaded=1024 ...

    messages.py   the sentences, and which row each is
    reading.py    lines one by one: time, rank, what is counted

Known from the source of 0.5.18 and 0.5.23 (mem_cache/, managers/), whose sentences differ; nobody's sentence
is read twice. A line is a point: it says when something was over, not since when. Its time has no zone: it is
read as UTC, which is what containers run in, and that is said; whole seconds unless SGLANG_LOG_MS is set.
Logs of requests (--log-requests) hold prompts: they are counted and dropped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.decoded import Decoded
from kvtrace.sources.records import lines_of
from kvtrace.sources.sglang_log.reading import PREFIX, Log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Options
    from kvtrace.sources.stream import Stream

FORMAT = "sglang-log"
_ITS_OWN = re.compile(
    rb"\] (?:server_args=ServerArgs\(|HiCache |Prefill batch|Decode batch|write_back: "
    rb"|Write page to storage: |Attaching HiCache |Prefetch operation |Creating storage backend '"
    rb"|Tree cache initialized: )"
)


def looks_like(head: bytes) -> bool:
    """Whether some line that begins as SGLang's do says something that only SGLang says."""
    return any(PREFIX.match(line) and _ITS_OWN.search(line) for line in head.split(b"\n"))


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    log = Log(source)
    for line in lines_of(stream, log.rows):
        log.line(line)
        if log.rows.full:
            yield log.rows.part()
    log.finish()
    yield log.rows.end()
    yield Decoded(identities=tuple(log.identities()))
