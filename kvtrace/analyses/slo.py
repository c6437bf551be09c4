"""The question `slo`: which share of the requests was served in time?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from kvtrace.analyses.ledger import table as ledger_table
from kvtrace.errors import UsageError
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "group": pl.String,
        "metric": pl.String,
        "target_ns": pl.Int64,
        "requests": pl.Int64,
        "attained": pl.Int64,
        "censored": pl.Int64,
    }
)
METRICS = ("ttft_ns", "itl_p50_ns", "itl_p99_ns", "e2e_ns")
TTFT_NS, ITL_P99_NS = 2_000_000_000, 200_000_000
MOST_NS = 2**63 - 1

_REQUESTS = """
WITH record AS (
    SELECT engine, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
    FROM span GROUP BY engine
    UNION ALL SELECT engine, last_ns FROM process
), engine_end AS (
    SELECT engine, max(last_ns) AS last_ns FROM record WHERE engine IS NOT NULL GROUP BY engine
), run_end AS (
    SELECT max(last_ns) AS last_ns FROM record
), told AS (
    SELECT request_id, ttft_ns, itl_p50_ns, itl_p99_ns, status AS state, verdict FROM read_parquet($ledger)
)
SELECT
    CASE $by WHEN 'engine' THEN r.engine WHEN 'verdict' THEN t.verdict ELSE $run_group END AS "group",
    r.end_ns IS NULL AS is_open, t.state IS NOT DISTINCT FROM 'aborted' AS is_cut,
    t.state IS NOT DISTINCT FROM 'error' AS is_failed, r.request_id,
    t.ttft_ns, t.itl_p50_ns, t.itl_p99_ns, r.duration_ns AS e2e_ns, r.output_tokens,
    CASE WHEN coalesce(r.end_ns, e.last_ns, n.last_ns) >= r.start_ns
        THEN TRY_CAST(coalesce(r.end_ns, e.last_ns, n.last_ns)::HUGEINT - r.start_ns AS BIGINT) END AS seen_ns
