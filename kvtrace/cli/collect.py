"""kvtrace collect: what engines export while they run, received and polled, as a run."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvtrace.cli._text import safe, sentence
from kvtrace.collect import MAX_MESSAGE_BYTES, Settings
from kvtrace.collect import collect as collect_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.collect import CollectReport

_MIB = 1 << 20


def collect(
    *,
    out: Annotated[Path, Parameter(help="The run to make; it must not exist.")],
    otlp_grpc: Annotated[
        str | None, Parameter(help="HOST:PORT for OTLP over gRPC; port 0: any free one.")
    ] = None,
    otlp_http: Annotated[
        str | None, Parameter(help="HOST:PORT for OTLP over HTTP (/v1/traces, metrics, logs).")
    ] = None,
    kv_events: Annotated[
        tuple[str, ...],
        Parameter(
            help="Where KV events are published: tcp://HOST:PORT or ipc://PATH, with ,replay=URL to fill "
            "gaps or ,bind to be connected to; or file:///FOLDER, Dynamo's DYN_FILE_KV.",
            negative=(),
            show_default=False,
        ),
    ] = (),
    metrics: Annotated[
        tuple[str, ...],
        Parameter(help="Pages of metrics to poll: http://HOST:PORT.", negative=(), show_default=False),
    ] = (),
    status: Annotated[
        tuple[str, ...],
        Parameter(
            help="Status pages to poll: LMCache's http://HOST:PORT/status, Mooncake's /kv_events/status.",
            negative=(),
            show_default=False,
        ),
    ] = (),
    every: Annotated[float, Parameter(help="Seconds from one poll of a page to the next.")] = 5.0,
    for_: Annotated[float | None, Parameter(name="--for", help="Stop after so many seconds.")] = None,
    token_file: Annotated[
        Path | None,
        Parameter(help="File with the token that exporters must send; else KVTRACE_COLLECT_TOKEN."),
    ] = None,
    max_message: Annotated[
        int, Parameter(help="The longest export in MiB, compressed or not.")
    ] = MAX_MESSAGE_BYTES // _MIB,
    group: Annotated[str | None, Parameter(help="Name of the group the run belongs to.")] = None,
    keep_content: Annotated[
        bool, Parameter(help="Keep prompts and completions; run.json says so.", negative=())
    ] = False,
) -> None:
    """Receive and poll what engines export, until Ctrl-C, SIGTERM or --for, and write a run of it.

    Prints a line a listener, such as `otlp-grpc 127.0.0.1:4317`, when it listens, and at the end what each
    source gave and lost. Prompt text and token ids are counted and dropped as they arrive.

    It listens on this machine alone. An address that others reach needs a token, which exporters send as the
    header (gRPC: metadata) `authorization: Bearer TOKEN`; without TLS it can be overheard.

    Rows wait on disk beside the run, in .RUN.collecting-*, and memory stays flat. The run appears at the end;
    a SIGKILL leaves that folder and no run: it can be deleted.

    Example:
        kvtrace collect --out run --otlp-grpc 127.0.0.1:4317 --otlp-http 127.0.0.1:4318
    """
    settings = Settings(
        out=out, otlp_grpc=otlp_grpc, otlp_http=otlp_http, kv_events=kv_events, metrics=metrics,
        status=status, for_seconds=for_, every_seconds=every, token_file=token_file, group=group,
        keep_content=keep_content, max_message_bytes=max_message * _MIB,
    )  # fmt: skip
    with _stopping() as stop:
        _print(collect_run(settings, stop, listening=_listening, say=_say))


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C gives the run up."""
    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(line: str) -> None:
    print(safe(line), flush=True)


def _say(text: str) -> None:
    """A sentence for whoever watches; if nobody does any more, collecting goes on."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"kvtrace: {sentence(text)}", file=sys.stderr, flush=True)


def _print(report: CollectReport) -> None:
    for source in report.sources:
        other = f", {source.other_rows} other rows" if source.other_rows else ""
        print(f"{safe(source.name)}: {source.spans} spans{other}")
        for cause, count in source.lost.items():
            known = "came twice, counted once: " if cause == "duplicate" else "lost: "
            print(f"    {known}{count} {safe(cause)}")
        for note in source.notes:
            print(f"    {safe(note)}")
    rows = ", ".join(f"{count} {table}" for table, count in report.rows.items() if count)
    print(f"{safe(str(report.run))}: {rows or 'no rows'}")
    print(f"Next: kvtrace report {safe(shlex.quote(str(report.run)))}")
