"""What is measured of one run: a number, the requests it rests on, and an interval where one run has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import many
from kvtrace.analyses.fallbacks import VERDICTS, fallbacks
from kvtrace.analyses.hit_ratio import hit_ratio
from kvtrace.analyses.ledger import ledger
from kvtrace.analyses.ledger import table as ledger_table
from kvtrace.analyses.ledger.tokens_out import between_tokens
from kvtrace.analyses.slo import slo
from kvtrace.diff import measuring
from kvtrace.experiment.groups import intervals

if TYPE_CHECKING:
    from kvtrace.experiment.plan import Slo
    from kvtrace.run import Run

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MEASURES: dict[str, str] = {
    "completed": "count",
    "errors": "count",
    "aborted": "count",
    "open": "count",
    "fallbacks": "count",
    **{f"ttft_{name}_ns": "ns" for name in SHARES},
    "ttft_mean_ns": "ns",
    **{f"itl_{name}_ns": "ns" for name in SHARES},
    "e2e_mean_ns": "ns",
    "slo": "share",
    "exposed_transfer_mean_ns": "ns",
    "hit": "share",
    "recomputed_tokens": "tokens",
    "loaded_bytes": "bytes",
    "stored_bytes": "bytes",
    "losses": "count",
}
"""Metric -> its unit, in the order in which they are shown; fallbacks, slo and hit are families: hit.host."""

_STATES = """
SELECT count(status), count(*) FILTER (status = 'ok'), count(*) FILTER (status = 'error'),
    count(*) FILTER (status = 'aborted'), count(*) FILTER (end_ns IS NULL), count(*)
FROM request WHERE evidence IS DISTINCT FROM 'predicted'
"""
_E2E = """
SELECT request_id, CASE WHEN duration_ns >= 0 AND status IS DISTINCT FROM 'error'
    AND status IS DISTINCT FROM 'aborted' THEN duration_ns::DOUBLE END AS value
FROM request WHERE evidence IS DISTINCT FROM 'predicted'
"""
_PROMPTS = """
SELECT request_id FROM request WHERE prompt_tokens IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
"""
_STORED = """
SELECT count(*), count(bytes), sum(bytes)::DOUBLE,
    len(list_distinct(flatten(list(list_concat(
        [request_id], list_transform(members, lambda m: m.request_id))))))
FROM transfer
WHERE op = 'store' AND coalesce(tier_from, 'gpu') = 'gpu' AND evidence IS DISTINCT FROM 'predicted'
    AND coalesce(outcome, 'ok') NOT IN ('failed', 'timeout', 'cancelled', 'skipped')
"""


@dataclass(frozen=True)
class Found:
    """A measure of one run.

    value: null: not observed
    rows: how many requests it rests on
    span: its own interval, where one run has one
    frame: its value a request (key, value), where it is their mean
    remark: what limits it, or why it is null
    """

    value: float | None
    rows: int = 0
    span: tuple[float | None, float | None] | None = None
    frame: pl.DataFrame | None = None
    remark: str | None = None


def measured(run: Run, targets: Slo | None) -> dict[str, Found]:
    """Every measure of one run; a family has the members that this run knows."""
    rows = ledger(run)
    return {
        **_states(run),
        **_verdicts(run),
        **_first_tokens(run),
        **_between(run),
        "e2e_mean_ns": _mean(_keyed(run, _E2E), "the finish of no request was observed"),
        **_attained(run, targets),
        "exposed_transfer_mean_ns": _mean(
            measuring.values(run, "exposed_transfer_ns"), "no exposure is exact (kvtrace run records steps)"
        ),
        **_hits(run, rows),
        "recomputed_tokens": _sum(rows["recomputed_tokens"]),
        "loaded_bytes": _sum(rows["loaded_bytes"]),
        "stored_bytes": _stored(run),
        "losses": Found(measuring.counted(run, "losses"), rows.height),
    }


def _states(run: Run) -> dict[str, Found]:
    ((told, ok, failed, cut, unended, every),) = run.connection().sql(_STATES).fetchall()
    left = every - told
    nobody = "nobody recorded how requests ended" if not told else None
    if told and left:
        nobody = f"of {many(left, 'request')} it is not known how {'it' if left == 1 else 'they'} ended"
    counts = {"completed": ok, "errors": failed, "aborted": cut}
    found = {name: Found(n if told else None, every, remark=nobody) for name, n in counts.items()}
    return found | {"open": Found(unended, every)}


def _verdicts(run: Run) -> dict[str, Found]:
    """Requests by what became of the cache's offer; of a run without an external tier there is none."""
    counted = fallbacks(run)["verdict"]
    names = dict(counted.drop_nulls().value_counts().iter_rows())
    unknown = counted.null_count()
    remark = f"of {many(unknown, 'request')} the verdict is not known" if unknown else None
    if not counted.len():
        return {}
    return {f"fallbacks.{name}": Found(names.get(name, 0), counted.len(), remark=remark) for name in VERDICTS}


