"""Responses of OpenAI-compatible servers, as clients keep them: what the caller saw of its request.

    {"request_id": ..., "response_id": ..., "usage": ..., "started_ns": ...}  a client's own notes
    {"path": ..., "hdr": ..., "status": 200, "resp": "...", "t0": ...}      a tap with headers and body
    {"id": "chatcmpl-...", "object": "chat.completion", "usage": ...}       bare responses
    data: {"id": "chatcmpl-...", "object": "chat.completion.chunk", ...}    bare chunks, usage in the last

One row a request, seen by the client. `usage.prompt_tokens_details.cached_tokens` is what the engine says it
loaded; absent is null, not 0. A bare response has only `created`, whole seconds of the server: its row starts
there and says so in the attribute `start`. What was asked and answered is counted and dropped.

The answer to several prompts is one row too. vLLM 0.32 then sums prompt and completion tokens over the
prompts and gives the cached_tokens of one of them; the import, which knows the engine's requests, makes it
their call (importer/several_prompts.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.openai_responses.forms import DATA, Responses, is_error, kind
from kvtrace.sources.records import first_values, lines_of, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "openai-responses"
_CUT = re.compile(rb'\s*\{"id"\s*:\s*"(?:chatcmpl|cmpl)-')


def looks_like(head: bytes) -> bool:
    """Whether the first lines are responses in any of the four forms, error bodies among them."""
    found = first_values(head)
    if found:
        return any(map(kind, found)) and all(kind(value) or is_error(value) for value in found)
    chunks = [line.removeprefix(DATA) for line in head.split(b"\n") if line.startswith(DATA)]
    if chunks:
        return kind(parse(chunks[0])) == "bare" or bool(_CUT.match(chunks[0]))
    return bool(_CUT.match(head)) and b'"object"' in head


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file; nothing of its content is ever kept, whatever the options say."""
    del options
    taker = Responses(source)
    for line in lines_of(stream, taker.rows):
        taker.line(line)
        if taker.rows.full:
            yield taker.rows.part()
    taker.finish()
    yield taker.rows.end()