FROM request r JOIN told t USING (request_id) LEFT JOIN engine_end e ON e.engine = r.engine
CROSS JOIN run_end n
WHERE r.evidence IS DISTINCT FROM 'predicted'
"""


def slo(
    run: Run,
    *,
    ttft_ns: int | None = TTFT_NS,
    itl_p50_ns: int | None = None,
    itl_p99_ns: int | None = ITL_P99_NS,
    e2e_ns: int | None = None,
    by: Literal["group", "engine", "verdict"] = "group",
) -> pl.DataFrame:
    """Which share of the requests was served within its target?

    A row a group and target. Attainment is attained / requests: only requests of which it is known count, and
    those of which it is not stand beside them. A request in time has a value at most the target. One that
    failed is not in time, however fast it was. One that is open or was aborted is not in time where it had
    been waited for longer than the target without the value: to its end or, while open, to the last record of
    its engine. One that finished within the target had its first token within it too. What is left was
    aborted or still open before its target, or nobody recorded what the value is made of: censored.
    A request with one token at most has no time between tokens: it is in no row of these. Simulated requests
    are in none.

    Without targets of your own these are those of MLPerf Inference's server scenario for Llama 2 70B (2 s to
    the first token, 200 ms between tokens; there of a mean over a request, here of its 99th percentile).

    Args:
        run: the run
        ttft_ns: target of arrival to first token, ns
        itl_p50_ns: target of the median of the times between a request's tokens, ns
        itl_p99_ns: target of their 99th percentile, ns
        e2e_ns: target of arrival to finish, ns
        by: what the groups are: the run's own group (kvtrace run --group), engines, or verdicts of
            `fallbacks`

    Columns:
        group: the group; null for a run that names none, or requests of which it is not known
        metric: ttft_ns, itl_p50_ns, itl_p99_ns or e2e_ns
        target_ns: what a request may take, ns
        requests: requests of which it is known whether they were in time
        attained: those that were; null when of none it is known
        censored: requests of which it is not known

    Raises:
        UsageError: no target, a negative one, one beyond 64 bits, or `by` is something else.
    """
    asked = stated("slo", ttft_ns, itl_p50_ns, itl_p99_ns, e2e_ns)
    if not asked:
        raise UsageError("slo: give at least one target.")
    if by not in ("group", "engine", "verdict"):
        raise UsageError(f"slo: by must be group, engine or verdict, not {by}.")
    rows = _requests(run, by)
    judged = [_judged(rows, metric, target) for metric, target in asked.items()]
    return pl.concat(judged).sort("group", maintain_order=True, nulls_last=False)


def stated(asker: str, *targets: int | None) -> dict[str, int]:
    """Metric -> its target, ns, of those that are given, in the order of METRICS.

    Raises:
        UsageError: a target is negative or beyond 64 bits.
    """
    asked = {name: target for name, target in zip(METRICS, targets, strict=True) if target is not None}
    if any(not 0 <= target <= MOST_NS for target in asked.values()):
        raise UsageError(f"{asker}: no target may be below 0 ns or beyond 64 bits.")
    return asked


def of_requests(run: Run, targets: Mapping[str, int], requests: Sequence[str]) -> pl.DataFrame:
    """(request_id, metric, target_ns, value_ns, in_time) of these requests, as `slo` counts them.

    in_time is null where it is not known; a request with one token has no row of times between tokens.
    """
    rows = _requests(run, "group")
    mine = pl.col("request_id").is_in(list(requests))
    return pl.concat(
        _told(rows, metric, target)
        .filter(mine)
        .select(
            "request_id", metric=pl.lit(metric), target_ns=pl.lit(target, pl.Int64), value_ns=metric,
            in_time="in_time",
        )
        for metric, target in targets.items()
    )  # fmt: skip


def _requests(run: Run, by: str) -> pl.DataFrame:
    group = run.meta.get("group")
    params = {
        "ledger": str(ledger_table(run)),
        "by": by,
        "run_group": group if isinstance(group, str) else None,
    }
    connection = spilling(run)
    try:
        return pl.DataFrame(connection.sql(_REQUESTS, params=params).to_arrow_table())
    finally:
        connection.close()


def _judged(rows: pl.DataFrame, metric: str, target: int) -> pl.DataFrame:
    """One target's rows."""
    counted = (
        _told(rows, metric, target)
        .group_by("group")
        .agg(
            requests=pl.col("in_time").count(),
            attained=pl.col("in_time").sum(),
            censored=pl.col("in_time").null_count(),
        )
    )
    known = counted.with_columns(
        metric=pl.lit(metric),
        target_ns=pl.lit(target),
        attained=pl.when(pl.col("requests") > 0).then("attained"),
    )
    return known.select(list(COLUMNS)).cast(COLUMNS)


def _told(rows: pl.DataFrame, metric: str, target: int) -> pl.DataFrame:
    """The rows that a target is about, with whether they were in time."""
    between = metric.startswith("itl")
    about = rows.filter(pl.col("output_tokens").fill_null(2) > 1) if between else rows
    return about.with_columns(in_time=_in_time(rows, metric, target))


def _in_time(rows: pl.DataFrame, metric: str, target: int) -> pl.Expr:
    """Whether a request was in time; null: not known. Times between tokens are whole only at the finish.

    arrival |------------- target |----- still open, no value: late
            |---- aborted         |      not known
            |-- finished          |      its first token too was in time, seen or not
    """
    value, is_open, is_cut = pl.col(metric), pl.col("is_open"), pl.col("is_cut")
    yes, no = pl.lit(value=True), pl.lit(value=False)
    rules: tuple[tuple[pl.Expr, pl.Expr], ...]
    if metric == "e2e_ns":
        rules = ((value.is_not_null() & ~is_cut, value <= target), (pl.col("seen_ns") > target, no))
    elif metric == "ttft_ns":
        told = rows["ttft_ns"].count() > 0  # else nobody records first tokens: having none says nothing
        late = (is_open | is_cut) & (pl.col("seen_ns") > target) & pl.lit(told)
        quick = ~is_open & ~is_cut & (pl.col("e2e_ns") <= target)
        rules = ((value.is_not_null(), value <= target), (late, no), (quick, yes))
    else:
        rules = ((value.is_not_null() & ~is_open, value <= target),)
    found = pl.coalesce(pl.when(condition.fill_null(value=False)).then(answer) for condition, answer in rules)
    return pl.when(pl.col("is_failed")).then(no).otherwise(found)
