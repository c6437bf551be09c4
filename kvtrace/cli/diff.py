"""kvtrace diff: did it get worse? Sentences, a summary for a pull request, JUnit for a CI server.

Exit codes: 0 pass, 1 regression, 2 bad usage or input, 3 not comparable, 4 inconclusive; 2 > 3 > 1 > 4 > 0.
"""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from kvtrace.cli import _verdicts
from kvtrace.cli._rows import json_lines
from kvtrace.cli._text import sentence
from kvtrace.diff.comparing import compare
from kvtrace.diff.factors import differing
from kvtrace.diff.findings import frame
from kvtrace.diff.gates import default_gates, read_gates
from kvtrace.diff.verdicts import NOT_COMPARABLE
from kvtrace.errors import UsageError
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.diff.comparing import Compared

Form = Literal["table", "markdown", "json", "junit"]


def diff(
    *base: Path,
    vs: Annotated[
        list[Path] | None,
        Parameter(name="--vs", consume_multiple=True, negative="", help="The runs of the new side."),
    ] = None,
    gate: Annotated[Path | None, Parameter(help="TOML file: what may move, and how far.")] = None,
    noise: Annotated[
        list[Path] | None,
        Parameter(
            consume_multiple=True, negative="", help="Runs of one thing (A/A): how runs differ by themselves."
        ),
    ] = None,
    form: Annotated[Form, Parameter(name="--format", help="How the verdicts come out.")] = "table",
) -> int:
    """Hold runs against runs: exit code 0 pass, 1 regression, 3 not comparable, 4 inconclusive.

    The run is the unit: three runs a side at least, or one a side with two A/A runs (--noise). Every gate is
    tested exactly over all ways to call these runs base or head, adjusted over all gates; it is worse only
    when it also moved by more than what matters. Without --gate: time to first token, time between tokens,
    exposed transfer, recomputed tokens, the tail, and no more failed, hung, violated or lost than before.

    Example:
        kvtrace diff base1 base2 base3 --vs head1 head2 head3 --gate gates.toml --format markdown
    """
    if not base or not vs:
        raise UsageError("diff: give runs on both sides, as in kvtrace diff BASE... --vs HEAD...")
    gates = read_gates(gate) if gate else default_gates()
    before, after, beside = ([open_run(path) for path in paths] for paths in (base, vs, noise or []))
    if differences := differing([*before, *beside], after):
        for each in differences:
            print(f"kvtrace: not comparable: {sentence(each)}.", file=sys.stderr)
        return NOT_COMPARABLE
    compared = compare(before, after, gates, beside)
    for line in _lines(compared, form):
        print(line)
    return compared.code


def _lines(compared: Compared, form: Form) -> Iterator[str]:
    if form == "json":
        return json_lines(frame(compared.findings))
    told = {"table": _verdicts.text, "markdown": _verdicts.markdown, "junit": _verdicts.junit}
    return told[form](compared.findings, compared.code)
