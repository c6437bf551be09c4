"""What the first computed token needs of each group of layers was restored, or was on the GPU already.

    group     needs before token 10    GPU      restored
    full      |==========|             |===|       |======|    covered
    window          |====|                          |=====|    covered
    window          |====|                            |===|    lacks one token: violated
    recurrent            =             state after 10          covered; of another token: violated

A count of loaded tokens shows none of this: it is the same for all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing, products, weakest
from kvtrace.analyses.lock_contract._retained import retained

if TYPE_CHECKING:
    from kvtrace.run import Run

_COUNTS = """
SELECT verdict, state_kind, grouping(state_kind) = 1, count(*),
    count(DISTINCT hash(engine, request_id, transfer_id)), list(DISTINCT evidence)
FROM retained GROUP BY GROUPING SETS ((verdict, state_kind), (verdict)) ORDER BY state_kind, verdict
"""
_VIOLATED = """
SELECT request_id, time_ns, number, kind, span, lacking::DOUBLE, needed::DOUBLE, first::DOUBLE, rank, evidence
FROM retained WHERE verdict = 'lacking' ORDER BY time_ns, request_id, engine, number, rank
"""


def retained_state_covered(run: Run, asked: Asked) -> list[Finding]:
    """By asynchronous load of vLLM, group and rank; what was seen lacking stands whatever records are lost.

    A load that the engine was told to be bad is not judged: it computes again what did not arrive.
    """
    connection = retained(asked)
    counts = connection.sql(_COUNTS).fetchall()
    if not counts:
        if "vllm" in products(run):
            return [Finding("unobserved", "what a load is needed for was not recorded (kvtrace run would)")]
        return [Finding("not_applicable", "no vLLM in this run")]
    loads = {verdict: number for verdict, _, of_all, _, number, _ in counts if of_all}
    rows = connection.sql(_VIOLATED).fetchall() if "lacking" in loads else []
    covered = [
        f"{kind} {groups:,}"
        for verdict, kind, of_all, groups, *_ in counts
        if verdict == "covered" and not of_all
    ]
    told = f"{many(loads.get('covered', 0), 'load')} covered"
    if covered:
        told += f" ({', '.join(covered)})"
    for verdict, word in (("failed", "told to be bad"), ("cancelled", "of requests that were over")):
        told += f", {loads[verdict]:,} {word}" if verdict in loads else ""
    if loads.keys() <= {"failed", "cancelled", "untold"} and not missing(run, ("load",)).count:
        if "untold" in loads:
            by = "nobody said what was restored by group (vLLM's native offloading does)"
            told = f"of {many(loads['untold'], 'load')} {by}; {told}"
        return [Finding("unobserved", told)]
    reasons = (
        missing(run, ("load",)).said,
        f"{many(loads['open'], 'load')} open" if "open" in loads else None,
        f"of {many(loads['untold'], 'load')} nobody said what was restored" if "untold" in loads else None,
    )
    evidence = weakest(word for *_, words in counts for word in words)
    return judged([_violation(*row) for row in rows], reasons, Finding("pass", told, evidence))


def _violation(
    request_id: str | None, time_ns: int, number: int, kind: str | None, span: str | None, lacking: float,
    needed: float, first: float, rank: int | None, evidence: str | None,
) -> Finding:  # fmt: skip
    group = f"group {number} ({kind}{f' of {span}' if span else ''})"
    where = "" if rank is None else f" on rank {rank}"
    if kind == "recurrent":
        detail = f"{group} has no state of exactly token {first:,.0f}{where}"
    else:
        detail = f"{group} lacks {lacking:,.0f} of the {needed:,.0f} tokens before token {first:,.0f}{where}"
    return Finding("violated", detail, evidence, "error", request_id, None, time_ns)