def _first_tokens(run: Run) -> dict[str, Found]:
    frame = measuring.values(run, "ttft_ns").filter(pl.col("value").is_null() | (pl.col("value") >= 0))
    ordered = frame["value"].drop_nulls().sort().to_numpy()
    left = frame["value"].null_count()
    remark = (
        f"{many(left, 'request')} without a first token {'stands' if left == 1 else 'stand'} beside it"
        if left and len(ordered)
        else None
    )
    found = {"ttft_mean_ns": _mean(frame, "no first token was observed")}
    for name, share in SHARES.items():
        value, span = intervals.of_quantile(ordered, share)
        said = remark if len(ordered) else "no first token was observed"
        found[f"ttft_{name}_ns"] = Found(value, len(ordered), span, remark=said)
    return found


def _between(run: Run) -> dict[str, Found]:
    """Over all times between tokens; these of one request are not independent: one run has no interval."""
    values, requests = between_tokens(run, tuple(SHARES.values()), ledger_table(run))
    return {
        f"itl_{name}_ns": Found(value, requests, remark=None if requests else "no step was recorded")
        for name, value in zip(SHARES, values, strict=True)
    }


def _attained(run: Run, targets: Slo | None) -> dict[str, Found]:
    asked = {} if targets is None else {name: getattr(targets, name) for name in targets.__struct_fields__}
    asked = {name: target for name, target in asked.items() if target is not None}
    if targets is None:
        rows = slo(run)
    elif asked:
        rows = slo(run, **{**dict.fromkeys(targets.__struct_fields__), **asked})
    else:
        return {}
    found = {}
    for row in rows.to_dicts():
        share = None if row["attained"] is None else row["attained"] / row["requests"]
        left = f"of {many(row['censored'], 'request')} it is not known" if row["censored"] else None
        found[f"slo.{row['metric']}"] = Found(share, row["requests"], remark=left)
    return found


def _hits(run: Run, requests: pl.DataFrame) -> dict[str, Found]:
    """Share of the prompts' tokens that came from each tier; null where one of its parts is not known."""
    rows = hit_ratio(run)
    found = {}
    prompts = run.connection().sql(_PROMPTS).pl()
    of_gpu = requests.filter(pl.col("gpu_hit_tokens").is_not_null()).join(prompts, on="request_id").height
    for (tier,), parts in rows.group_by("tier", maintain_order=True):
        known = parts["of_prompt"].null_count() == 0
        found[f"hit.{tier}"] = Found(
            float(parts["of_prompt"].sum()) if known else None, of_gpu if tier == "gpu" else prompts.height,
            remark=None if known else "the split by tier is not known",
        )  # fmt: skip
    return found


def _stored(run: Run) -> Found:
    ((stores, sized, total, requests),) = run.connection().sql(_STORED).fetchall()
    if not sized:
        return Found(None, 0, remark="no store with its bytes was recorded")
    left = f"{stores - sized} of {stores} stores do not say their bytes" if sized < stores else None
    return Found(total, requests, remark=left)


def _sum(values: pl.Series) -> Found:
    """Over the requests of which it is known."""
    known = values.drop_nulls()
    if not known.len():
        return Found(None, 0, remark="observed for no request")
    left = values.null_count()
    return Found(
        float(known.sum()),
        known.len(),
        remark=f"of {many(left, 'request')} it is not known" if left else None,
    )


def _mean(frame: pl.DataFrame, nobody: str) -> Found:
    known = frame["value"].drop_nulls()
    if not known.len():
        return Found(None, 0, remark=nobody)
    return Found(float(known.sum()) / known.len(), known.len(), frame=frame)


def _keyed(run: Run, query: str) -> pl.DataFrame:
    rows = pl.DataFrame(run.connection().sql(query).to_arrow_table())
    return measuring.keys(run).join(rows, on="request_id", how="inner").select("key", "value")
