"""OTLP traces from files: any of their encodings in, batches of spans in the producer's own words out.

    read(path)                 all that a file holds, batch by batch
    sniff_file(path)           which kind of OTLP it is: otlp-json, otlp-proto-frames, otlp-proto-body
    protobuf.decode(payloads)  bytes -> SpanBatch, pure
    json_lines.decode(lines)   the same for JSON
    batch.SpanBatch            what they return

`stream` decompresses within limits, `sniffing` looks, `framing` cuts, the decoders decode, `batch`
assembles. What the words mean (operations, tiers, requests) is decided elsewhere: here everything is as
the producer wrote it, but content (prompts, completions, token ids), which is counted and dropped.

Attributes are text: strings unchanged, integers decimal, doubles as the shortest text that reads back
equal, booleans true/false, bytes base64, arrays and maps compact JSON; a missing value is left out.
Beyond a span's own attributes there are, where it has them:

    otel.status_message                 status message
    event.<name>.time_unix_nano         time of an event; a second one of its name is event.<name>#2.
    event.<name>.<key>                  attributes of an event
    otel.links                          JSON list of "traceid:spanid"
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from kvtrace.errors import UnknownFormatError, UsageError
from kvtrace.sources.otlp import json_lines, protobuf
from kvtrace.sources.otlp.batch import SpanBatch
from kvtrace.sources.otlp.framing import batches
from kvtrace.sources.otlp.sniffing import BODY, FRAMES, HEAD_BYTES, JSON, sniff
from kvtrace.sources.stream import Limits, Undecodable, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Limits", "SpanBatch", "Undecodable", "read", "sniff_file"]

KINDS = (JSON, FRAMES, BODY)
_DEFAULT_LIMITS = Limits()


def sniff_file(path: Path | str) -> str | None:
    """The kind of OTLP that a file holds, compressed or not; None when it is something else."""
    with open_input(path) as stream:
        return sniff(stream.peek(HEAD_BYTES))


class Others(Protocol):
    """Takes payloads of other signals, which a file may hold too."""

    def __call__(self, payload: bytes, *, text: bool) -> bool:
        """Whether it took a payload."""


def read(
    path: Path | str,
    *,
    kind: str | None = None,
    limits: Limits = _DEFAULT_LIMITS,
    keep_content: bool = False,
    others: Others | None = None,
) -> Iterator[SpanBatch]:
    """Every span of a file, a few megabytes at a time; what cannot be read is in `undecodable`.

    `others` is asked first about each payload: what it takes is no trace.

    Raises InputError when the file cannot be opened, UnknownFormatError when it is no OTLP; a file
    without bytes holds no spans and is no error.
    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of OTLP file. Choose one of {', '.join(KINDS)}.")
    with open_input(path, limits) as stream:
        head = stream.peek(HEAD_BYTES)
        found = kind or sniff(head)
        if found is None:
            if not head.strip() and not stream.losses:
                return
            raise UnknownFormatError(
                f"{path}: no OTLP trace data in its first bytes. Name its kind: one of {', '.join(KINDS)}."
            )
        for item in batches(stream, found, limits):
            yield from _decoded(item, found, others, keep_content=keep_content)


def _decoded(
    item: list[bytes] | Undecodable, kind: str, others: Others | None, *, keep_content: bool
) -> Iterator[SpanBatch]:
    if isinstance(item, Undecodable):
        yield replace(protobuf.decode([]), undecodable=(item,))
        return
    # the Collector frames JSON too when it compresses; a JSON body cannot begin like a protobuf one
    is_text = [kind == JSON or (kind == FRAMES and payload[:1] in (b"{", b"[")) for payload in item]
    traces = [
        (payload, text)
        for payload, text in zip(item, is_text, strict=True)
        if others is None or not others(payload, text=text)
    ]
    texts = [payload for payload, text in traces if text]
    bodies = [payload for payload, text in traces if not text]
    if bodies:
        yield protobuf.decode(bodies, keep_content=keep_content)
    if texts:
        yield json_lines.decode(texts, keep_content=keep_content)
