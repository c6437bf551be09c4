"""kvtrace check: every contract that a run can be held to, as sentences and as an exit code.

1   a contract is violated, a warning included
4   none is violated, and of one at least it cannot be told; or nothing could be checked
0   what could be checked holds
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
from cyclopts import Parameter

from kvtrace.analyses import question, questions
from kvtrace.analyses._text import many, utc
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._text import safe
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.run import Run

CHECKS = ("lock_contract", "compatibility")
"""The questions that are contracts, in this order; their rows say `invariant` and `status`."""
HELD, VIOLATED, INCONCLUSIVE = 0, 1, 4
MOST = 20
"""Sentences of one invariant; the rest is counted."""
_NEUTRAL = ("pass", "unobserved", "not_applicable")


def check(
    run: Path,
    /,
    *,
    bound_s: Annotated[
        float, Parameter(help="Seconds in which what was submitted, or locked, must complete.")
    ] = 60.0,
    form: FormatOption = None,
    output: OutputOption = None,
) -> int:
    """Check every contract of a run: exit code 0 pass, 1 violated, 4 inconclusive.

    1: a contract was seen violated (a warning counts); a sentence a violation. 4: none was, and one at least
    cannot be judged, because records are missing or only a part was watched; or nothing in the run could be
    checked. 0: all that could be checked holds. A contract whose records are wholly absent is unobserved:
    named, and neutral.

    `kvtrace describe lock_contract` and `kvtrace describe compatibility` say what is checked. With --format
    the findings come out as rows.

    Example:
        kvtrace check run
    """
    opened = open_run(run)
    findings = ask(opened, bound_s=bound_s)
    code = verdict(findings["status"])
    if form not in (None, "table") or output is not None:
        write(findings, form, output)
        return code
    for line in _lines(findings.to_dicts(), code, _lost(opened)):
        print(line)
    return code


def ask(run: Run, *, bound_s: float = 60.0) -> pl.DataFrame:
    """The findings of all contracts, one below the other; `check` names the question that each is of."""
    options: dict[str, dict[str, Any]] = {"lock_contract": {"bound_s": bound_s}}
    frames = [
        question(name)(run, **options.get(name, {})).select(pl.lit(name).alias("check"), pl.all())
        for name in CHECKS
        if name in questions()
    ]
    return pl.concat(frames, how="diagonal_relaxed")


def verdict(statuses: Iterable[str]) -> int:
    """The exit code of these findings."""
    found = set(statuses)
    if "violated" in found:
        return VIOLATED
    return INCONCLUSIVE if "inconclusive" in found or "pass" not in found else HELD


def _lost(run: Run) -> int:
    query = "SELECT coalesce(sum(count), 0)::DOUBLE FROM loss WHERE cause IS DISTINCT FROM 'duplicate'"
    ((count,),) = run.connection().sql(query).fetchall()
    return int(count)


def _lines(rows: list[dict[str, Any]], code: int, lost: int) -> Iterator[str]:
    """A sentence a violation, one of what cannot be judged, the names of the rest, and the verdict."""
    for row in rows:
        row["status"] = row["status"].replace("_", " ")
    violated = [row for row in rows if row["status"] == "violated"]
    yield from _violations(violated)
    for row in rows:
        if row["status"] == "inconclusive":
            yield safe(f"{row['invariant']} is inconclusive: {row['detail']}.")
    for status in (word.replace("_", " ") for word in _NEUTRAL):
        if names := [row["invariant"] for row in rows if row["status"] == status]:
            yield safe(f"{status}: {', '.join(names)}.")
    if lost:
        yield f"lost: {many(lost, 'record')}; what rests on them cannot pass (kvtrace info names them)."
    yield _verdict(rows, code)


def _violations(rows: list[dict[str, Any]]) -> Iterator[str]:
    told: Counter[str] = Counter()
    every = Counter(row["invariant"] for row in rows)
    for row in rows:
        name = row["invariant"]
        told[name] += 1
        if told[name] <= MOST:
            warning = " (warning)" if row["severity"] == "warning" else ""
            yield safe(f"{name} is violated{warning}: {row['detail']}{_whose(row)}.")
        elif told[name] == every[name]:
            yield f"{name} is violated {many(every[name] - MOST, 'time')} more; --format csv shows all."


def _whose(row: dict[str, Any]) -> str:
    """Whose state it was and when, as far as it is known."""
    said = [f"{what} {row[of]}" for what, of in (("request", "request_id"), ("key", "key")) if row[of]]
    if row["time_ns"] is not None:
        said.append(f"at {utc(row['time_ns'])}")
    return f" ({', '.join(said)})" if said else ""


def _verdict(rows: list[dict[str, Any]], code: int) -> str:
    numbers = Counter(row["status"] for row in rows)
    counted = ", ".join(
        many(number, "violation") if status == "violated" else f"{number:,} {status}"
        for status, number in sorted(numbers.items(), key=lambda each: (each[0] != "violated", each[0]))
    )
    if code == INCONCLUSIVE and not numbers["inconclusive"]:
        return f"inconclusive: nothing could be checked ({counted})."
    word = {HELD: "pass", VIOLATED: "violated", INCONCLUSIVE: "inconclusive"}[code]
    return f"{word}: {counted}."
