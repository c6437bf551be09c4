"""Log of vLLM: what an engine says of its requests and of its caches, LMCache's client among them.

Lines and meanings: engine_logs/. What comes out: how the engine saw its external cache (`health`), inquiries
that timed out, stores that were dropped, preemptions, transfers of an LMCache inside the engine, requests
where they are logged, and the periodic lines as gauges. Recorded here: vLLM 0.32 with LMCache 0.5.5 on a
CPU; other forms are read from their source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.engine_logs.reading import VLLM, kinds, read_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "vllm-log"


def looks_like(head: bytes) -> bool:
    """Whether vLLM has records among the first lines."""
    return VLLM in kinds(head)


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    return read_log(stream, source, VLLM)
