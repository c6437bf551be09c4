"""kvtrace explain: why was a request slow, in words with numbers."""

from __future__ import annotations

import textwrap
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kvtrace.analyses.explain import explain as ask
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._text import safe
from kvtrace.errors import UsageError
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

_WIDTH = 100


def explain(
    run: Path,
    request: str | None = None,
    /,
    *,
    worst: Annotated[
        int | None, Parameter(help="So many requests, those that waited longest for their first token (3).")
    ] = None,
    ttft_ns: Annotated[int | None, Parameter(help="Target to the first token, ns.")] = None,
    itl_p50_ns: Annotated[int | None, Parameter(help="Target between tokens, median, ns.")] = None,
    itl_p99_ns: Annotated[int | None, Parameter(help="The same, 99th percentile.")] = None,
    e2e_ns: Annotated[int | None, Parameter(help="Target to the end, ns.")] = None,
    evidence: Annotated[bool, Parameter(help="Say below each sentence what it stands on.")] = False,
    form: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Say in six sentences why a request was slow: one request by any of its names, or the slowest ones.

    What it was, where its time went, where its tokens came from, whom it waited for, what became of the
    cache's offer, what was not seen. Where a target is given, whether it was kept. Slow means a long time to
    the first token; a request that never got one counts with the time to its end, or to the run's last
    record. With --format the sentences come out as rows, with their evidence.

    Example:
        kvtrace explain run req-011
    """
    if request is not None and worst is not None:
        raise UsageError("explain: takes a request or --worst, not both.")
    whom: dict[str, Any] = {"requests": () if request is None else (request,)}
    if worst is not None:
        whom["worst"] = worst
    targets: dict[str, Any] = {
        "ttft_ns": ttft_ns,
        "itl_p50_ns": itl_p50_ns,
        "itl_p99_ns": itl_p99_ns,
        "e2e_ns": e2e_ns,
    }
    rows = ask(open_run(run), **whom, **targets)
    if form not in (None, "table") or output is not None:
        write(rows, form, output)
        return
    for line in _lines(rows, evidence=evidence):
        print(line)


def _lines(rows: pl.DataFrame, *, evidence: bool) -> Iterator[str]:
    """A block of text a request."""
    if not rows.height:
        yield "No request is in this run."
    for row in rows.iter_rows(named=True):
        if row["position"] == 1:
            yield f"\n{safe(row['request_id'])}"
        yield from _wrapped(f"{row['position']}. {safe(row['sentence'])}", "  ", "     ")
        if evidence:
            yield from _wrapped(f"({safe(row['evidence'])})", "     ", "     ")


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
